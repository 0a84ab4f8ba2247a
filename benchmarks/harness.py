"""Measures the subjects of a case in turn, round after round, and makes rows of what they say.

The rules of a fair comparison, and where they are kept:

- Interleaved: A B C, A B C, …; so a machine that drifts drifts for all (:meth:`Harness.figures`).
- A round has a connection of its own, and counts by the median of its runs; a figure is the median over
  the rounds (``peers/subject.py``, :func:`summed`).
- Both ends of a subject share one core, so that no figure contains a wake-up across cores; this process
  sleeps meanwhile, on another core (:func:`cores`).
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

ROUND_SECONDS = 60.0  # one round is a fraction of a second; a busy machine and a slow peer need more


@dataclass(frozen=True)
class Effort:
    """How much time a run may take: rounds for each subject, and seconds for each round."""

    rounds: int
    slow_rounds: int
    budget_s: float

    def rounds_of(self, measured: Measured) -> int:
        return self.slow_rounds if measured.slow else self.rounds


FULL = Effort(rounds=8, slow_rounds=3, budget_s=0.15)
QUICK = Effort(rounds=2, slow_rounds=1, budget_s=0.03)


@dataclass
class Samples:
    """What the rounds of one operation gave; ``note`` says why there is nothing, or less."""

    rounds: list[dict[str, float]]
    note: str = ""

    def figure(self, name: str) -> float | None:
        return median([figures[name] for figures in self.rounds]) if self.rounds else None


class Workers:
    """The worker processes of a run, each started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[tuple[str, bool, bool], Process] = {}
        self._absent: dict[tuple[str, bool, bool], str] = {}

    def measure(self, measured: Measured, budget_s: float) -> dict[str, float] | str:
        """One round: the figures, or why there are none."""
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
        )
        self._running[measured.worker] = worker
        answer = worker.receive()
        if "missing" in answer:
            self._absent[measured.worker] = f"{answer['missing']} is not installed"
        elif "error" in answer:
            self._absent[measured.worker] = answer["error"]
        return None if measured.worker in self._absent else worker


class Harness:
    """Runs cases with a given effort. ``progress`` is told, in a few words, what is under way."""

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
        """Measure all subjects of a case, one round of each in turn."""
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
    """Why figures are missing, each subject named."""
    said = (f"{one.subject}: {found[one].note}" for one in measured if found[one].note)
    return tuple(dict.fromkeys(said))


def summed(reading: Reading, parts: Sequence[Samples]) -> float | None:
    """The sum of the parts' medians; None if one of them has none."""
    figures = [part.figure(reading.figure) for part in parts]
    return None if None in figures else sum(figure for figure in figures if figure is not None)


def cores() -> tuple[int, int]:
    """The core both ends share, and one for everything else; the same one where there is but one."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return allowed[-1], allowed[0]


@contextmanager
def harness(effort: Effort, progress: Callable[[str], None], folder: Path) -> Iterator[Harness]:
    """A harness whose workers are gone when the context ends."""
    workers = Workers(folder)
    try:
        yield Harness(workers, effort, progress)
    finally:
        workers.stop()


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder for logs and the model, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-benchmarks-") as name:
        folder = Path(name)
        try:
            models.write_squeezenet(folder)
        except (ImportError, RpcsysError):
            pass  # then the inference case says that its model is not there
        yield folder
