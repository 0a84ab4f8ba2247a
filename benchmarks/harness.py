"""Measures the subjects of a case in turn, round after round, and makes rows of the figures.

The rules of a fair comparison:

- Interleaved: A B C, A B C, …; a machine that drifts drifts for all (:meth:`Harness.figures`).
- Each round has a new connection; its result is the median of its runs. A figure is the median of the rounds
  (``peers/subject.py``, :func:`summed`).
- Both ends of a subject share one core: no figure contains a wake-up across cores. This process sleeps during a
  round, on another core (:func:`cores`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import models
from benchmarks.case import Case, Measured, Reading
from benchmarks.figures import Row, median
from benchmarks.processes import Process, ProcessFailed
from rpcsys.errors import RpcsysError

ROUND_SECONDS = 60.0  # a round takes a fraction of a second; a busy machine or a slow peer needs more


@dataclass(frozen=True)
class Effort:
    """The effort of a run: rounds per subject, and seconds per round."""

    rounds: int
    slow_rounds: int
    budget_s: float

    def rounds_of(self, measured: Measured) -> int:
        return self.slow_rounds if measured.slow else self.rounds


FULL = Effort(rounds=8, slow_rounds=3, budget_s=0.15)
QUICK = Effort(rounds=2, slow_rounds=1, budget_s=0.03)
ONCE = Effort(rounds=1, slow_rounds=1, budget_s=0.01)


@dataclass
class Samples:
    """The figures of one operation's rounds; ``note``: why rounds are missing."""

    rounds: list[dict[str, float]]
    note: str = ""

    def figure(self, name: str) -> float | None:
        return median([figures[name] for figures in self.rounds]) if self.rounds else None


class Workers:
    """The worker processes of a run; each starts at its first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[tuple[str, bool, bool], Process] = {}
        self._absent: dict[tuple[str, bool, bool], str] = {}

    def measure(self, measured: Measured, budget_s: float) -> dict[str, float] | str:
        """Measure one round: the figures, or the reason why there are none."""
        if measured.worker in self._absent:
            return self._absent[measured.worker]
        try:
            worker = self._running.get(measured.worker) or self._started(measured)
            if worker is None:
                return self._absent[measured.worker]
            request = {"operation": measured.operation, "parameters": dict(measured.parameters)}
            worker.send({**request, "budget_s": budget_s})
            answer = worker.receive(ROUND_SECONDS)
        except ProcessFailed as failure:
            self._absent[measured.worker] = str(failure)
            return str(failure)
        return answer.get("figures") or answer["error"]

    def stop(self) -> None:
        for worker in self._running.values():
            worker.stop()

    def _started(self, measured: Measured) -> Process | None:
        shared, other = cores()
        place = ["--server-core", str(shared), "--folder", str(self._folder)]
        hidden = ["--hide-numpy"] if measured.hide_numpy else []
        worker = Process(
            ["-m", "benchmarks.worker", "--subject", measured.subject, *place, *hidden],
            core=other if measured.apart else shared,
            log=self._folder / f"{measured.subject}.worker.log",
            hide_numpy=measured.hide_numpy,
            plain=measured.plain,
        )
        self._running[measured.worker] = worker
        answer = worker.receive()
        if "missing" in answer:
            self._absent[measured.worker] = f"{answer['missing']} is not installed"
        elif "error" in answer:
            self._absent[measured.worker] = answer["error"]
        return None if measured.worker in self._absent else worker


class Harness:
    """Runs cases with a given effort; calls ``progress`` with a short text for each case."""

    def __init__(self, workers: Workers, effort: Effort, progress: Callable[[str], None]) -> None:
        self._workers = workers
        self._effort = effort
        self._progress = progress

    def run(self, cases: Sequence[Case]) -> Iterator[Row]:
        """The rows of the cases, in their order."""
        for number, case in enumerate(cases, 1):
            self._progress(f"{number}/{len(cases)} {case.name}")
            yield from rows(case, self.figures(case))

    def figures(self, case: Case) -> dict[Measured, Samples]:
        """Measure all subjects of a case, one round each in turn."""
        found = {measured: Samples([]) for measured in case.everything}
        for number in range(self._effort.rounds):
            for measured, samples in found.items():
                if samples.note or number >= self._effort.rounds_of(measured):
                    continue
                answer = self._workers.measure(measured, self._effort.budget_s)
                if isinstance(answer, str):
                    samples.note = answer
                else:
                    samples.rounds.append(answer)
        return found


def rows(case: Case, found: dict[Measured, Samples]) -> Iterator[Row]:
    """A row for each reading and peer of a case."""
    for reading in case.readings:
        for peer, parts in case.peers.items():
            yield Row(
                case=case.name,
                what=reading.what,
                peer=peer,
                unit=reading.unit,
                ours=found[case.ours].figure(reading.figure),
                theirs=summed(reading, [found[part] for part in parts]),
                goal=reading.goals.get(peer),
                notes=notes(found, (case.ours, *parts)),
            )


def notes(found: dict[Measured, Samples], measured: Sequence[Measured]) -> tuple[str, ...]:
    """Why figures are missing, with the subjects' names."""
    texts = (f"{one.subject}: {found[one].note}" for one in measured if found[one].note)
    return tuple(dict.fromkeys(texts))


def summed(reading: Reading, parts: Sequence[Samples]) -> float | None:
    """The sum of the parts' medians; None if one of them has none."""
    figures = [part.figure(reading.figure) for part in parts]
    return None if None in figures else sum(figure for figure in figures if figure is not None)


def cores() -> tuple[int, int]:
    """The core of both ends, and the core of all other processes; the same core if there is only one."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return allowed[-1], allowed[0]


@contextmanager
def harness(effort: Effort, progress: Callable[[str], None], folder: Path) -> Iterator[Harness]:
    """A harness; its workers are stopped at the end of the context."""
    workers = Workers(folder)
    try:
        yield Harness(workers, effort, progress)
    finally:
        workers.stop()


@contextmanager
def run_folder() -> Iterator[Path]:
    """A temporary folder for logs and models."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-benchmarks-") as name:
        folder = Path(name)
        try:
            models.write_squeezenet(folder)
        except (ImportError, RpcsysError):
            pass  # the inference case reports the missing model
        yield folder
