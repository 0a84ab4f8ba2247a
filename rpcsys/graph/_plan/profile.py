"""What the nodes of a model take and make, profiled; and the bytes of what they make, encoded.

onnxruntime profiles them on this machine, in the model as its level ``basic`` leaves it: there a kernel is still a
node. Only their proportions are used: stages are optimised further, and each device is measured with the stages tried
on it.
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

_MARK = "rpcsys#"  # begins the nodes' names while they are profiled; a node of a body never has it
_KERNEL = "_kernel_time"
_RUNS = 5  # runs of the profiled model: the fastest of each node is what it takes when nothing disturbs it
_AT_ONCE = 1 << 26  # bytes of tensors that one run of a model makes to be encoded, about


class Profile(NamedTuple):
    """What nodes took and made."""

    seconds: Sequence[float]  # of each node of the model's main graph, by its place; a body's are its node's
    nbytes: Mapping[str, int]  # of the tensors that they made, by name; not of strings, and what is no tensor


def profile(flow: Dataflow, feeds: Mapping[str, Any]) -> Profile:
    """Run the model of ``flow``, as onnxruntime's level ``basic`` left it, and read its profile. Its nodes are renamed.

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
    """The profile in the events that onnxruntime wrote (Trace Event Format, times in microseconds)."""
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
    """Bytes of what a node made. ``shapes`` has its tensors alone, without names: all its outputs, or it is no use."""
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
    """Bytes of the tensors in ``nbytes`` and of the inputs, by name, encoded as ``how`` says; the model is run for it.

    A tensor that ``how`` does not apply to has its own. Raises `ModelError` if the model does not run with the inputs.
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
    except (UsageError, ValueNotSupported):  # it crosses as it is
        made = tensor
    return len(made.data if isinstance(made, encoding.Encoded) else tensor.data)
