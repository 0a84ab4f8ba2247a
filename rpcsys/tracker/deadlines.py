"""Times at which something is due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Deadlines:
    """Times at which something is due, by what it is. What is dropped or moved costs no search."""

    next: float | None = field(default=None, compare=False)  # when the first is due, None if nothing is
    _due: dict[tuple[Any, ...], float] = field(default_factory=dict)
    #: Entries that are out of date are passed over, and swept out when they are the greater part, so that requests made
    #: and cancelled over and over take no memory.
    _heap: list[tuple[float, int, tuple[Any, ...]]] = field(default_factory=list, compare=False)
    _count: int = field(default=0, compare=False)

    def set(self, what: tuple[Any, ...], at: float) -> None:
        """``what`` is due at ``at``, and at no other time."""
        if self._due.get(what) == at:
            return  # a second entry would outlive every sweep
        self._due[what] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, what))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._find_next()

    def drop(self, what: tuple[Any, ...]) -> None:
        """``what`` is no longer due; nothing happens if it never was."""
        at = self._due.pop(what, None)
        if at is not None and at == self.next:
            self._find_next()

    def take(self, now: float) -> Iterator[tuple[Any, ...]]:
        """What is due by ``now``, in order, unless what came before it has dropped or moved it."""
        due = []
        while self.next is not None and self.next <= now:
            at, _, what = heapq.heappop(self._heap)
            due.append((at, what))
            self._find_next()
        for at, what in due:
            if self._due.get(what) == at:
                del self._due[what]
                yield what

    def _find_next(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        self.next = self._heap[0][0] if self._heap else None
