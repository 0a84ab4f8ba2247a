"""Which candidate a board measures next, and what becomes of one whose session ends. No thread, no socket, no clock.

A session that ends during a measurement may have been spoilt by a candidate before, or the board was lost. So the
candidate is measured once more, as the first of a session of its own; only then is the loss its own error.
"""

from __future__ import annotations

import collections
import enum
import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from rpcsys.tvm.artefact import Artefact


class Standing(enum.Enum):
    """Where a candidate is."""

    WAITING = "waits for a board"
    UNDER_WAY = "is under way, perhaps behind others"
    SUSPECTED = "waits for a session of its own"
    ALONE = "is under way, as the first of its session"
    DONE = "has its result"


class Happening(enum.Enum):
    """What happens to a candidate."""

    SENT = "sent to a board"
    UNUSED = "its session ended before it ran"
    LOST = "its session ended while it ran"
    ANSWERED = "measured, or failed by itself"


#: Standing -> what may happen, and the standing that follows.
TRANSITIONS: dict[Standing, dict[Happening, Standing]] = {
    Standing.WAITING: {Happening.SENT: Standing.UNDER_WAY, Happening.ANSWERED: Standing.DONE},
    Standing.UNDER_WAY: {
        Happening.ANSWERED: Standing.DONE, Happening.UNUSED: Standing.WAITING, Happening.LOST: Standing.SUSPECTED,
    },
    Standing.SUSPECTED: {Happening.SENT: Standing.ALONE, Happening.ANSWERED: Standing.DONE},
    Standing.ALONE: {
        Happening.ANSWERED: Standing.DONE, Happening.UNUSED: Standing.SUSPECTED, Happening.LOST: Standing.DONE,
    },
    Standing.DONE: {},
}  # fmt: skip


@dataclass(eq=False)
class Candidate:
    """A library to measure, and how it is called."""

    artefact: Artefact
    device: str  # such as cpu:0
    arguments: tuple[tuple[str, tuple[int, ...]], ...]
    #: Its seconds, or its error.
    outcome: Future[list[float]] = field(default_factory=Future)
    standing: Standing = Standing.WAITING

    def move(self, happening: Happening) -> None:
        """Change the standing. Raises KeyError for what cannot happen."""
        self.standing = TRANSITIONS[self.standing][happening]

    def answer(self, seconds: list[float] | None = None, error: Exception | None = None) -> None:
        """Set the outcome, once."""
        if self.standing is not Standing.DONE:
            self.move(Happening.ANSWERED)
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(seconds or [])


class CandidateQueue:
    """The candidates that wait for a board. Its owner keeps other threads out."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Candidate] = collections.deque()
        self._suspected: collections.deque[Candidate] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspected)

    def __iter__(self) -> Iterator[Candidate]:
        return itertools.chain(self._suspected, self._waiting)

    def add(self, candidate: Candidate) -> None:
        """Have a candidate wait, behind the others."""
        (self._suspected if candidate.standing is Standing.SUSPECTED else self._waiting).append(candidate)

    def take(self, *, fresh: bool) -> Candidate | None:
        """The next one for a session; ``fresh``: it has measured nothing. None: there is none for this session."""
        if fresh and self._suspected:
            found = self._suspected.popleft()
        elif self._waiting:
            found = self._waiting.popleft()
        else:
            return None
        found.move(Happening.SENT)
        return found

    def lost(self, under_way: list[Candidate]) -> Candidate | None:
        """A session ended with these under way, the one that ran first. They wait again, those that did not run first.

        Returns the one for which this is the second time: its outcome is for the caller to set.
        """
        for candidate in reversed(under_way[1:]):
            candidate.move(Happening.UNUSED)
            self._waiting.appendleft(candidate)
        for ran in under_way[:1]:
            ran.move(Happening.LOST)
            if ran.standing is Standing.DONE:
                return ran
            self.add(ran)
        return None

    def put_back(self, under_way: list[Candidate]) -> None:
        """These were not run, and wait again as the first ones."""
        for candidate in reversed(under_way):
            candidate.move(Happening.UNUSED)
            (self._suspected if candidate.standing is Standing.SUSPECTED else self._waiting).appendleft(candidate)

    def drain(self) -> list[Candidate]:
        """Take all of them out."""
        found = list(self)
        self._waiting.clear()
        self._suspected.clear()
        return found

    def first(self, count: int) -> list[Candidate]:
        """The next ones, at most so many."""
        return list(itertools.islice(self, count))

    def remove(self, candidate: Candidate) -> None:
        """Take out one that waits."""
        (self._suspected if candidate.standing is Standing.SUSPECTED else self._waiting).remove(candidate)
