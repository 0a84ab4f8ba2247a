"""A network in two parallel stages, compared with the same stages in turn and with the whole network in onnxruntime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnxruntime

from benchmarks.models import model_input, written_resnet50
from benchmarks.peers.ours import KEY, start_lab
from benchmarks.peers.subject import Subject, Trial
from rpcsys import graph

#: A tensor in the middle of ResNet-50's work: both stages need about the same time.
CUT = "r89"
FRAMES = 30
#: Frames that do not count: the pipeline fills.
WARM_FRAMES = 6


class Pace(Trial):
    """The seconds between two results in a stream of frames, and the stages' shares of the work.

    ``least_share``: the smallest stage's time, divided by an even share of the stages' time.
    """

    def __init__(self, results: Callable[[Sequence[Any]], Iterable[Any]], works: Callable[[], Sequence[float]]) -> None:
        super().__init__(lambda: None)
        self._results = results
        self._works = works

    def measure(self, budget_s: float) -> dict[str, float]:
        before = self._works()
        begin = 0.0
        for number, _ in enumerate(self._results([model_input()] * (WARM_FRAMES + FRAMES)), 1):
            if number == WARM_FRAMES:
                begin = time.perf_counter()
        seconds = (time.perf_counter() - begin) / FRAMES
        works = [after - was for after, was in zip(self._works(), before, strict=True)]
        return {"seconds": seconds, "least_share": min(works) * len(works) / sum(works)}


class InTurn:
    """Runs functions in turn and times each."""

    def __init__(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        self._functions = functions
        self.works = [0.0] * len(functions)

    def __call__(self, frames: Sequence[Any]) -> Iterator[Any]:
        for value in frames:
            for place, function in enumerate(self._functions):
                begin = time.perf_counter()
                value = function(value)
                self.works[place] += time.perf_counter() - begin
            yield value


class Alone(Trial):
    """The time of the slowest function; each runs alone on the output of the one before it."""

    def __init__(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        super().__init__(lambda: None)
        self._functions = functions

    def measure(self, budget_s: float) -> dict[str, float]:
        value, slowest = model_input(), 0.0
        for function in self._functions:
            made = [function(value) for _ in range(WARM_FRAMES)][-1]
            begin = time.perf_counter()
            for _ in range(FRAMES):
                function(value)
            slowest = max(slowest, (time.perf_counter() - begin) / FRAMES)
            value = made
        return {"seconds": slowest}


class Pipelines(Subject):
    """All stages run in this process on all CPUs, except for a stage on a device."""

    def start(self) -> None:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        self._held: dict[str, Any] = {}
        self._tracker = start_lab(self)

    def stop(self) -> None:
        for held in self._held.values():
            if hasattr(held, "close"):
                held.close()
        super().stop()

    @contextmanager
    def side_by_side(self, path: str) -> Iterator[Trial]:
        """A pipeline with its defaults."""
        yield self._pace(self._once("pipeline", lambda: graph.Pipeline(_stages(path))))

    @contextmanager
    def on_a_device(self, path: str) -> Iterator[Trial]:
        """The second stage on a leased device: a server on this machine with its own CPU."""
        device = graph.Leased(KEY, ("127.0.0.1", self._tracker))
        here = sorted(os.sched_getaffinity(0) - {self.place.server_core}) or [self.place.server_core]

        def made() -> graph.Pipeline:
            return graph.Pipeline(_stages(path), {"stage1": device}, cpus={"stage0": here[:1]})

        yield self._pace(self._once("with a device", made))

    @contextmanager
    def in_turn(self, path: str) -> Iterator[Trial]:
        """The same stages in turn, with one thread each."""
        runs = InTurn(self._functions(path))
        yield Pace(runs, lambda: list(runs.works))

    @contextmanager
    def slowest_alone(self, path: str) -> Iterator[Trial]:
        """The slowest stage alone: the bound of any pipeline of these stages."""
        yield Alone(self._functions(path))

    @contextmanager
    def whole(self, path: str) -> Iterator[Trial]:
        """The whole network in onnxruntime with its defaults: one thread per CPU."""

        def made() -> onnxruntime.InferenceSession:
            return onnxruntime.InferenceSession(str(written_resnet50(path)), providers=["CPUExecutionProvider"])

        session = self._once("whole", made)
        name = session.get_inputs()[0].name
        runs = InTurn([lambda frame: session.run(None, {name: frame})])
        yield Pace(runs, lambda: list(runs.works))

    def _pace(self, pipeline: graph.Pipeline) -> Trial:
        return Pace(pipeline.run, lambda: [each.active_s for each in pipeline.figures().values()])

    def _functions(self, path: str) -> list[Any]:
        return self._once(
            "functions", lambda: [graph.build(stage, graph.OnnxRuntime(threads=1)) for stage in _stages(path)]
        )

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._held:
            self._held[name] = make()
        return self._held[name]


def _stages(path: str) -> graph.Stages:
    return graph.split(written_resnet50(path), [CUT])
