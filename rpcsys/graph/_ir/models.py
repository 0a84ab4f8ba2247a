"""ONNX models in memory and in files, in onnx-ir's form: weights that lie in files of their own stay there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.module.kinds.onnx_model import ModelLike, change_tensors, read, resident
from rpcsys.module.kinds.onnx_proto import head_of_weight

if TYPE_CHECKING:
    import onnx

EMBEDDED_BYTES = 1 << 30  # larger models store their weights beside the file: a serialised ModelProto ends at 2 GB
_MOST_EMBEDDED = EMBEDDED_BYTES  # whatever a caller allows


def save(model: ModelLike, path: str | os.PathLike[str], *, embedded_bytes: int = EMBEDDED_BYTES) -> None:
    """Write ``model`` to ``path``; weights of more than ``embedded_bytes`` (1 GiB) go into ``PATH.data`` beside it.

    Weights that lie in other files are copied, a piece at a time.
    """
    if not isinstance(model, ir.Model):
        model = read(model)
    if weight_bytes(model) > min(embedded_bytes, _MOST_EMBEDDED):
        ir.save(model, path, external_data=data_path(path).name)
    else:
        _save_whole(model, path)


def _save_whole(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write the model with all weights inside. A serialised model is extended by appending (`onnx_proto`)."""
    found = {name: value.const_value for name, value in model.graph.initializers.items()}
    copied = {name: tensor for name, tensor in found.items() if isinstance(tensor, ir.ExternalTensor)}
    rest = model.clone()
    for name in copied:
        del rest.graph.initializers[name]
    change_tensors(rest, resident)
    start = to_bytes(rest)
    with Path(path).open("wb") as file:
        file.write(start)
        for name, tensor in copied.items():
            file.write(head_of_weight(name, int(tensor.dtype), list(tensor.shape), tensor.nbytes))
            tensor.tofile(file)


def data_path(path: str | os.PathLike[str]) -> Path:
    """The file in which `save` stores the weights of a large model."""
    return Path(f"{os.fspath(path)}.data")


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model for other libraries, all weights inside. Raises `UsageError` if it is too large for protobuf."""
    size = weight_bytes(model)
    if size > EMBEDDED_BYTES:
        raise UsageError(f"a model with {size >> 20} MiB of weights does not fit into one file; save it instead")
    if any(isinstance(tensor, ir.ExternalTensor) for tensor in weights(model)):
        model = model.clone()
        change_tensors(model, resident)
    return ir.to_proto(model)


def to_bytes(model: ir.Model) -> bytes:
    """The serialised ModelProto, all weights inside. Raises `UsageError` as `to_proto` does."""
    return bytes(to_proto(model).SerializeToString())


def weights(model: ir.Model) -> Iterator[Any]:
    """The tensor of every initialiser, also in bodies."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def weight_bytes(model: ir.Model) -> int:
    """Size of all initialisers in bytes."""
    return sum(tensor.nbytes for tensor in weights(model))


def functions_of(nodes: Iterable[ir.Node], model: ir.Model) -> list[ir.Function]:
    """The model's own functions that ``nodes`` call, directly or through other functions, each once."""
    found: dict[Any, ir.Function] = {}
    todo = list(nodes)
    while todo:
        node = todo.pop()
        function = model.functions.get(node.op_identifier())
        if function is not None and function.identifier() not in found:
            found[function.identifier()] = function
            todo.extend(function.all_nodes())
        todo.extend(inner for body in bodies(node) for inner in body)
    return list(found.values())


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs inside a node: the branches of an If, the body of a Loop or a Scan."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()
