"""Bounds the memory of bodies under way: what is beyond it is not read, until others have ended."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable


def quarter_of_the_machine() -> int:
    """A quarter of this machine's memory, in bytes; of 8 GiB where the system does not say it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (ValueError, OSError):
        return 2 << 30


class BodyMemory:
    """Bytes of bodies that are received, run or sent; at most ``limit``, but for one body alone, and for answers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, if there is room and nobody waits; whether it was taken."""
        if self._waiting or not self._has_room(size):
            return False
        self.taken += size
        return True

    def wait(self, size: int, take_up: Callable[[], bool]) -> None:
        """Call ``take_up`` when ``size`` bytes are taken for it; it returns whether they are still wanted."""
        self._waiting.append((size, take_up))

    def add(self, size: int) -> None:
        """Take ``size`` bytes that are there already."""
        self.taken += size

    def give_back(self, size: int) -> None:
        """``size`` bytes are free again."""
        self.taken -= size
        while self._waiting and self._has_room(self._waiting[0][0]):
            wanted, take_up = self._waiting.popleft()
            self.taken += wanted
            if not take_up():
                self.taken -= wanted

    def _has_room(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self.limit
