"""The supervisor's look at what sessions use: memory, and CPUs (see :mod:`rpcsys.server.limits`)."""

from __future__ import annotations

from collections.abc import Callable

from rpcsys.server import events as ev
from rpcsys.server.limits import keep_on, resident, taken

EVERY_S = 0.2
"""Between two looks at what sessions use. One look is some 0.1 ms a process."""


class MemoryWatch:
    """Looks at running sessions, ``EVERY_S`` apart.

    Tells ``feed`` of those above ``limit`` bytes (None: of none), and of those that were not on their CPUs alone, which it
    sets back to them. ``pid``: the process number of a child, 0 for a dead one.
    """

    def __init__(
        self,
        limit: int | None,
        pid: Callable[[int], int],
        feed: Callable[[ev.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._limit = limit
        self._pid = pid
        self._feed = feed
        self._clock = clock
        self._next = 0.0
        self._children: dict[int, frozenset[int]] = {}

    def add(self, child: int, cpus: frozenset[int] = frozenset()) -> None:
        """Watch a child that has been given a session, which is on ``cpus`` (all, if empty); until it is dead."""
        if self._limit is None and not cpus:
            return
        if not self._children:
            self._next = self._clock() + EVERY_S
        self._children[child] = cpus

    def due(self) -> float | None:
        """When :meth:`look` is wanted."""
        return self._next if self._children else None

    def look(self) -> None:
        """Look, if it is time."""
        now = self._clock()
        if not self._children or now < self._next:
            return
        for child, cpus in list(self._children.items()):
            pid = self._pid(child)
            if not pid:
                del self._children[child]
                continue
            if self._limit is not None and resident(pid) > self._limit and taken(pid) > self._limit:
                self._feed(ev.MemoryExceeded(now, child))
            if cpus and _strayed(pid, cpus):
                self._feed(ev.CpusLeft(now, child))
        self._next = self._clock() + EVERY_S


def _strayed(pid: int, cpus: frozenset[int]) -> bool:
    try:
        return keep_on(pid, cpus)
    except OSError:
        return True  # its CPUs were taken from the board
