"""Finds cuts by measuring: profiles the model, measures the links to the devices, and searches."""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.rewriting import optimised
from rpcsys.graph._ir.stage import tensor_spec
from rpcsys.graph._ir.tensor_info import TensorInfo, describe
from rpcsys.graph._pipeline.resolve import CALLS
from rpcsys.graph._plan.bench import open_bench
from rpcsys.graph._plan.cost_model import Goal
from rpcsys.graph._plan.cut_points import cut_points
from rpcsys.graph._plan.devices import DeviceLike, TrackerLike, open_sessions, parse
from rpcsys.graph._plan.plan import Plan
from rpcsys.graph._plan.profile import encoded_bytes, profile
from rpcsys.graph._plan.search import Report, Search
from rpcsys.graph.samples import random_inputs
from rpcsys.module.kinds.onnx_model import ModelLike, read
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
        ``"key:edge"`` (leased at ``tracker``), ``"HOST:PORT"``, or open sessions. A device that would slow the model
        down is left out
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
    ``say`` : a function that receives a short text at each step

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
    say = say or (lambda text: None)
    say("profiling the model")
    flow = Dataflow(read(model))
    wants = [describe(value) for value in flow.model.graph.inputs]
    arrays, warnings = _arrays(wants, inputs)
    for warning in warnings:
        python_warnings.warn(warning, RuntimeWarning, stacklevel=2)
    known = {value.name for node in flow.nodes for value in node.outputs if value.name}
    basic, _ = optimised(flow)
    profiled = profile(basic, arrays)
    if encode and not all(device.cpus for device in wanted):
        say("encoding what may cross")
        profiled = profiled._replace(nbytes=encoded_bytes(basic, profiled.nbytes, arrays, encode))
    found = cut_points(basic, profiled, known, arrays)
    if not found.seconds:
        raise UsageError("nothing in the model depends on its inputs: there is nothing to divide")
    with ExitStack() as stack:
        say("measuring the way to the devices")
        leased = open_sessions(wanted, tracker, wait_s, stack)
        calls = CALLS if goal == "throughput" else 1
        benches = [open_bench(device, session, calls, encode) for device, session in zip(wanted, leased, strict=True)]
        search = Search(flow.model, found, wanted, benches, arrays, goal, exact, measure_s, say)
        best = search.run(rounds, keep_order)
        return replace(search.plan(best), encode=encode, warnings=warnings)


def _arrays(inputs: Sequence[TensorInfo], given: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    required = [tensor for tensor in inputs if tensor.required]
    names = [tensor.name for tensor in required]
    if given is not None:
        unknown = sorted(set(given) - {tensor.name for tensor in inputs})
        missing = [name for name in names if name not in given]
        if unknown or missing:
            complaint = f"no input {unknown[0]!r}" if unknown else f"none given for input {missing[0]!r}"
            raise UsageError(f"{complaint}; the model wants {', '.join(names) or 'nothing'}")
        return {name: given[name] for name in names}, ()
    unfixed = [each for each in required if not all(isinstance(size, int) for size in each.shape or ())]
    free = "; ".join(f"{tensor.name} is {tensor.text()}" for tensor in unfixed)
    warning = f"{free}: free extents are taken as 1; if they are larger, give inputs"
    return random_inputs(list(map(tensor_spec, required))), (warning,) if free else ()
