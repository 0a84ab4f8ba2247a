"""One board of a comparison: what is loaded there, the turns that it has run, and what it said of itself meanwhile."""

from __future__ import annotations

import secrets
import time
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
from rpcsys.measure.subjects import Subject, Uploaded, arguments

if TYPE_CHECKING:
    from rpcsys.client.rows import TurnsReport

_FIRST = 5  # turns of each subject, that tell how many calls a turn has
_SLOW_LOADS = "loading takes too long to be repeated: where the models lie in memory counts in the difference"
_SHORT_S = 1e-3  # turns of fewer seconds are repeated with more calls: a clock's reading would count in them


class MeasuredBoard:
    """A session with a board, and the turns that were measured there.

    Attributes
    ----------
    name : of the server, or its address
    state : the board's, after the last turns
    facts : the turns, and what the board said of them
    notes : what happened to the board, for a person: the first of each kind
    """

    def __init__(self, session: Session, subjects: Sequence[Subject]) -> None:
        self.session = session
        self.name = printable(str(session.lease.get("server") or "{}:{}".format(*session.address)))
        self.state: dict[str, Any] = {}
        self.facts = Facts(len(subjects))
        self.notes: dict[str, str] = {}
        self._subjects = [Uploaded(session, each, f"measured-{secrets.token_hex(4)}") for each in subjects]
        self._functions: list[Any] = []
        self._arguments: list[list[Any]] = []
        self._load_s = self._block_s = 0.0
        self._number: list[int] = []
        self._turn_s = schedule.TURN_S
        self._order: list[int] = []

    def load(self, given: Arrays | None) -> None:
        """Load the subjects, with their arguments. Raises what loading raises, and `UsageError`."""
        for subject in self._subjects:
            model, function = subject.load()
            found = arguments(model, subject.function, given)
            ready = [self.session.array(each) if each.dtype.kind not in "OUT" else each for each in found]
            self._functions.append(function)
            self._arguments.append(ready)

    def load_again(self, rng: np.random.Generator, limit_s: float) -> None:
        """Load the subjects anew, in an order that is drawn, unless that takes too long."""
        if self._load_s * schedule.LOADS > limit_s:
            self.notes.setdefault("loads", _SLOW_LOADS)
            return
        begun = time.perf_counter()
        for place in rng.permutation(len(self._subjects)):
            self._functions[place] = None  # frees it on the board
            self._functions[place] = self._subjects[place].load()[1]
        self._load_s = time.perf_counter() - begun

    @property
    def _calls(self) -> list[tuple[Any, list[Any]]]:
        return list(zip(self._functions, self._arguments, strict=True))

    def results(self) -> list[Any]:
        """What each subject returns."""
        return [function(*arguments) for function, arguments in self._calls]

    def calibrate(self, limit_s: float) -> None:
        """Find how many calls of each subject one turn has."""
        count = len(self._functions)
        drawn, number = [*range(count)] * _FIRST, [1] * count
        while True:
            seconds = self._least(drawn, number, limit_s)
            shortest = min(each * calls for each, calls in zip(seconds, number, strict=True))
            if shortest >= _SHORT_S or max(number) >= schedule.MAX_NUMBER:
                break
            number = [min(schedule.MAX_NUMBER, max(10 * calls, round(2 * _SHORT_S / max(each, 1e-9))))
                      for each, calls in zip(seconds, number, strict=True)]  # fmt: skip
        self._number = schedule.numbers(seconds)
        turns = [each * calls for each, calls in zip(seconds, self._number, strict=True)]
        self._turn_s, self._block_s = min(turns), sum(turns) + sum(seconds)

    def _least(self, drawn: list[int], number: list[int], limit_s: float) -> list[float]:
        report = self.session.time_turns(self._calls, drawn, number, limit_s)
        self.state = report["board"].get("after", {})
        own = [
            seconds - (waited or 0.0) / number[place]
            for seconds, waited, place in zip(report["seconds"], report["waited"], drawn, strict=False)
        ]
        found = schedule.blocks(drawn, own, len(self._functions))
        if not found:  # the first block alone took the limit
            return [limit_s] * len(self._functions)
        return [max(min(times), 1e-12) for times in zip(*found, strict=True)]

    @property
    def load_s(self) -> float:
        """Seconds that the last loading of all subjects took; 0 if there was one only."""
        return self._load_s

    @property
    def least_s(self) -> float:
        """The seconds in which one block surely fits."""
        return 2 * self._block_s

    def look(self) -> CallFuture:
        """Ask for the board's state, without turns."""
        self._order = []
        return self.session.submit_turns(self._calls, [], [1] * len(self._functions), 0.0)

    def start(self, rng: np.random.Generator, seconds: float) -> CallFuture:
        """Have the turns of one round run; `take` takes their report."""
        self._order = schedule.order(rng, len(self._functions), self._turn_s, seconds)
        return self.session.submit_turns(self._calls, self._order, self._number, seconds)

    def take(self, report: TurnsReport) -> None:
        """Add the turns of a report."""
        before, self.state = report["board"].get("before", {}), report["board"].get("after", {})
        changed = changed_frequency(before, self.state)
        if changed:
            self.notes.setdefault("frequency", changed)
        self.facts.add(self._order, self._number, report)
