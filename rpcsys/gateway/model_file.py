"""What the file of a pool's model says of its inputs and outputs: no device is needed to know them.

ONNX's messages are those of its ``onnx.proto``; the fields here are all that is read of them.
"""

from __future__ import annotations

import os
from typing import Any

from rpcsys.errors import ModelError, ProtocolError, UsageError
from rpcsys.module import elf, inspection
from rpcsys.module.formats import suffix
from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.wire.protobuf import INT32, INT64, STRING, MessageTable, OneOf, decode

_EXTENT = MessageTable((1, "size", OneOf(INT64)), (2, "name", OneOf(STRING)))
_TENSOR = MessageTable((1, "number", INT32), (2, "shape", MessageTable((1, "extents", [_EXTENT]))))
_VALUE = MessageTable((1, "name", STRING), (2, "type", MessageTable((1, "tensor", _TENSOR))))
_WEIGHT = MessageTable((8, "name", STRING))
_GRAPH = MessageTable((5, "weights", [_WEIGHT]), (11, "inputs", [_VALUE]), (12, "outputs", [_VALUE]))
_MODEL = MessageTable((7, "graph", _GRAPH))
_STRINGS = 8
_DTYPES = {_STRINGS: "strings", **{number: name for name, number in NUMBERS.items()}}


def about_model(path: str) -> dict[str, Any]:
    """Kind, inputs and outputs of the model at ``path``, in the words of a host that serves it.

    Inputs or outputs are None where a library does not say them. Raises `UsageError` for a file that cannot be read,
    `ModelError` for one that is no model.
    """
    if path.endswith(".onnx"):
        return {"kind": "rpcsys.onnx", **_of_onnx(path)}
    if suffix(path):
        name = os.path.basename(path)
        raise ModelError(f"{name}: only its runtime reads such a file; put it into a library: module.export_library")
    root = inspection.inspect(path).modules[0]
    return {
        "kind": root.kind,
        "inputs": _listed(root.about.get("inputs")),
        "outputs": _listed(root.about.get("outputs")),
    }


def _listed(values: Any) -> list[dict[str, Any]] | None:
    """What a library lists, if each has a name."""
    if type(values) is not list or not all(type(each) is dict and type(each.get("name")) is str for each in values):
        return None
    return [
        {"name": each["name"], "dtype": str(each.get("dtype")), "shape": [_free(e) for e in each.get("shape") or ()]}
        for each in values
    ]


def _free(extent: Any) -> int | None:
    return extent if type(extent) is int and extent >= 0 else None


def _of_onnx(path: str) -> dict[str, Any]:
    name = os.path.basename(path)
    try:
        graph = decode(_MODEL, elf.mapped(path)).get("graph")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; check the path") from None
    except (ProtocolError, elf.ElfError) as error:
        raise ModelError(f"{name} is no ONNX model: {error}") from None
    if graph is None:
        raise ModelError(f"{name} is no ONNX model: it has no graph")
    weights = {weight["name"] for weight in graph["weights"]}
    return {
        "inputs": [_described(value) for value in graph["inputs"] if value["name"] not in weights],
        "outputs": [_described(value) for value in graph["outputs"]],
    }


def _described(value: dict[str, Any]) -> dict[str, Any]:
    tensor = value.get("type", {}).get("tensor")
    if tensor is None:
        return {"name": value["name"], "dtype": "unknown", "shape": []}
    extents = tensor.get("shape", {}).get("extents", [])
    shape = [_free(extent.get("size", extent.get("name") or None)) for extent in extents]
    return {"name": value["name"], "dtype": _DTYPES.get(tensor["number"], "unknown"), "shape": shape}
