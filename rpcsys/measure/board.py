"""One board of a comparison: what is loaded there, the turns that it has run, and what it said of itself meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rpcsys.client import Session
from rpcsys.client.calls import CallFuture
from rpcsys.errors import printable
from rpcsys.graph.samples import Arrays
from rpcsys.measure import schedule
from rpcsys.measure.facts import Facts
from rpcsys.measure.readiness import changed_frequency
from rpcsys.measure.subjects import Subject, arguments

if TYPE_CHECKING:
    from rpcsys.client.rows import TurnsReport

_FIRST = 3  # turns of each subject, that tell how many calls a turn has
_SHORT_S = 1e-3  # turns of fewer seconds are repeated with more calls: a clock's reading would count in them


class MeasuredBoard:
    """A session with a board, and the turns that were measured there.

    Attributes
    ----------
    name : of the server, or its address
    state : the board's, after the last turns
    facts : the turns, and what the board said of them
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.name = printable(str(session.lease.get("server") or "{}:{}".format(*session.address)))
        self.state: dict[str, Any] = {}
        self.notes: dict[str, str] = {}  # what happened to the board, for a person: the first of each kind
        self._models: list[Any] = []  # while they are measured, they stay loaded
        self._calls: list[tuple[Any, list[Any]]] = []
        self._number: list[int] = []
        self._turn_s = schedule.TURN_S
        self.facts = Facts(0)
        self._order: list[int] = []

    def load(self, subjects: Sequence[Subject], given: Arrays | None) -> None:
        """Load the subjects, with their arguments. Raises what loading raises, and `UsageError`."""
        for subject in subjects:
            model, function = subject.load(self.session)
            found = arguments(model, subject.function, given)
            ready = [self.session.array(each) if each.dtype.kind not in "OUT" else each for each in found]
            self._models.append(model)
            self._calls.append((function, ready))
        self.facts = Facts(len(subjects))

    def results(self) -> list[Any]:
        """What each subject returns."""
        return [function(*arguments) for function, arguments in self._calls]

    def calibrate(self, limit_s: float) -> None:
        """Find how many calls of each subject one turn has."""
        count = len(self._calls)
        drawn, number = [*range(count)] * _FIRST, [1] * count
        while True:
            seconds = self._least(drawn, number, limit_s)
            shortest = min(each * calls for each, calls in zip(seconds, number, strict=True))
            if shortest >= _SHORT_S or max(number) >= schedule.MAX_NUMBER:
                break
            number = [min(schedule.MAX_NUMBER, max(10 * calls, round(2 * _SHORT_S / max(each, 1e-9))))
                      for each, calls in zip(seconds, number, strict=True)]  # fmt: skip
        self._number = schedule.numbers(seconds)
        self._turn_s = min(each * calls for each, calls in zip(seconds, self._number, strict=True))

    def _least(self, drawn: list[int], number: list[int], limit_s: float) -> list[float]:
        report = self.session.time_turns(self._calls, drawn, number, limit_s)
        self.state = report["board"].get("after", {})
        found = schedule.blocks(drawn, report["seconds"], len(self._calls))
        if not found:  # the first block alone took the limit
            return [limit_s] * len(self._calls)
        return [max(min(times), 1e-12) for times in zip(*found, strict=True)]

    def look(self) -> CallFuture:
        """Ask for the board's state, without turns."""
        self._order = []
        return self.session.submit_turns(self._calls, [], [1] * len(self._calls), 0.0)

    def start(self, rng: np.random.Generator, seconds: float) -> CallFuture:
        """Have turns run for so many seconds; `take` takes their report."""
        self._order = schedule.order(rng, len(self._calls), self._turn_s, seconds)
        return self.session.submit_turns(self._calls, self._order, self._number, seconds)

    def take(self, report: TurnsReport) -> None:
        """Add the turns of a report."""
        before, self.state = report["board"].get("before", {}), report["board"].get("after", {})
        changed = changed_frequency(before, self.state)
        if changed:
            self.notes.setdefault("frequency", changed)
        self.facts.add(self._order, self._number, report)
