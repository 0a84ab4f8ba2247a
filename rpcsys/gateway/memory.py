"""Bounds the memory of bodies under way: what is beyond it is not read, until others have ended."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from rpcsys.wire.memory import LARGE


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
        self._kept = False  # memory of large bodies waits to be reused
        self._lately = False  # since the last `is_idle`, a large body came or went
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def take(self, size: int) -> bool:
        """Take ``size`` bytes, if there is room and nobody waits; whether it was taken."""
        if self._waiting or not self._has_room(size):
            return False
        self.add(size)
        return True

    def wait(self, size: int, take_up: Callable[[], bool]) -> None:
        """Call ``take_up`` when ``size`` bytes are taken for it; it returns whether they are still wanted."""
        self._waiting.append((size, take_up))

    def add(self, size: int) -> None:
        """Take ``size`` bytes that are there already."""
        self.taken += size
        if size >= LARGE:
            self._lately = True

    def give_back(self, size: int) -> None:
        """``size`` bytes are free again."""
        self.taken -= size
        if size >= LARGE:
            self._lately = True
        while self._waiting and self._has_room(self._waiting[0][0]):
            wanted, take_up = self._waiting.popleft()
            self.add(wanted)
            if not take_up():
                self.taken -= wanted

    def is_idle(self) -> bool:
        """Whether memory is kept for large bodies, and none came or went since the last time this was asked."""
        idle = self._kept and not self._lately
        self._kept, self._lately = self._lately, False
        return idle

    def _has_room(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self.limit
