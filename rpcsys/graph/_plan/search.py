"""The search for the best division: propose, try the stages on their devices, learn, propose again.

At first each device gets an even share by the profile, so that each is measured once; unlike devices take turns, for
one may be quick at what another is slow at. From then on the cost model proposes (`optimum.best`); what is proposed
is built, loaded and timed where it is to run. It ends when nothing better is proposed, and the best division that was
really measured wins: what a plan promises has been seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._plan import optimum
from rpcsys.graph._plan.bench import LocalBench, RemoteBench, Trial
from rpcsys.graph._plan.cost_model import Costs, Goal, Span, traffic
from rpcsys.graph._plan.cut_points import CutPoints
from rpcsys.graph._plan.devices import PlanDevice
from rpcsys.graph._plan.measure import TimedCall, paces
from rpcsys.graph._plan.plan import Plan, PlannedStage

#: A proposal that promises less than this share over the best that was measured is not worth a try.
_WORTH = 0.01

Said = Callable[[str], None]


@dataclass(frozen=True)
class TriedDivision:
    """A division, and what its stages took."""

    spans: Sequence[Span]
    stages: Stages
    trials: Sequence[Trial]
    args: Sequence[Sequence[Any]]
    taken: Sequence[int]
    given: Sequence[int]
    work_s: Sequence[float]
    stage_s: Sequence[float]


class Search:
    def __init__(
        self,
        model: ir.Model,
        points: CutPoints,
        devices: Sequence[PlanDevice],
        benches: Sequence[LocalBench | RemoteBench],
        inputs: Mapping[str, Any],
        goal: Goal,
        exact: bool,
        measure_s: float,
        say: Said,
    ) -> None:
        self._model = model
        self._points = points
        self._devices = devices
        self._benches = benches
        self._inputs = inputs
        self._goal: Goal = goal
        self._exact = exact
        self._measure_s = measure_s
        self._say = say
        links = [bench.link for bench in benches]
        self._costs = Costs(points.seconds, links, traffic(points.tensors, len(points.seconds)))

    def run(self, rounds: int, keep_order: bool) -> TriedDivision:
        """The best division of at most so many that are tried."""
        kinds = [device.kind for device in self._devices]
        alike = None if keep_order else [kinds.index(kind) for kind in kinds]
        best = self._try_even_shares(len(set(kinds)) > 1, keep_order)
        for _ in range(rounds - 1):
            matrices = [self._costs.matrix(number) for number in range(len(self._devices))]
            spans = optimum.best(matrices, self._goal, alike)
            promised = self._objective([self._costs.stage_s(span) for span in spans])
            if promised > (1 - _WORTH) * self._objective(best.stage_s):
                break
            best = self._better(best, self._try(spans))
        return best

    def _try_even_shares(self, unlike: bool, keep_order: bool) -> TriedDivision:
        """Try even shares; where devices are unlike, in turns, until each has had every share."""
        count = len(self._devices)
        shares = optimum.even(self._points.seconds, count)
        best = self._try(shares)
        for turn in range(1, count if unlike else 1):
            turned = [Span((span.device + turn) % count, span.start, span.stop) for span in shares]
            tried = self._try(turned)
            best = best if keep_order else self._better(best, tried)
        return best

    def _better(self, one: TriedDivision, other: TriedDivision) -> TriedDivision:
        return min(one, other, key=lambda each: self._objective(each.stage_s))

    def plan(self, best: TriedDivision) -> Plan:
        """The plan that the division is."""
        used = [self._devices[span.device] for span in best.spans]
        return Plan(
            self._goal,
            tuple(_short(cut) for cut in self._cuts(best.spans)),
            best.stages,
            tuple(self._planned(best, place) for place in range(len(best.spans))),
            tuple(used),
            tuple(device.name for device in self._devices if device not in used),
        )

    def _planned(self, tried: TriedDivision, place: int) -> PlannedStage:
        span, link = tried.spans[place], self._benches[tried.spans[place].device].link
        work_s, stage_s = tried.work_s[place], tried.stage_s[place]
        taken, given = tried.taken[place], tried.given[place]
        return PlannedStage(
            tried.stages[place].name,
            self._devices[span.device].name,
            sum(self._points.nodes[span.start : span.stop]),
            work_s,
            stage_s if link is None or link.calls == 1 else work_s + link.seconds(taken, given),
            stage_s,
            taken,
            given,
        )

    def _objective(self, seconds: Sequence[float]) -> float:
        """What the search makes small, of the seconds of all stages."""
        return max(seconds) if self._goal == "throughput" else sum(seconds)

    def _cuts(self, spans: Sequence[Span]) -> list[tuple[str, ...]]:
        return [self._points.cuts[span.start - 1] for span in spans[1:]]

    def _try(self, spans: Sequence[Span]) -> TriedDivision:
        """Build the stages, load each on its device, and time them; what is learned goes into the costs."""
        names = [self._devices[span.device].name for span in spans]
        self._say(f"trying {len(spans)} stage(s) on {', '.join(names)}")
        stages = split(self._model, self._cuts(spans), exact=self._exact)
        trials = [self._benches[span.device].load(stage) for span, stage in zip(spans, stages, strict=True)]
        args, given = self._run_through(stages, trials)
        links = [self._benches[span.device].link for span in spans]
        calls = [
            TimedCall(functools.partial(trial.call, *each), link.calls if link is not None else 1)
            for trial, each, link in zip(trials, args, links, strict=True)
        ]
        stage_s = paces(calls, self._measure_s, together=self._goal == "throughput")
        work_s = [
            trial.work_s(each) if trial.work_s is not None else whole
            for trial, each, whole in zip(trials, args, stage_s, strict=True)
        ]
        for span, work, whole in zip(spans, work_s, stage_s, strict=True):
            self._costs.learn(span, work, whole)
        taken = [_size(each) for each in args]
        traffic = self._costs.traffic
        for place, (span, link) in enumerate(zip(spans, links, strict=True)):
            if link is not None:  # there they cross encoded
                taken[place] = int(traffic.taken[span.start, span.stop])
                given[place] = int(traffic.given[span.start, span.stop])
        return TriedDivision(spans, stages, trials, args, taken, given, work_s, stage_s)

    def _run_through(self, stages: Stages, trials: Sequence[Trial]) -> tuple[list[list[Any]], list[int]]:
        """Each stage's arguments, as the stages before it made them; and the bytes that each gives."""
        values = dict(self._inputs)
        args, given = [], []
        for stage, trial in zip(stages, trials, strict=True):
            args.append([values[tensor.name] for tensor in stage.inputs if tensor.required])
            made = trial.call(*args[-1])
            results = list(made) if len(stage.outputs) != 1 else [made]
            values.update(zip([tensor.name for tensor in stage.outputs], results, strict=True))
            given.append(_size(results))
        return args, given


def _size(values: Sequence[Any]) -> int:
    """Bytes of the tensors among them, and in lists among them."""
    total = 0
    for value in values:
        if isinstance(value, list):
            total += _size(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "O":  # strings
            total += sum(len(str(text).encode()) for text in value.flat)
        else:
            total += int(getattr(value, "nbytes", 0))
    return total


def _short(cut: tuple[str, ...]) -> str | tuple[str, ...]:
    return cut[0] if len(cut) == 1 else cut
