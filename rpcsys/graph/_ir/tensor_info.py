"""Facts about a tensor before it exists: element type, shape and bytes, given by the model or inferred.

ONNX infers types and shapes; onnxruntime infers those of operators that ONNX does not know. Limitation: shapes that
depend on values (of NonZero, of NonMaxSuppression) stay unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from rpcsys.errors import ModelError, UsageError
from rpcsys.graph._ir.ort import open_session
from rpcsys.module.kinds.onnx_model import MAP_TYPE, change_tensors, resident, type_text
from rpcsys.wire.dtypes import item_bytes

_LARGE_WEIGHT = 1024  # bytes; shape inference skips larger weights: no operator takes its output's shape from them


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a stage."""

    name: str
    #: ``"float32"``, ``"bfloat16"``, ``"strings"``, …; for other types ONNX's own text, ``"seq(tensor(float))"``.
    dtype: str
    shape: tuple[int | str | None, ...] | None  # a free extent is its name or None; None if the rank is unknown
    nbytes: int | None  # None if unknown before the model runs
    required: bool = True  # False for an input with a default

    def text(self) -> str:
        """``float32[1, 64, N]``, for tables."""
        if self.shape is None:
            return self.dtype
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def describe(value: ir.Value) -> TensorInfo:
    """The known facts of ``value``. Raises `UsageError` if its type is unknown."""
    name = value.name or ""
    if MAP_TYPE in value.meta:
        return TensorInfo(name, value.meta[MAP_TYPE], None, None)
    if value.type is None:
        raise UsageError(f"the type of tensor {name!r} is unknown, so no stage can begin or end there")
    required = not (value.is_graph_input() and value.is_initializer())
    if not isinstance(value.type, ir.TensorType):
        return TensorInfo(name, _type_text(value.type), None, None, required)
    dtype = _dtype_name(value.type.dtype)
    shape = None if value.shape is None else tuple(_extent(size) for size in value.shape)
    sizes = [size for size in shape or [None] if isinstance(size, int)]
    unknown = shape is None or len(sizes) < len(shape) or dtype == "strings"
    return TensorInfo(name, dtype, shape, None if unknown else math.prod(sizes) * item_bytes(dtype), required)


def _extent(size: Any) -> int | str | None:
    if isinstance(size, int):
        return size
    # ONNX's inference invents a name for an extent that has none.
    return None if size.value is None or size.value.startswith("unk__") else str(size.value)


def _dtype_name(dtype: ir.DataType) -> str:
    return "strings" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def _type_text(kind: Any) -> str:
    if isinstance(kind, ir.SequenceType):
        return f"seq({_type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_type_text(kind.elem_type)})"
    return f"tensor({_dtype_name(kind.dtype)})"


def infer_shapes(model: ir.Model) -> None:
    """Fill in the types and shapes of the main graph's values, as far as ONNX infers them."""
    import onnx

    skeleton = _skeleton(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(ir.to_proto(skeleton), data_prop=True)
    except Exception:  # noqa: BLE001 - what it cannot infer stays unknown, and is an error only if a cut needs it
        return
    known = {info.name: info for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for node in model.graph:
        for value in node.outputs:
            kind = type_text(known[value.name].type) if value.name in known else ""
            if "map(" in kind:
                value.meta[MAP_TYPE] = kind
            elif kind:
                ir.serde.deserialize_value_info_proto(known[value.name], value)


def infer_missing_types(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Let onnxruntime infer the types of those ``values`` that have none: it knows operators that ONNX does not."""
    unknown = [value for value in values if value.type is None and MAP_TYPE not in value.meta]
    if not unknown:
        return
    skeleton = _skeleton(model)
    by_name = ir.convenience.create_value_mapping(skeleton.graph, include_subgraphs=False)
    skeleton.graph.outputs.extend(by_name[value.name] for value in unknown if value.name in by_name)
    try:
        session = open_session(skeleton, optimise=False)
    except ModelError:
        return  # a type that stays unknown is an error where it is needed
    named = {output.name: output for output in session.get_outputs()}
    for value in unknown:
        if value.name in named and "map(" in named[value.name].type:
            value.meta[MAP_TYPE] = named[value.name].type
        elif value.name in named:
            value.type = _type_named(named[value.name].type)
            # onnxruntime reports an empty shape both for a scalar and for a tensor of unknown rank.
            if isinstance(value.type, ir.TensorType) and named[value.name].shape:
                value.shape = ir.Shape(named[value.name].shape)


def _type_named(text: str) -> Any:
    """The type with onnxruntime's name ``text``, such as ``seq(tensor(float))``."""
    outer, _, inner = text.partition("(")
    if outer == "tensor":
        return ir.TensorType(ir.DataType[inner[:-1].upper()])
    return {"seq": ir.SequenceType, "optional": ir.OptionalType}[outer](_type_named(inner[:-1]))


def _skeleton(model: ir.Model) -> ir.Model:
    """The model with its large weights turned into inputs: small enough for another library to read."""
    copy = model.clone()
    graph = copy.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes > _LARGE_WEIGHT:
            if tensor is not None:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
            del graph.initializers[name]
            value.const_value = None
            if value not in graph.inputs:
                graph.inputs.append(value)
    change_tensors(copy, resident)
    return copy
