"""The limit of connections of one address."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rpcsys.daemon import acceptor
from rpcsys.tracker.addresses import ProxyNetworks

log = logging.getLogger(__name__)


class PeerLimit:
    """At most ``limit`` connections of each address. Trusted proxies are exempt, as they have limits of their own."""

    def __init__(self, limit: int, proxies: ProxyNetworks, clock: Callable[[], float]) -> None:
        self._proxies = proxies
        self._clock = clock
        advice = "see what runs there, or start the tracker with a higher --max-connections-per-address"
        self._counted = acceptor.ConnectionLimit(limit, None, log, advice)

    def admit(self, address: str, local: str) -> bool:
        """Admit and count a connection. False: the limit is reached, which is logged now and then."""
        return self._proxies.include(address, local) or self._counted.admit(address, self._clock())

    def leave(self, address: str, local: str) -> None:
        """Count the end of an admitted connection."""
        if not self._proxies.include(address, local):
            self._counted.leave(address)
