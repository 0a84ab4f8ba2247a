"""The supervisor's look at how much memory sessions have (see :mod:`rpcsys.server.limits`)."""

from __future__ import annotations

from collections.abc import Callable

from rpcsys.server import events as ev
from rpcsys.server.limits import resident, taken

EVERY_S = 0.2
"""Between two looks at what sessions use. One look is some 0.1 ms a process."""


class MemoryWatch:
    """Looks at running sessions, ``EVERY_S`` apart, and tells ``feed`` of those above ``limit`` bytes (None: of none).

    ``pid``: the process number of a child, 0 for a dead one.
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
        self._children: set[int] = set()

    def add(self, child: int) -> None:
        """Watch a child that has been given a session; until it is dead."""
        if self._limit is None:
            return
        if not self._children:
            self._next = self._clock() + EVERY_S
        self._children.add(child)

    def due(self) -> float | None:
        """When :meth:`look` is wanted."""
        return self._next if self._children else None

    def look(self) -> None:
        """Look, if it is time."""
        now = self._clock()
        if not self._children or now < self._next:
            return
        assert self._limit is not None
        for child in list(self._children):
            pid = self._pid(child)
            bound = resident(pid) if pid else 0
            if not pid:
                self._children.discard(child)
            elif bound > self._limit and taken(pid) > self._limit:
                self._feed(ev.MemoryExceeded(now, child))
        self._next = self._clock() + EVERY_S
