"""Searches for the best division: propose, try the stages on their devices, learn, propose again.

First each device gets an equal share of the profiled time, so that each is measured once. Unlike devices then exchange
shares, since a device may be fast at some nodes only. Then the cost model proposes a division (`optimum.best`), whose
stages are built, loaded and timed. The search ends when no better division is proposed; the best measured one wins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from rpcsys.graph._build.segments import segments
from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.stage import Stages
from rpcsys.graph._ir.tensor_info import TensorInfo
from rpcsys.graph._plan import optimum
from rpcsys.graph._plan.bench import BoardBench, ChipBench, LocalBench, RemoteBench, TimedCall, Trial, paces
from rpcsys.graph._plan.cost_model import Board, DeviceLink, Goal, Span, traffic
from rpcsys.graph._plan.costs import Costs
from rpcsys.graph._plan.cut_points import CutPoints
from rpcsys.graph._plan.devices import PlanDevice
from rpcsys.graph._plan.plan import Plan, PlannedStage, whole_calls

_WORTH = 0.01  # a proposal is tried only if it promises a gain of more than this share over the best measured

Report = Callable[[str], object]
Bench: TypeAlias = LocalBench | RemoteBench | ChipBench


class TriedDivision(NamedTuple):
    """A division, and the measured times of its stages, and of its calls to several stages."""

    spans: Sequence[Span]
    stages: Stages
    planned: Sequence[PlannedStage]
    calls: Sequence[PlannedStage] = ()


@dataclass
class Search:
    """A search over ``devices``; ``benches`` has the bench of each at the same index."""

    model: ir.Model
    points: CutPoints
    devices: Sequence[PlanDevice]
    benches: Sequence[Bench]
    inputs: Mapping[str, Any]
    goal: Goal
    exact: bool
    measure_s: float
    say: Report

    def __post_init__(self) -> None:
        seconds = self.points.seconds
        crossing = traffic(self.points.tensors.values(), len(seconds))
        members: dict[BoardBench, list[int]] = {}
        for number, bench in enumerate(self.benches):
            if isinstance(bench, ChipBench):
                members.setdefault(bench.board, []).append(number)
        boards = [Board(tuple(chips), board.link) for board, chips in members.items()]
        self._costs = Costs(seconds, [bench.link for bench in self.benches], crossing, boards)

    def run(self, rounds: int, keep_order: bool) -> TriedDivision:
        """The best division after at most ``rounds`` trials."""
        kinds = [device.kind for device in self.devices]
        alike = None if keep_order else [kinds.index(kind) for kind in kinds]
        best = self._try_even_shares(len(set(kinds)) > 1, keep_order)
        for _ in range(rounds - 1):
            matrices = [self._costs.matrix(number) for number in range(len(self.devices))]
            chains = self._costs.chains(self.goal, keep_order=keep_order)
            spans = optimum.best(matrices, self.goal, alike, chains=chains)
            promised = self._objective(self._costs.calls_s(spans))
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
        planned, calls = tuple(best.planned), tuple(best.calls)
        return Plan(self.goal, cuts, best.stages, planned, tuple(used), unused, calls=calls)

    def _objective(self, seconds: Sequence[float]) -> float:
        return max(seconds) if self.goal == "throughput" else sum(seconds)

    def _measured(self, tried: TriedDivision) -> float:
        return self._objective([call.stage_s for call in whole_calls(tried.planned, tried.calls)])

    def _cuts(self, spans: Sequence[Span]) -> list[tuple[str, ...]]:
        return [self.points.cuts[span.start - 1] for span in spans[1:]]

    def _try(self, spans: Sequence[Span]) -> TriedDivision:
        """Build the stages, load each on its device, time them, and add the times to the costs."""
        devices = [self.devices[span.device].name for span in spans]
        self.say(f"trying {len(spans)} stage(s) on {', '.join(devices)}")
        stages = split(self.model, self._cuts(spans), exact=self.exact)
        on = dict(zip((stage.name for stage in stages), spans, strict=True))
        calls = list(self._loaded(stages, on))
        timed = [
            TimedCall(functools.partial(call.trial.call, *call.args), call.link.calls if call.link else 1)
            for call in calls
        ]
        pace_s = paces(timed, self.measure_s, together=self.goal == "throughput")
        rows: dict[str, PlannedStage] = {}
        wholes = []
        for call, pace in zip(calls, pace_s, strict=True):
            inside, whole = self._planned(call, pace)
            rows.update((row.name, row) for row in inside)
            wholes += whole
        return TriedDivision(spans, stages, [rows[stage.name] for stage in stages], wholes)

    def _loaded(self, stages: Stages, on: Mapping[str, Span]) -> Iterator[_Call]:
        """Load the calls of a division; each is called once, which makes the arguments of those behind it."""
        values = dict(self.inputs)
        boards = {name: bench.board for name in on if isinstance(bench := self._bench(on[name]), ChipBench)}
        for names in segments({stage.name: stage.needs for stage in stages}, boards):
            part = [stages[name] for name in names]
            spans = [on[name] for name in names]
            works, args, trial = [], [], None
            for stage in part:
                trial = self._bench(on[stage.name]).load(stage)
                args = [values[tensor.name] for tensor in stage.inputs if tensor.required]
                values.update(_results(stage.outputs, trial.call(*args)))
                if names[0] in boards and trial.work_s is not None:
                    works.append(trial.work_s(args))
            there = stages.part(part)
            if len(part) > 1:
                trial = None  # its stage is freed before all are loaded again
                places = {name: self.devices[on[name].device] for name in names}
                trial = boards[names[0]].load(there, places)
                args = [values[tensor.name] for tensor in there.inputs if tensor.required]
            link = boards[names[0]].link if names[0] in boards else self._bench(spans[0]).link
            given = _size([values[tensor.name] for tensor in there.outputs])
            assert trial is not None, "a call has a stage"
            yield _Call(names, spans, trial, args, given, link, works)

    def _bench(self, span: Span) -> Bench:
        return self.benches[span.device]

    def _planned(self, call: _Call, pace_s: float) -> tuple[list[PlannedStage], list[PlannedStage]]:
        """The expected times of a call's stages, and of the call as a whole if it has several; it learns them."""
        if not call.works:
            (span,), (name,) = call.spans, call.names
            work = pace_s if call.trial.work_s is None else call.trial.work_s(call.args)
            self._costs.learn(span, work, pace_s)
            return [self._row(call, name, self.devices[span.device].name, work, pace_s)], []
        inside = []
        for name, span, work in zip(call.names, call.spans, call.works, strict=True):
            taken, given = (int(each[span.start, span.stop]) for each in self._costs.traffic)
            way = self._bench(span).link
            turn = work + (way.seconds(taken, given) if way is not None else 0.0)
            self._costs.learn(span, work, turn)
            nodes = sum(self.points.nodes[span.start : span.stop])
            inside.append(PlannedStage(name, self.devices[span.device].name, nodes, work, turn, turn, taken, given))
        self._costs.learn_call(call.spans, pace_s)
        work = sum(stage.frame_s for stage in inside)
        if len(inside) == 1:
            return [self._row(call, inside[0].name, inside[0].device, work, pace_s)], []
        whole = self._row(call, "+".join(call.names), self.devices[call.spans[0].device].board, work, pace_s)
        return [replace(stage, call=whole.name) for stage in inside], [whole]

    def _row(self, call: _Call, name: str, device: str, work_s: float, pace_s: float) -> PlannedStage:
        """The expected times of a whole call."""
        first, last = call.spans[0], call.spans[-1]
        takes, gives, frame_s = _size(call.args), call.given, pace_s
        if call.link is not None:  # arrays cross encoded
            takes, gives = (int(each[first.start, last.stop]) for each in self._costs.traffic)
            if call.link.calls > 1:
                frame_s = work_s + call.link.seconds(takes, gives)
        nodes = sum(sum(self.points.nodes[span.start : span.stop]) for span in call.spans)
        return PlannedStage(name, device, nodes, work_s, frame_s, pace_s, takes, gives)


class _Call(NamedTuple):
    """One call of a division, ready to be timed: a stage, or neighbours on one board."""

    names: Sequence[str]
    spans: Sequence[Span]
    trial: Trial
    args: Sequence[Any]
    given: int  # bytes of its results
    link: DeviceLink | None  # to the machine that it goes to
    works: Sequence[float]  # seconds of each stage on its chip; empty for a stage that is on none


def _results(outputs: Sequence[TensorInfo], made: Any) -> dict[str, Any]:
    """The results of a call by name."""
    results = list(made) if len(outputs) != 1 else [made]
    return dict(zip([tensor.name for tensor in outputs], results, strict=True))


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
