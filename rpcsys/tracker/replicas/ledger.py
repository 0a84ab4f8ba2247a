"""What a leader holds back until the journal has what it follows from. Nothing is sent here.

A turn's messages may be sent once the journal has all records up to the turn's end, those of earlier turns, too. So
they leave in the order in which they were made, and none follows from a decision that a later leader does not know.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.replicas import journal

#: Entries of the journal that are written at the same time: more gain nothing where the engine is near.
MOST_UNDER_WAY = 4

Output = TypeVar("Output")


@dataclass(frozen=True)
class JournalEntry:
    """An entry of the journal that is to be written."""

    number: int
    records: Sequence[HistoryEntry]
    data: bytes = b""  # as it is to be written


@dataclass
class Ledger(Generic[Output]):
    """The records and outputs of one term. ``through``: the last entry of the journal before it."""

    through: int
    #: Until when nobody else leads, by this process's clock: until then an answer that needs no record is true.
    valid_until: float = -math.inf
    _noted: int = 0  # records that were made
    _durable: int = 0  # of these, how many the journal has
    _next: int = 0  # the number of the last entry that was taken for writing
    _gathered: list[HistoryEntry] = field(default_factory=list)
    _under_way: dict[int, Sequence[HistoryEntry]] = field(default_factory=dict)  # by number, ascending
    _written: set[int] = field(default_factory=set)  # of these, the ones that are written behind one that is not
    _held: deque[tuple[int, Output]] = field(default_factory=deque)  # with the records that each waits for

    def __post_init__(self) -> None:
        self._next = self.through

    @property
    def idle(self) -> bool:
        """Whether the journal has all records, and nothing is held."""
        return self._noted == self._durable and not self._held

    @property
    def held(self) -> list[Output]:
        """The outputs that are held."""
        return [output for _, output in self._held]

    def note(self, record: HistoryEntry) -> None:
        """Add a record of the present turn."""
        self._gathered.append(record)
        self._noted += 1

    def hold(self, output: Output, now: float) -> bool:
        """Hold an output of the present turn if it must wait; False: it may be sent."""
        if self._noted == self._durable and not self._held and now < self.valid_until:
            return False
        self._held.append((self._noted, output))
        return True

    def entry(self) -> JournalEntry | None:
        """The next entry to write, None while there is none, or as many as allowed are under way."""
        if not self._gathered or len(self._under_way) >= MOST_UNDER_WAY:
            return None
        data, count = journal.pack(self._gathered)
        records, self._gathered = self._gathered[:count], self._gathered[count:]
        self._next += 1
        self._under_way[self._next] = records
        return JournalEntry(self._next, records, data)

    def written(self, number: int, now: float) -> tuple[list[JournalEntry], list[Output]]:
        """An entry is written: the entries that the journal has now up to its first gap, and what may be sent.

        One that was written before this process slept is true, but another may lead by now: `renewed` shows.
        """
        self._written.add(number)
        entries = []
        for first in list(self._under_way):
            if first not in self._written:
                break
            self._written.remove(first)
            entries.append(JournalEntry(first, self._under_way.pop(first)))
            self._durable += len(entries[-1].records)
            self.through = first
        return entries, self._due(now)

    def renewed(self, valid_until: float, now: float) -> list[Output]:
        """Nobody else leads until ``valid_until``: what may be sent."""
        self.valid_until = max(self.valid_until, valid_until)
        return self._due(now)

    def _due(self, now: float) -> list[Output]:
        due: list[Output] = []
        while now < self.valid_until and self._held and self._held[0][0] <= self._durable:
            due.append(self._held.popleft()[1])
        return due
