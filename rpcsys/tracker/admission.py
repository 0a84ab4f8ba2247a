"""How many connections an address may have: each costs the tracker a descriptor and what it is told over it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rpcsys.daemon.acceptor import ConnectionLimit
from rpcsys.tracker.relays import Relays

log = logging.getLogger(__name__)

_ADVICE = "see what runs there, or start the tracker with a higher --max-connections-per-address"


class Admission:
    """At most ``limit`` connections of each address. Proxies, and this machine where none is named, count for
    nobody: who comes through them has the proxy's limits.
    """

    def __init__(self, limit: int, relays: Relays, clock: Callable[[], float]) -> None:
        self._relays = relays
        self._clock = clock
        self._counted = ConnectionLimit(limit, None, log, _ADVICE)

    def admit(self, address: str, local: str) -> bool:
        """Whether one more may come, which is then counted. It is logged now and then that one may not."""
        return self._relays.include(address, local) or self._counted.admit(address, self._clock())

    def leave(self, address: str, local: str) -> None:
        """One that was admitted has gone."""
        if not self._relays.include(address, local):
            self._counted.leave(address)
