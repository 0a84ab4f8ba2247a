"""Cuts found by measuring: propose, try the stages on their devices, learn, propose again.

At first each device gets an even share by the profile, so that each is measured once; unlike devices take turns, for one
may be quick at what another is slow at. From then on `planning` proposes; what is proposed is built, loaded and timed
where it is to run. It ends when nothing better is proposed, and the best division that was really measured wins: what a
plan promises has been seen.
"""

from __future__ import annotations

import functools
import warnings as python_warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph import feeds, planning, types
from rpcsys.graph.crossing import encoded_bytes
from rpcsys.graph.cutpoints import Layout, layout
from rpcsys.graph.devices import Device, DeviceLike, Here, There, TrackerLike, Trial, bench, parse, sessions
from rpcsys.graph.flow import Flow, optimised
from rpcsys.graph.planning import Costs, Goal, Span
from rpcsys.graph.plans import Plan, PlannedStage
from rpcsys.graph.profiling import Call, paces, profile
from rpcsys.graph.splitting import split
from rpcsys.graph.stage import Stages
from rpcsys.graph.staging import CALLS
from rpcsys.module.kinds.onnx_model import ModelLike, read
from rpcsys.wire.encoding import steps

GOALS: tuple[Goal, ...] = ("throughput", "latency")
#: A proposal that promises less than this share over the best that was measured is not worth a try.
_WORTH = 0.01

Said = Callable[[str], None]


def auto_cuts(
    model: ModelLike,
    devices: int | Sequence[DeviceLike],
    *,
    goal: Goal = "throughput",
    inputs: Mapping[str, Any] | None = None,
    tracker: TrackerLike = None,
    encode: str = "",
    keep_order: bool = False,
    exact: bool = False,
    rounds: int = 4,
    measure_s: float = 0.5,
    wait_s: float = 60.0,
    say: Said | None = None,
) -> Plan:
    """The best division of ``model`` over ``devices``, found by profiling it and trying its stages on them.

    ``graph.split(model, plan)`` makes the stages, which are also ``plan.stages``; ``print(plan)`` says what to
    expect, and ``plan.compare(pipeline.figures())`` how far off that was.

    ``devices`` : a number n (the CPUs of this process in n shares), or each as ``"cpu:0"``, ``"cpu:0-3"``, ``"key:edge"``
        (leased at ``tracker``), ``"HOST:PORT"``, or a session that is open. Devices that would make it slower are left
        out
    ``goal`` : ``throughput``, the frames a second of a pipeline, or ``latency``, the seconds of one frame
    ``inputs`` : arrays to run it with, by name; by default random ones, in which an extent that is free is 1 (a
        `RuntimeWarning` says so)
    ``tracker`` : a tracker or its address; by default the environment's
    ``encode`` : how arrays cross to devices behind a link and back, where it applies: ``"float16"``, ``"int8+zlib"``, … as
        for `Remote`
    ``keep_order`` : whether the first device has to have the first stage, and so on
    ``exact`` : whether the stages are to give the same bits as the whole, as in `split`
    ``rounds`` : divisions that are tried at most, after the first look at unlike devices
    ``measure_s`` : seconds for which the stages of each are run
    ``wait_s`` : seconds to wait for a device
    ``say`` : is told in a few words what is being done

    Raises
    ------
    UsageError : no such device or goal, a model that computes nothing, inputs that it does not take
    ModelError : onnxruntime cannot load or run it, or a device cannot load its stage
    ConnectError, TrackerError, SessionError : a device cannot be had, or was lost
    """
    if goal not in GOALS:
        raise UsageError(f"a goal is {' or '.join(GOALS)}, not {goal!r}")
    if rounds < 1 or not measure_s > 0:
        raise UsageError("rounds is 1 or more, and measure_s above 0")
    if encode:
        steps(encode)
    wanted = parse(devices)
    say = say or (lambda text: None)
    say("profiling the model")
    flow = Flow(read(model))
    arrays, doubts = _arrays(flow.model, inputs)
    for doubt in doubts:
        python_warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    known = {value.name for node in flow.nodes for value in node.outputs if value.name}
    basic, _ = optimised(flow)
    profiled = profile(basic, arrays)
    if encode and not all(device.cpus for device in wanted):
        say("encoding what may cross")
        profiled = replace(profiled, nbytes=encoded_bytes(basic, profiled.nbytes, arrays, encode))
    found = layout(basic, profiled, known, arrays)
    if not found.seconds:
        raise UsageError("nothing in the model depends on its inputs: there is nothing to divide")
    with ExitStack() as stack:
        say("measuring the way to the devices")
        leased = sessions(wanted, tracker, wait_s, stack)
        calls = CALLS if goal == "throughput" else 1
        benches = [
            bench(device, session, calls, encode) for device, session in zip(wanted, leased, strict=True)
        ]
        search = _Search(flow.model, found, wanted, benches, arrays, goal, exact, measure_s, say)
        best = search.run(rounds, keep_order)
        return replace(search.plan(best), encode=encode, warnings=doubts)


def _arrays(model: ir.Model, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What to run a model with, and what is doubtful about it."""
    wanted = [types.describe(value) for value in model.graph.inputs]
    names = [tensor.name for tensor in wanted if tensor.required]
    if given is not None:
        unknown = sorted(set(given) - {tensor.name for tensor in wanted})
        missing = [name for name in names if name not in given]
        if unknown or missing:
            complaint = f"no input {unknown[0]!r}" if unknown else f"none given for input {missing[0]!r}"
            raise UsageError(f"{complaint}; the model wants {', '.join(names) or 'nothing'}")
        return {name: given[name] for name in names}, ()
    specs = [
        {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}
        for tensor in wanted
        if tensor.required
    ]
    free = [
        f"{tensor.name} is {tensor.text()}"
        for tensor in wanted
        if tensor.required and not all(isinstance(size, int) for size in tensor.shape or ())
    ]
    doubt = f"{'; '.join(free)}: free extents are taken as 1, which is of no use unless they are; give inputs"
    return feeds.random(specs), (doubt,) if free else ()


@dataclass(frozen=True)
class _Tried:
    """A division, and what its stages took."""

    spans: Sequence[Span]
    stages: Stages
    trials: Sequence[Trial]
    args: Sequence[Sequence[Any]]
    taken: Sequence[int]
    given: Sequence[int]
    work_s: Sequence[float]
    stage_s: Sequence[float]


class _Search:
    def __init__(
        self,
        model: ir.Model,
        found: Layout,
        devices: Sequence[Device],
        benches: Sequence[Here | There],
        inputs: Mapping[str, Any],
        goal: Goal,
        exact: bool,
        measure_s: float,
        say: Said,
    ) -> None:
        self._model = model
        self._layout = found
        self._devices = devices
        self._benches = benches
        self._inputs = inputs
        self._goal: Goal = goal
        self._exact = exact
        self._measure_s = measure_s
        self._say = say
        links = [bench.link for bench in benches]
        self._costs = Costs(found.seconds, links, planning.traffic(found.tensors, len(found.seconds)))

    def run(self, rounds: int, keep_order: bool) -> _Tried:
        """The best division of at most so many that are tried."""
        kinds = [device.kind for device in self._devices]
        alike = None if keep_order else [kinds.index(kind) for kind in kinds]
        best = self._survey(len(set(kinds)) > 1, keep_order)
        for _ in range(rounds - 1):
            matrices = [self._costs.matrix(number) for number in range(len(self._devices))]
            spans = planning.best(matrices, self._goal, alike)
            promised = self._sum([self._costs.stage_s(span) for span in spans])
            if promised > (1 - _WORTH) * self._sum(best.stage_s):
                break
            best = self._better(best, self._try(spans))
        return best

    def _survey(self, unlike: bool, keep_order: bool) -> _Tried:
        """Try even shares; where devices are unlike, in turns, until each has had every share."""
        count = len(self._devices)
        shares = planning.even(self._layout.seconds, count)
        best = self._try(shares)
        for turn in range(1, count if unlike else 1):
            turned = [Span((span.device + turn) % count, span.start, span.stop) for span in shares]
            tried = self._try(turned)
            best = best if keep_order else self._better(best, tried)
        return best

    def _better(self, one: _Tried, other: _Tried) -> _Tried:
        return min(one, other, key=lambda each: self._sum(each.stage_s))

    def plan(self, best: _Tried) -> Plan:
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

    def _planned(self, tried: _Tried, place: int) -> PlannedStage:
        span, link = tried.spans[place], self._benches[tried.spans[place].device].link
        work_s, stage_s = tried.work_s[place], tried.stage_s[place]
        taken, given = tried.taken[place], tried.given[place]
        return PlannedStage(
            tried.stages[place].name,
            self._devices[span.device].name,
            sum(self._layout.nodes[span.start : span.stop]),
            work_s,
            stage_s if link is None or link.calls == 1 else work_s + link.seconds(taken, given),
            stage_s,
            taken,
            given,
        )

    def _sum(self, seconds: Sequence[float]) -> float:
        """What is to be small."""
        return max(seconds) if self._goal == "throughput" else sum(seconds)

    def _cuts(self, spans: Sequence[Span]) -> list[tuple[str, ...]]:
        return [self._layout.cuts[span.start - 1] for span in spans[1:]]

    def _try(self, spans: Sequence[Span]) -> _Tried:
        """Build the stages, load each on its device, and time them; what is learned goes into the costs."""
        names = [self._devices[span.device].name for span in spans]
        self._say(f"trying {len(spans)} stage(s) on {', '.join(names)}")
        stages = split(self._model, self._cuts(spans), exact=self._exact)
        trials = [self._benches[span.device].load(stage) for span, stage in zip(spans, stages, strict=True)]
        args, given = self._run_through(stages, trials)
        links = [self._benches[span.device].link for span in spans]
        calls = [
            Call(functools.partial(trial.call, *each), link.calls if link is not None else 1)
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
        return _Tried(spans, stages, trials, args, taken, given, work_s, stage_s)

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
