"""Profiles a model: seconds of its nodes, and bytes of the tensors that they make, also encoded.

onnxruntime profiles the nodes on this machine, in the model at its level ``basic``: there one kernel is still one
node. Only the proportions are used: onnxruntime optimises stages further, and each device is measured with the stages
tried on it.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir

from rpcsys.errors import UsageError, ValueNotSupported
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.ort import open_session, run
from rpcsys.wire import encoding
from rpcsys.wire.dtypes import item_bytes
from rpcsys.wire.tensor import as_tensor

_MARK = "rpcsys#"  # prefix of the nodes' names while they are profiled; a node of a body never has it
_KERNEL = "_kernel_time"
_RUNS = 5  # runs of the profiled model: the fastest run of each node counts, the least disturbed one
_AT_ONCE = 1 << 26  # about the bytes of tensors to encode that one run of the model returns


class Profile(NamedTuple):
    """Seconds of nodes and bytes of tensors."""

    seconds: Sequence[float]  # of each node of the model's main graph, by index; a body's time is its node's
    nbytes: Mapping[str, int]  # of the tensors that they made, by name; without strings and non-tensors


def profile(flow: Dataflow, feeds: Mapping[str, Any]) -> Profile:
    """Run the model of ``flow``, optimised at onnxruntime's level ``basic``, and read its profile. Renames its nodes.

    Raises `ModelError` if onnxruntime cannot load it, or run it with these inputs.
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


def read_profile(flow: Dataflow, events: Iterable[Mapping[str, Any]]) -> Profile:
    """Read the profile from the events that onnxruntime wrote (Trace Event Format, times in microseconds)."""
    seconds = [math.inf] * len(flow.nodes)
    nbytes: dict[str, int] = {}
    for event in events:
        name = event["name"]
        if name.startswith(_MARK) and name.endswith(_KERNEL):
            index = int(name[len(_MARK) : -len(_KERNEL)])
            seconds[index] = min(seconds[index], event["dur"] * 1e-6)
            nbytes.update(_sizes(flow.nodes[index], event["args"].get("output_type_shape", ())))
    return Profile([0.0 if second == math.inf else second for second in seconds], nbytes)


def _sizes(node: ir.Node, shapes: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, int]:
    """Bytes of a node's outputs. ``shapes`` has no names: they can be assigned only if all outputs are there."""
    made = [value.name for value in node.outputs if value.name]
    if len(made) != len(shapes):
        return {}
    return {
        name: math.prod(shape) * item_bytes(ir.DataType[kind.upper()].numpy().name)
        for name, shape_by_type in zip(made, shapes, strict=True)
        for kind, shape in shape_by_type.items()
        if kind != "string"
    }


def encoded_bytes(flow: Dataflow, nbytes: Mapping[str, int], feeds: Mapping[str, Any], how: str) -> dict[str, int]:
    """Encoded bytes of the tensors in ``nbytes`` and of the inputs, by name; runs the model to get their values.

    A tensor that ``how`` does not apply to keeps its size. Raises `ModelError` if the model cannot run with the inputs.
    """
    model = flow.model.clone()
    made = {value.name: value for node in model.graph for value in node.outputs if value.name in nbytes}
    given = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(value for name, value in made.items() if name not in given)
    session = open_session(model)
    found = {name: _encoded(value, how) for name, value in feeds.items()}
    for names in _portions(made, nbytes):
        values = run(session, names, feeds)
        found.update((name, _encoded(value, how)) for name, value in zip(names, values, strict=True))
    return found


def _portions(names: Iterable[str], nbytes: Mapping[str, int]) -> Iterable[Sequence[str]]:
    """The names in groups of about `_AT_ONCE` bytes."""
    portion: list[str] = []
    for name in names:
        portion.append(name)
        if sum(nbytes[each] for each in portion) > _AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion


def _encoded(value: Any, how: str) -> int:
    tensor = as_tensor(value)
    if tensor is None:
        return 0
    try:
        made = encoding.encode(value, how)
    except (UsageError, ValueNotSupported):  # it crosses without encoding
        made = tensor
    return len(made.data if isinstance(made, encoding.Encoded) else tensor.data)
