"""How many connections an address may have: each costs the tracker a descriptor and what it is told over it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from rpcsys.tracker.relays import Relays

log = logging.getLogger(__name__)

TELL_EVERY_S = 10.0


class Admission:
    """At most ``limit`` connections of each address. Proxies, and this machine where none is named, count for nobody: who
    comes through them has the proxy's limits.
    """

    def __init__(self, limit: int, relays: Relays, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._relays = relays
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._tell_at = float("-inf")

    def admit(self, address: str, local: str) -> bool:
        """Whether one more may come, which is then counted. It is logged now and then that one may not."""
        if self._relays.include(address, local):
            return True
        if self._counts[address] < self._limit:
            self._counts[address] += 1
            return True
        if self._clock() >= self._tell_at:
            self._tell_at = self._clock() + TELL_EVERY_S
            log.warning(
                "%s has %d connections and gets no more: see what runs there, or start the tracker with a higher "
                "--max-connections-per-address",
                address,
                self._limit,
                extra={"stranger": address},
            )
        return False

    def leave(self, address: str, local: str) -> None:
        """One that was admitted has gone."""
        if not self._relays.include(address, local):
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]
