"""Searches for the best division: propose, try the stages on their devices, learn, propose again.

First each device gets an equal share of the profiled time, so that each is measured once. Unlike devices then exchange
shares, since a device may be fast at some nodes only. Then the cost model proposes a division (`optimum.best`), whose
stages are built, loaded and timed. The search ends when no better division is proposed; the best measured one wins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._plan import optimum
from rpcsys.graph._plan.bench import LocalBench, RemoteBench, TimedCall, Trial, paces
from rpcsys.graph._plan.cost_model import Goal, Span, traffic
from rpcsys.graph._plan.costs import Costs
from rpcsys.graph._plan.cut_points import CutPoints
from rpcsys.graph._plan.devices import PlanDevice
from rpcsys.graph._plan.plan import Plan, PlannedStage

_WORTH = 0.01  # a proposal is tried only if it promises a gain of more than this share over the best measured

Report = Callable[[str], None]


class TriedDivision(NamedTuple):
    """A division, and the measured times of its stages."""

    spans: Sequence[Span]
    stages: Stages
    planned: Sequence[PlannedStage]


@dataclass
class Search:
    """A search over ``devices``; ``benches`` has the bench of each at the same index."""

    model: ir.Model
    points: CutPoints
    devices: Sequence[PlanDevice]
    benches: Sequence[LocalBench | RemoteBench]
    inputs: Mapping[str, Any]
    goal: Goal
    exact: bool
    measure_s: float
    say: Report

    def __post_init__(self) -> None:
        seconds = self.points.seconds
        crossing = traffic(self.points.tensors.values(), len(seconds))
        self._costs = Costs(seconds, [bench.link for bench in self.benches], crossing)

    def run(self, rounds: int, keep_order: bool) -> TriedDivision:
        """The best division after at most ``rounds`` trials."""
        kinds = [device.kind for device in self.devices]
        alike = None if keep_order else [kinds.index(kind) for kind in kinds]
        best = self._try_even_shares(len(set(kinds)) > 1, keep_order)
        for _ in range(rounds - 1):
            matrices = [self._costs.matrix(number) for number in range(len(self.devices))]
            spans = optimum.best(matrices, self.goal, alike)
            promised = self._objective([self._costs.stage_s(span) for span in spans])
            if promised > (1 - _WORTH) * self._measured(best):
                break
            best = min(best, self._try(spans), key=self._measured)
        return best

    def _try_even_shares(self, unlike: bool, keep_order: bool) -> TriedDivision:
        """Try equal shares; exchange them between unlike devices, until each device has had every share."""
        count = len(self.devices)
        shares = optimum.even(self.points.seconds, count)
        best = self._try(shares)
        for turn in range(1, count if unlike else 1):
            tried = self._try([Span((span.device + turn) % count, span.start, span.stop) for span in shares])
            best = best if keep_order else min(best, tried, key=self._measured)
        return best

    def plan(self, best: TriedDivision) -> Plan:
        """The plan for a division."""
        used = [self.devices[span.device] for span in best.spans]
        cuts = tuple(cut[0] if len(cut) == 1 else cut for cut in self._cuts(best.spans))
        unused = tuple(device.name for device in self.devices if device not in used)
        return Plan(self.goal, cuts, best.stages, tuple(best.planned), tuple(used), unused)

    def _objective(self, seconds: Sequence[float]) -> float:
        return max(seconds) if self.goal == "throughput" else sum(seconds)

    def _measured(self, tried: TriedDivision) -> float:
        return self._objective([stage.stage_s for stage in tried.planned])

    def _cuts(self, spans: Sequence[Span]) -> list[tuple[str, ...]]:
        return [self.points.cuts[span.start - 1] for span in spans[1:]]

    def _try(self, spans: Sequence[Span]) -> TriedDivision:
        """Build the stages, load each on its device, time them, and add the times to the costs."""
        devices = [self.devices[span.device].name for span in spans]
        self.say(f"trying {len(spans)} stage(s) on {', '.join(devices)}")
        stages = split(self.model, self._cuts(spans), exact=self.exact)
        trials = [self.benches[span.device].load(stage) for span, stage in zip(spans, stages, strict=True)]
        args, given = self._run_through(stages, trials)
        links = [self.benches[span.device].link for span in spans]
        functions = [functools.partial(trial.call, *each) for trial, each in zip(trials, args, strict=True)]
        calls = [
            TimedCall(*each) for each in zip(functions, [link.calls if link else 1 for link in links], strict=True)
        ]
        stage_s = paces(calls, self.measure_s, together=self.goal == "throughput")
        planned = []
        for place, (span, trial, link) in enumerate(zip(spans, trials, links, strict=True)):
            whole = frame_s = stage_s[place]
            work = whole if trial.work_s is None else trial.work_s(args[place])
            self._costs.learn(span, work, whole)
            takes, gives = _size(args[place]), given[place]
            if link is not None:  # arrays cross encoded
                crossing = self._costs.traffic
                takes, gives = int(crossing.taken[span.start, span.stop]), int(crossing.given[span.start, span.stop])
                if link.calls > 1:
                    frame_s = work + link.seconds(takes, gives)
            nodes = sum(self.points.nodes[span.start : span.stop])
            planned.append(PlannedStage(stages[place].name, devices[place], nodes, work, frame_s, whole, takes, gives))
        return TriedDivision(spans, stages, planned)

    def _run_through(self, stages: Stages, trials: Sequence[Trial]) -> tuple[list[list[Any]], list[int]]:
        """The arguments of each stage, made by the stages before it; and the bytes that each stage returns."""
        values = dict(self.inputs)
        args, given = [], []
        for stage, trial in zip(stages, trials, strict=True):
            args.append([values[tensor.name] for tensor in stage.inputs if tensor.required])
            made = trial.call(*args[-1])
            results = list(made) if len(stage.outputs) != 1 else [made]
            values.update(zip([tensor.name for tensor in stage.outputs], results, strict=True))
            given.append(_size(results))
        return args, given


def _size(values: Sequence[Any]) -> int:
    """Bytes of the tensors in ``values`` and in lists among them."""
    total = 0
    for value in values:
        if isinstance(value, list):
            total += _size(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "O":  # strings
            total += sum(len(str(text).encode()) for text in value.flat)
        else:
            total += int(getattr(value, "nbytes", 0))
    return total
