"""What nodes, stages and links take, measured.

Nodes are profiled by onnxruntime itself, on this machine, in the model as its level ``basic`` leaves it: there a kernel
is still a node. Only their proportions are used, since stages are optimised further; a device's own pace is that
of the stages which are tried on it.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from rpcsys.client import Session
from rpcsys.errors import ModelError, one_line
from rpcsys.graph.flow import Flow
from rpcsys.graph.optimise import open_session
from rpcsys.graph.planning import Link
from rpcsys.module.kinds.onnx_session import Runner
from rpcsys.wire.dtypes import item_bytes

#: What the nodes are called while they are profiled; a node of a body never is.
_MARK = "rpcsys#"
_KERNEL = "_kernel_time"
#: Runs of the profiled model: the fastest of each node is what it takes when nothing disturbs it.
_RUNS = 5

#: A link is measured with more and more bytes, until they take this long or are this many.
_LINK_S = 0.1
_LINK_BYTES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_PINGS = 15

#: Calls of a stage at least, and what of their times is taken: other work on the machine only ever adds to them.
_FEWEST = 3
_QUARTILE = 0.25


@dataclass(frozen=True)
class Profile:
    """What nodes took and made.

    Attributes
    ----------
    seconds : of each node of the model's main graph, by its place; a body's are its node's
    nbytes : of the tensors the nodes made, by name; those that are no tensors, or strings, are not among them
    """

    seconds: Sequence[float]
    nbytes: Mapping[str, int]


def profile(flow: Flow, feeds: Mapping[str, Any]) -> Profile:
    """Run the model of ``flow``, as onnxruntime's level ``basic`` left it, and read its profile. Its nodes are renamed.

    Raises
    ------
    ModelError : onnxruntime cannot load it, or run it with these inputs
    """
    for index, node in enumerate(flow.nodes):
        node.name = f"{_MARK}{index}"
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        session = open_session(flow.model, "basic", profile=Path(folder, "profile"))
        try:
            runner = Runner(session)
            checked = {value.name: value.check(feeds[value.name]) for value in runner.inputs}
            for _ in range(_RUNS):
                runner.run([value.name for value in runner.outputs], checked)
        except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
            raise ModelError(
                f"the model does not run with these inputs: {one_line(error, 300)}", type="ModelError"
            ) from None
        finally:
            written = session.end_profiling()
        events = json.loads(Path(written).read_text(encoding="utf-8"))
    return read_profile(flow, events)


def read_profile(flow: Flow, events: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile in the events that onnxruntime wrote (Trace Event Format, times in microseconds)."""
    seconds = [math.inf] * len(flow.nodes)
    nbytes: dict[str, int] = {}
    for event in events:
        name = event["name"]
        if not (name.startswith(_MARK) and name.endswith(_KERNEL)):
            continue
        index = int(name[len(_MARK) : -len(_KERNEL)])
        seconds[index] = min(seconds[index], event["dur"] * 1e-6)
        nbytes.update(_sizes(flow.nodes[index], event["args"].get("output_type_shape", ())))
    return Profile([0.0 if second == math.inf else second for second in seconds], nbytes)


def _sizes(node: ir.Node, shapes: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, int]:
    """Bytes of what a node made. Told are its tensors; which they are, only where all its outputs are tensors."""
    made = [value.name for value in node.outputs if value.name]
    if len(made) != len(shapes):
        return {}
    sizes = {}
    for name, told in zip(made, shapes, strict=True):
        for kind, shape in told.items():
            if kind != "string":
                sizes[name] = math.prod(shape) * item_bytes(ir.DataType[kind.upper()].numpy().name)
    return sizes


# ------------------------------------------------------------------ stages


class Call(NamedTuple):
    """Something to be called over and over, by so many threads at once."""

    function: Callable[[], Any]
    threads: int = 1


def paces(calls: Sequence[Call], seconds: float, *, together: bool) -> list[float]:
    """Seconds from one result of each to its next, when little else disturbs: the lower quartile of what there is time for.

    ``together`` has all be called over and over at the same time, as the stages of a pipeline are, so that what they
    have to share (memory, caches, the heat of a processor) is in the figures.
    """
    if not together:
        return [pace for call in calls for pace in paces([call], seconds, together=True)]
    for call in calls:
        call.function()
    runs = [_Run(call, seconds) for call in calls]
    threads = [
        threading.Thread(target=run.loop, args=(runs,), daemon=True)
        for run in runs
        for _ in range(run.call.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        if run.error is not None:
            raise run.error
    return [run.pace() for run in runs]


class _Run:
    """One stage, called over and over until each of its siblings has had its time."""

    def __init__(self, call: Call, seconds: float) -> None:
        self.call = call
        self._seconds = seconds
        self._done = [perf_counter()]  # when it began, and each result was there
        self.error: BaseException | None = None
        self.enough = False

    def loop(self, siblings: Sequence[_Run]) -> None:
        """What each of its threads does."""
        fewest = _FEWEST * self.call.threads
        try:
            while not all(run.enough for run in siblings):
                self.call.function()
                now = perf_counter()
                self._done.append(now)
                if len(self._done) > fewest and now - self._done[0] >= self._seconds:
                    self.enough = True
        except BaseException as error:  # noqa: BLE001 - raised where the threads are waited for
            self.error = error
            self.enough = True

    def pace(self) -> float:
        """Of as many results as it has threads, since those may come all together."""
        each = np.diff(np.sort(self._done)[:: self.call.threads])
        return float(np.quantile(each, _QUARTILE)) / self.call.threads


# ------------------------------------------------------------------ links


def link_of(session: Session, calls: int) -> Link:
    """The way to a session's device and back, for so many calls under way.

    Raises `SessionError` where it is lost meanwhile.
    """
    echo = session.get_function("testing.echo")
    latency = min(_taken(lambda: echo(0)) for _ in range(_PINGS))
    up = down = math.inf
    for size in _LINK_BYTES:
        array = np.random.default_rng(size).integers(0, 256, size, np.uint8)  # nothing on the way shortens it
        there = session.array(array)
        put = functools.partial(session.array, array)
        to_s = max(min(_taken(put) for _ in range(3)) - latency, 1e-9)
        back_s = max(min(_taken(there.numpy) for _ in range(3)) - latency, 1e-9)
        up, down = size / to_s, size / back_s
        if max(to_s, back_s) > _LINK_S:
            break
    return Link(latency, up, down, calls)


def _taken(call: Callable[[], Any]) -> float:
    before = perf_counter()
    call()
    return perf_counter() - before
