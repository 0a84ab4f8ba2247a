"""What a tracker says to the trackers of other sites (docs/wire.md, "Sites"): it is a client there for its own clients.

Loaded with ``--site`` only.
"""

from __future__ import annotations

from typing import Any, Mapping

from rpcsys.wire import checks, control, membership
from rpcsys.wire.checks import field
from rpcsys.wire.control import Ask

#: The label of a request that says where it is served, and its value for "wherever a device is first".
SITE, ANY = "site", "any"
#: The id of the first question on a link, which is `Introduce`.
INTRODUCTION = 0
#: Between the parts of a ticket, one of each site that has the request.
_JOINT = "+"


class Introduce(Ask, op="site"):
    """The first question on a link: it comes from ``site``. The answer has ``site``, the name of the tracker's own."""

    site: str = field(checks.text)


class AskForGuest(Ask, op="guest"):
    """Ask for a client of the sender's: ``ask`` is the client's question, and is answered by its own id.

    ``guest``: the number of the client's connection at its site.
    """

    guest: int = field(checks.integer(1, checks.MAX_ID))
    user: str = field(checks.text)
    address: str = field(checks.text)
    ask: Mapping[str, Any] = field(checks.mapping(checks.anything))


class GuestLeft(Ask, op="guest_left"):
    """The connection of a client has ended at its site."""

    guest: int = field(checks.integer(1, checks.MAX_ID))


#: What a tracker asks for its clients, by ``op``.
OF_GUESTS: dict[str, type[Ask]] = {
    message.op: message
    for message in (control.Request, control.Cancel, control.Renew, control.Release, control.EndLease)
}
#: The messages that the tracker of a site accepts, by ``op``.
TO_TRACKER: dict[str, type[Ask]] = {
    **membership.TO_TRACKER,
    **{message.op: message for message in (Introduce, AskForGuest, GuestLeft)},
}


def site_of(lease: str) -> str:
    """The site of a lease, or of one site's ticket, by its name; "" for one without."""
    site, dot, _ = lease.rpartition("@")[2].partition(".")
    return site if dot else ""


def join_tickets(tickets: list[str]) -> str:
    """One ticket of those of several sites; what does not fit `checks.MAX_TEXT` is left out."""
    joined = ""
    for ticket in tickets:
        longer = f"{joined}{_JOINT}{ticket}" if joined else ticket
        joined = longer if len(longer) <= checks.MAX_TEXT else joined
    return joined


def split_ticket(ticket: str | None) -> dict[str, str]:
    """The tickets that a joined one consists of, by site."""
    return {site_of(each): each for each in (ticket or "").split(_JOINT) if each}
