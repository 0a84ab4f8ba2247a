"""What a tracker with replicas says of the one that leads (docs/wire.md, "Replicas")."""

from __future__ import annotations

from typing import Any, Mapping

from rpcsys.wire import checks
from rpcsys.wire.checks import Message, field, optional

#: A capability of a client, a server or a proxy: it knows several addresses, and hears which replica leads.
REPLICAS = "replicas/1"
#: ``role`` in the answer to its hello.
LEADER, STANDBY = "leader", "standby"


def why_none(welcome: Mapping[str, Any]) -> str:
    """Why nobody leads, as far as a standby says it in its answer to a hello, or "". Raises ProtocolError."""
    return checks.sentence(welcome.get("why", ""), "why")


class Leads(Message, op="leader"):
    """Which replica leads, None for none, as a standby says at each change; the answer to a hello has the same fields.

    A lower ``term`` than one that is known is late. With ``here`` the standby itself leads now, and the conversation
    begins anew on this connection.
    """

    term: int = field(checks.integer(0, checks.MAX_ID))
    leader: tuple[str, int] | None = field(optional(checks.place(checks.text)), default=None)
    here: bool = field(checks.flag, default=False)
