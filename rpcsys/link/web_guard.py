"""Which HTTP requests a daemon of a lab answers that has no members to ask: those of its machine, and of some networks.

A page of another site whose name resolves to this machine (DNS rebinding) would read as a user of this machine. Its
browser tells that by Host and Origin, whatever the page wants.
"""

from __future__ import annotations

import socket
from typing import Collection, Optional, Tuple

from rpcsys.link.admission import LOOPBACK, Admission, network, packed

HEALTH = "/healthz"  # open to all: it tells nothing else
_LOOPBACK = tuple(map(network, LOOPBACK))


class MetricsGuard:
    """Who sees the metrics of ``what`` ("server", say) in a lab: its machine, and the networks in ``texts``."""

    def __init__(self, what: str, texts: Tuple[str, ...]) -> None:
        self._what = what
        self._served = Admission(texts, LOOPBACK)

    def refusal(self, path: str, address: str, local: Optional[str], host: str, origin: str) -> str:
        """Why a request of ``address`` to this machine's address ``local`` is refused; empty if it is answered.

        ``host`` and ``origin``: its header fields.
        """
        if path == HEALTH:
            return ""
        if not self._served.serves(address, local):
            return (
                f"in a lab, this {self._what} shows its metrics to its own machine, and you come from {address}: "
                f"whoever keeps it lets you in with --http-open {address}"
            )
        return foreign(address, host, origin)


def foreign(address: str, host: str, origin: str, own: Collection[str] = ()) -> str:
    """Why a request of ``address`` is that of another site's page in a browser; empty if it is not.

    ``own``: names of this machine beside its own. Whoever comes over a network may call this machine by any name.
    """
    if origin and origin.partition("://")[2].lower() != host.lower():
        return "a page of another site may not read this one"
    if not from_loopback(address) or _is_own(host_name(host), own):
        return ""
    return f"{host!r} is no name of this machine: say localhost, or have the server in between say Host: localhost"


def from_loopback(address: str) -> bool:
    """Whether a peer is on this machine, by its address."""
    found = packed(address)
    return found is not None and any(one.includes(found) for one in _LOOPBACK)


def host_name(host: str) -> str:
    """The name or address in a field ``Host``, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def _is_own(name: str, own: Collection[str]) -> bool:
    """Whether no one else can have a name resolve to here: an address in digits, or a name that is known here."""
    machine = socket.gethostname().lower()
    return not name or packed(name) is not None or name in ("localhost", machine, machine.partition(".")[0], *own)
