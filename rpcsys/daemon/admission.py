"""How many connections may be open at a time, of each address and of all: each costs a descriptor."""

from __future__ import annotations

import logging
from collections import Counter

TELL_EVERY_S = 10.0


class Admission:
    """At most ``each`` connections of an address, and ``total`` of all (None: no bound)."""

    def __init__(self, each: int, total: int | None, log: logging.Logger, advice: str) -> None:
        self._each = each
        self._total = total
        self._log = log
        self._advice = advice
        self._counts: Counter[str] = Counter()
        self._tell_at = float("-inf")

    def admit(self, address: str, at: float) -> bool:
        """Whether one more may come, which is then counted. It is logged now and then that one may not, with the advice."""
        full = self._total is not None and self._counts.total() >= self._total
        if self._counts[address] < self._each and not full:
            self._counts[address] += 1
            return True
        if at >= self._tell_at:
            self._tell_at = at + TELL_EVERY_S
            self._log.warning(
                "%s has %d connections and gets no more: %s",
                address,
                self._counts[address],
                self._advice,
                extra={"stranger": address},
            )
        if not self._counts[address]:
            del self._counts[address]
        return False

    def leave(self, address: str) -> None:
        """One that was admitted has gone."""
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
