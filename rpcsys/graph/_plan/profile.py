"""What the nodes of a model take, profiled.

Nodes are profiled by onnxruntime itself, on this machine, in the model as its level ``basic`` leaves it: there a kernel
is still a node. Only their proportions are used, since stages are optimised further; a device's own pace is that
of the stages which are tried on it.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.ort import open_session, run
from rpcsys.wire.dtypes import item_bytes

#: What the nodes are called while they are profiled; a node of a body never is.
_MARK = "rpcsys#"
_KERNEL = "_kernel_time"
#: Runs of the profiled model: the fastest of each node is what it takes when nothing disturbs it.
_RUNS = 5


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


def profile(flow: Dataflow, feeds: Mapping[str, Any]) -> Profile:
    """Run the model of ``flow``, as onnxruntime's level ``basic`` left it, and read its profile. Its nodes are renamed.

    Raises
    ------
    ModelError : onnxruntime cannot load it, or run it with these inputs
    """
    for index, node in enumerate(flow.nodes):
        node.name = f"{_MARK}{index}"
    with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        session = open_session(flow.model, profile=Path(folder, "profile"))
        try:
            for _ in range(_RUNS):
                run(session, [output.name for output in session.get_outputs()], feeds)
        finally:
            written = session.end_profiling()
        events = json.loads(Path(written).read_text(encoding="utf-8"))
    return read_profile(flow, events)


def read_profile(flow: Dataflow, events: Sequence[Mapping[str, Any]]) -> Profile:
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
