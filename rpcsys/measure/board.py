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
from rpcsys.measure.judge import Blocks
from rpcsys.measure.readiness import changed_frequency
from rpcsys.measure.subjects import Subject, arguments

if TYPE_CHECKING:
    from rpcsys.client.rows import TurnsReport

WAITED = 0.005  # a turn that waited a larger share of its time for a CPU was disturbed
_FIRST = 3  # turns of each subject, that tell how many calls a turn has
_SHORT_S = 1e-3  # turns of fewer seconds are repeated with more calls: a clock's reading would count in them


class MeasuredBoard:
    """A session with a board, and the turns that were measured there.

    Attributes
    ----------
    name : of the server, or its address
    state : the board's, after the last turns
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
        self._seconds: list[list[float]] = []
        self._disturbed: list[list[bool]] = []
        self._others: list[float] = []
        self._waited: list[float] = []  # seconds for a CPU, of each turn that says it
        self._spent = 0.0  # seconds of these turns
        self._order: list[int] = []

    def load(self, subjects: Sequence[Subject], given: Arrays | None) -> None:
        """Load the subjects, with their arguments. Raises what loading raises, and `UsageError`."""
        for subject in subjects:
            model, function = subject.load(self.session)
            found = arguments(model, subject.function, given)
            ready = [self.session.array(each) if each.dtype.kind not in "OUT" else each for each in found]
            self._models.append(model)
            self._calls.append((function, ready))

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
        spent = [each * self._number[place] for each, place in zip(report["seconds"], self._order, strict=False)]
        disturbed = [
            switches > 0 or (waited is not None and waited > WAITED * took)
            for switches, waited, took in zip(report["switches"], report["waited"], spent, strict=True)
        ]
        positive = [max(each, 1e-12) for each in report["seconds"]]  # a coarse clock may read zero
        self._seconds += schedule.blocks(self._order, positive, len(self._calls))
        self._disturbed += schedule.blocks(self._order, disturbed, len(self._calls))
        self._others += [share for share in report["others_cpu"] if share is not None]
        self._waited += [waited for waited in report["waited"] if waited is not None]
        self._spent += sum(spent)

    @property
    def blocks(self) -> Blocks:
        """All turns, by block and subject."""
        shape = (-1, max(len(self._calls), 1))
        return Blocks(np.array(self._seconds, float).reshape(shape), np.array(self._disturbed, bool).reshape(shape))

    @property
    def others(self) -> float | None:
        """The share of the board's CPUs that others took, a mean; None where it does not show it."""
        return float(np.mean(self._others)) if self._others else None

    @property
    def waited(self) -> float | None:
        """The share of the turns' time in which they waited for a CPU."""
        return sum(self._waited) / self._spent if self._waited and self._spent else None
