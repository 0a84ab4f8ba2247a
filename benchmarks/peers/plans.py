"""The planner's cuts: the expected time of the slowest stage, and the measured one in a pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.models import model_input, written_resnet50
from benchmarks.peers.subject import Subject, Trial
from rpcsys import graph

FRAMES = 60
WARM_FRAMES = 6


class Figure(Trial):
    """A trial that calls ``seconds`` once per round and takes its result as the figure."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        super().__init__(seconds)
        self._seconds = seconds

    def measure(self, budget_s: float) -> dict[str, float]:
        return {"seconds": self._seconds()}


class Plans(Subject):
    """Two stages of a network with one CPU each; this process may use all CPUs."""

    def start(self) -> None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        self._plan: graph.Plan | None = None

    @contextmanager
    def expected(self, path: str) -> Iterator[Trial]:
        """The slowest stage of a new plan."""
        model = written_resnet50(path)

        def plan() -> float:
            self._plan = graph.auto_cuts(model, 2)
            return self._plan.bottleneck.stage_s

        yield Figure(plan)

    @contextmanager
    def measured(self, path: str) -> Iterator[Trial]:
        """The slowest stage of a pipeline of the last plan."""
        plan = self._plan
        if plan is None:
            raise ValueError(f"no plan of {path} was made")

        def run() -> float:
            frame = model_input()
            with plan.pipeline() as pipeline:
                for _ in pipeline.run([frame] * WARM_FRAMES):
                    pass
                before = pipeline.figures()
                for _ in pipeline.run([frame] * FRAMES):
                    pass
                after = pipeline.figures()
            return max((after[name].busy_s - before[name].busy_s) / FRAMES for name in after)

        yield Figure(run)
