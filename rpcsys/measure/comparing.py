"""Compares models on boards: runs their turns until the answer is known, or the limit is reached."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rpcsys.client import Session
from rpcsys.client.tracker import Tracker
from rpcsys.errors import UsageError
from rpcsys.graph.samples import Arrays
from rpcsys.measure import leasing, schedule
from rpcsys.measure.board import MeasuredBoard
from rpcsys.measure.judge import Judgement, Rules, judge
from rpcsys.measure.outcome import BoardRuns, ModelComparison
from rpcsys.measure.readiness import Readiness, readiness
from rpcsys.measure.shown import ShownComparison
from rpcsys.measure.subjects import MAX_SUBJECTS, Subject, check_file, difference, names, parse
from rpcsys.progress import Advance, reporting

LEAST, LIMIT_S, CONFIDENCE, PATIENCE_S = 0.01, 60.0, 0.95, 10.0
MAX_S = 24 * 3600.0
SHARED = 0.05  # of the CPUs' time; others who take less change nothing
_SHARED = "its CPUs had other work, and models with several threads: a quiet board may show a larger difference"
_LOOK_S = 0.5  # between two looks at a board that is waited for
Where = Session | Sequence[Session] | Tracker


def compare(
    where: Where, subjects: Sequence[str | os.PathLike[str] | Subject], *, key: str | None = None,
    boards: int | str = 1, labels: Mapping[str, str] | None = None, inputs: Arrays | None = None,
    least: float = LEAST, limit_s: float = LIMIT_S, confidence: float = CONFIDENCE, patience_s: float = PATIENCE_S,
    seed: int | None = None, progress: Advance | bool | None = None,
) -> ModelComparison:  # fmt: skip
    """Compare the times of models on one board or several; the first one is what the others are compared with.

    ``where``: a session, sessions with several boards, or a tracker, which is asked for ``boards`` boards of a ``key``
    (or "all" of it) with ``labels``. ``subjects``: `Subject`, or its text. ``inputs``: arrays by name, else random
    ones. ``least``: the least relative difference that matters. ``limit_s``: the most seconds of measuring.
    ``patience_s``: how long a board that is busy, hot or throttled is waited for; one that is still throttled is
    refused. ``seed``: of the order of turns, for one that can be had again. ``progress`` is called with the seconds of
    measuring that are done, and the most there will be; True shows a bar, as a notebook does.

    Raises `UsageError`, and what leasing and loading raise.
    """
    parsed = check(subjects, inputs, least, limit_s, confidence, patience_s, seed)
    planned = schedule.looks(limit_s)
    rules = Rules(least, confidence, len(planned), len(parsed) - 1)
    drawn = secrets.randbits(32) if seed is None else seed
    with _sessions(where, key, boards, labels) as sessions, reporting(progress, "comparing") as report:
        run = _Comparing([MeasuredBoard(session, parsed) for session in sessions], planned, rules, patience_s, report)
        return run.compare(parsed, inputs, drawn)


@contextlib.contextmanager
def _sessions(
    where: Where, key: str | None, boards: int | str, labels: Mapping[str, str] | None
) -> Iterator[Sequence[Session]]:
    if isinstance(where, Tracker):
        with leasing.leased(where, key, boards, labels=labels) as found:
            yield found
        return
    sessions = [where] if isinstance(where, Session) else list(where)
    if not sessions:
        raise UsageError("compare needs a session, or a tracker with a key")
    yield sessions


def check(
    subjects: Sequence[str | os.PathLike[str] | Subject], inputs: Arrays | None = None, least: float = LEAST,
    limit_s: float = LIMIT_S, confidence: float = CONFIDENCE, patience_s: float = PATIENCE_S, seed: int | None = None,
) -> list[Subject]:  # fmt: skip
    """The subjects of `compare`. Raises `UsageError`, before a device is leased, for what it would refuse."""
    parsed = [parse(subject) for subject in subjects]
    if not 2 <= len(parsed) <= MAX_SUBJECTS:
        raise UsageError(f"give 2 to {MAX_SUBJECTS} models to compare, not {len(parsed)}")
    for subject in parsed:
        check_file(subject, inputs)
    for name, value, low, high in (
        ("least difference that matters", least, 1e-4, 0.5),
        ("confidence", confidence, 0.5, 0.9999),
    ):
        if not low <= value <= high:
            raise UsageError(f"the {name} is from {low:.2%} to {high:.2%}, not {value:.2%}")
    if not 1 <= limit_s <= MAX_S:
        raise UsageError(f"the limit is from 1 second to a day, not {limit_s:g} s")
    if not 0 <= patience_s <= MAX_S:
        raise UsageError(f"the patience is from 0 seconds to a day, not {patience_s:g} s")
    if seed is not None and seed < 0:
        raise UsageError(f"the seed is a whole number from 0, not {seed}")
    return parsed


class _Comparing:
    """One comparison under way."""

    def __init__(
        self, boards: list[MeasuredBoard], planned: Sequence[float], rules: Rules, patience_s: float,
        progress: Advance | None,
    ) -> None:  # fmt: skip
        self._boards = boards
        self._planned = planned
        self._rules = rules
        self._patience_s = patience_s
        self._progress = progress or (lambda done, most: None)
        self._measured_s = 0.0
        self._refused = ""

    def compare(self, subjects: Sequence[Subject], given: Arrays | None, seed: int) -> ModelComparison:
        """Load, measure and judge."""
        for board in self._boards:
            board.load(given)
        results = self._boards[0].results()
        outputs = [difference(results[0], other) for other in results[1:]]
        for board in self._boards:
            board.calibrate(self._planned[-1])
        judgements = self._judged(np.random.default_rng(seed), len(subjects))
        for board in self._boards:
            if not board.facts.alone and (board.facts.others or 0.0) >= SHARED:
                board.notes.setdefault("shared", _SHARED)
        runs = [
            BoardRuns(each.name, each.facts.blocks, each.facts.others, each.facts.waited, (*each.notes.values(),))
            for each in self._boards
        ]
        return ShownComparison(
            (*names(subjects),), judgements, (*runs,), (*outputs,), self._rules, self._refused,
            self._measured_s, self._planned[-1], seed,
        )  # fmt: skip

    def _judged(self, rng: np.random.Generator, subjects: int) -> tuple[Judgement, ...]:
        """Measure until all is settled, or the limit is reached."""
        for until in self._planned:
            while self._measured_s < until and not self._refused:
                self._await_ready()
                if not self._refused:
                    self._measure(rng)
            last = bool(self._refused) or until == self._planned[-1]
            blocks = [board.facts.blocks for board in self._boards]
            found = [judge([each.differences(other) for each in blocks], self._rules, last)
                     for other in range(1, subjects)]  # fmt: skip
            if all(each.settled for each in found):
                break
        return tuple(found)

    def _measure(self, rng: np.random.Generator) -> None:
        """Have all boards run one round at the same time."""
        begun = time.perf_counter()
        for board in self._boards:
            board.load_again(rng, self._planned[-1])
        loading = sum(board.load_s for board in self._boards)  # one board after another
        seconds = max(schedule.ROUND_S, 2 * loading, *(board.least_s for board in self._boards))
        for board, under_way in [(board, board.start(rng, seconds)) for board in self._boards]:
            board.take(under_way.result())
        self._measured_s += time.perf_counter() - begun
        self._progress(min(self._measured_s, self._planned[-1]), self._planned[-1])

    def _await_ready(self) -> None:
        """Wait for boards that are not fit, as long as the patience lasts; refuse one that is still throttled."""
        while True:
            unfit = [(board, *readiness(board.state)) for board in self._boards]
            unfit = [each for each in unfit if each[1] is not Readiness.READY]
            if not unfit:
                return
            if self._patience_s <= 0:
                break
            time.sleep(min(_LOOK_S, self._patience_s))
            self._patience_s -= _LOOK_S
            for board in self._boards:
                board.take(board.look().result())
        for board, fitness, why in unfit:
            if fitness is Readiness.THROTTLED:
                self._refused = f"{board.name} is not measured on: {why}"
            else:
                board.notes.setdefault(fitness.value, why)
