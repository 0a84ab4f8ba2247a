"""Profiles of graphs: each stage by its own runtime, or as a whole where that tells no times of operators."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Sequence, Tuple

from rpcsys.errors import ProfileNotSupported
from rpcsys.module.module import Function, Module
from rpcsys.module.profiler import OperatorRun, Profiler


class ProfiledStage:
    """A stage ``name`` that calls ``function``, which is that of the name ``called`` in a module."""

    def __init__(self, name: str, module: Module, called: str, function: Function, folder: str) -> None:
        self._name = name
        self._kind = module.kind
        self._spans: List[Tuple[float, float, int]] = []  # begin and end of each call, and its thread
        self._function = function
        self._runs: Callable[[int], List[List[OperatorRun]]] = self._whole
        try:
            profiler = module.profiler(called, folder)
        except ProfileNotSupported:
            return
        self._function, self._runs = profiler.call, profiler.runs

    def __call__(self, *args: Any) -> Any:
        began = time.perf_counter()
        result = self._function(*args)
        self._spans.append((began, time.perf_counter(), threading.get_native_id()))
        return result

    def runs(self, skip: int, began: Sequence[float]) -> List[List[OperatorRun]]:
        """Its operators in each call of the graph behind the first ``skip``; ``began``: when these calls began."""
        calls = []
        for ran, (begin, _, _), start in zip(self._runs(skip), self._spans[skip:], began):
            late = (begin - start) * 1e6
            calls.append([each._replace(name=f"{self._name}: {each.name}", begin=each.begin + late) for each in ran])
        return calls

    def _whole(self, skip: int) -> List[List[OperatorRun]]:
        return [
            [OperatorRun("all of it", self._kind, "", "", thread, 0.0, (end - begin) * 1e6)]
            for begin, end, thread in self._spans[skip:]
        ]


def profiler(stages: Sequence[ProfiledStage], main: Function) -> Profiler:
    """A profiler of the graph whose ``main`` calls these stages, each once."""
    began: List[float] = []

    def call(*args: Any) -> Any:
        began.append(time.perf_counter())
        return main(*args)

    def runs(skip: int) -> List[List[OperatorRun]]:
        of_stages = [stage.runs(skip, began[skip:]) for stage in stages]
        return [[run for ran in calls for run in ran] for calls in zip(*of_stages)]

    return Profiler(f"a graph of {len(stages)} stages", call, runs)
