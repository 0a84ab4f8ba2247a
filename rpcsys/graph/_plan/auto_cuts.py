"""Finds cuts by measuring: profiles the model, measures the links to the devices, and searches."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rpcsys.client import Session
from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.rewriting import optimised
from rpcsys.graph._ir.stage import tensor_spec
from rpcsys.graph._ir.tensor_info import TensorInfo, describe
from rpcsys.graph._pipeline.resolve import CALLS
from rpcsys.graph._plan.bench import BoardBench, open_bench
from rpcsys.graph._plan.cost_model import Goal
from rpcsys.graph._plan.cut_points import CutPoints, cut_points
from rpcsys.graph._plan.devices import (
    DeviceLike,
    PlanDevice,
    TrackerLike,
    open_sessions,
    parse,
    with_targets,
    without_deployments,
)
from rpcsys.graph._plan.plan import Plan
from rpcsys.graph._plan.profile import encoded_bytes, profile
from rpcsys.graph._plan.search import Bench, Report, Search
from rpcsys.graph.samples import random_inputs
from rpcsys.module.kinds.onnx_model import ModelLike, read
from rpcsys.progress import saying
from rpcsys.wire.by_name import not_by_name
from rpcsys.wire.encoding import steps

GOALS: tuple[Goal, ...] = ("throughput", "latency")


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
    say: Report | None = None,
) -> Plan:
    """Find the best division of ``model`` over ``devices``: profile it, then try its stages on them.

    ``graph.split(model, plan)`` makes the stages, which are also ``plan.stages``. ``print(plan)`` shows the expected
    times, and ``plan.compare(pipeline.figures())`` compares them with measured ones.

    ``devices`` : a number n (the CPUs of this process in n shares), or a list of ``"cpu:0"``, ``"cpu:0-3"``,
        ``"key:edge"`` (leased at ``tracker``), ``"HOST:PORT"``, or open sessions; or of devices inside boards,
        ``"edge:opencl:0"``, ``"edge#2:opencl:0"`` for a second board of the key, ``"HOST:PORT/opencl:0"``. Neighbouring
        stages on one board are one call. A device that would slow the model down is left out
    ``goal`` : ``throughput``, frames a second of a pipeline, or ``latency``, seconds of one frame
    ``inputs`` : arrays to run the model with, by name; by default random ones, in which a free extent is 1 (a
        `RuntimeWarning` reports this)
    ``tracker`` : a tracker or its address; by default the environment's
    ``encode`` : how arrays cross to devices behind a link and back, where the encoding applies: ``"float16"``,
        ``"int8+zlib"``, … as for `Remote`
    ``keep_order`` : whether the first device must have the first stage, and so on
    ``exact`` : whether the stages must give the same bits as the whole, as in `split`
    ``rounds`` : the most divisions to try, after the first trials of unlike devices
    ``measure_s`` : seconds for which the stages of each division run
    ``wait_s`` : seconds to wait for a device
    ``say`` : a function that receives a short text at each step; a notebook shows them without one

    Raises `UsageError` for an unknown device or goal, a model without nodes to divide, and inputs that do not fit the
    model; `ModelError` if onnxruntime cannot load or run the model, or a device cannot load its stage; `ConnectError`,
    `TrackerError` or `SessionError` if a device is unavailable or is lost.
    """
    if goal not in GOALS:
        raise UsageError(f"a goal is {' or '.join(GOALS)}, not {goal!r}")
    if rounds < 1 or not measure_s > 0:
        raise UsageError("rounds is 1 or more, and measure_s above 0")
    if encode:
        steps(encode)
    wanted = parse(devices)
    flow = Dataflow(read(model))
    wants = [describe(value) for value in flow.model.graph.inputs]
    arrays, warnings = _arrays(wants, inputs)
    for warning in warnings:
        python_warnings.warn(warning, RuntimeWarning, stacklevel=2)
    with ExitStack() as stack:
        tell = stack.enter_context(saying(say))
        sessions = list(open_sessions(wanted, tracker, wait_s, stack))
        wanted = with_targets(wanted, sessions)
        for device in without_deployments(wanted, sessions):
            lacks = (
                f"{device.name} has no --deploy: its part cannot be deployed until its server runs with --deploy DIR"
            )
            tell(lacks)
            warnings = (*warnings, lacks)
        tell("profiling the model")
        found = _cut_points(flow, arrays, "" if all(device.here for device in wanted) else encode, tell)
        tell("measuring the way to the devices")
        calls = CALLS if goal == "throughput" else 1
        benches = list(_benches(wanted, sessions, calls, encode))
        search = Search(flow.model, found, wanted, benches, arrays, goal, exact, measure_s, tell)
        best = search.run(rounds, keep_order)
        return replace(search.plan(best), encode=encode, warnings=warnings)


def _benches(
    devices: Sequence[PlanDevice], sessions: Sequence[Session | None], calls: int, encode: str
) -> Iterator[Bench]:
    """A bench for each device; those of chips share one of their board."""
    boards: dict[str, BoardBench] = {}
    for device, session in zip(devices, sessions, strict=True):
        if session is None or not device.board:
            yield open_bench(device, session, calls, encode)
            continue
        if device.board not in boards:
            boards[device.board] = BoardBench(device.board, session, calls, encode)
        yield boards[device.board].chip(device)


def _cut_points(flow: Dataflow, arrays: Mapping[str, Any], encode: str, say: Report) -> CutPoints:
    """The cuts to choose from, with measured seconds and bytes. Raises `UsageError` where there are none."""
    known = {value.name for node in flow.nodes for value in node.outputs if value.name}
    basic, _ = optimised(flow)
    profiled = profile(basic, arrays)
    if encode:
        say("encoding what may cross")
        profiled = profiled._replace(nbytes=encoded_bytes(basic, profiled.nbytes, arrays, encode))
    found = cut_points(basic, profiled, known, arrays)
    if not found.seconds:
        raise UsageError("nothing in the model depends on its inputs: there is nothing to divide")
    return found


def _arrays(inputs: Sequence[TensorInfo], given: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    required = [tensor for tensor in inputs if tensor.required]
    names = [tensor.name for tensor in required]
    if given is not None:
        if complaint := not_by_name(given, names):
            raise UsageError(complaint)
        unknown = sorted(set(given) - {tensor.name for tensor in inputs}, key=str)
        missing = [name for name in names if name not in given]
        if unknown or missing:
            complaint = f"no input {unknown[0]!r}" if unknown else f"none given for input {missing[0]!r}"
            raise UsageError(f"{complaint}; the model wants {', '.join(names) or 'nothing'}")
        return {name: given[name] for name in names}, ()
    unfixed = [each for each in required if not all(isinstance(size, int) for size in each.shape or ())]
    free = "; ".join(f"{tensor.name} is {tensor.text()}" for tensor in unfixed)
    warning = f"{free}: free extents are taken as 1; if they are larger, give inputs"
    return random_inputs(list(map(tensor_spec, required))), (warning,) if free else ()
