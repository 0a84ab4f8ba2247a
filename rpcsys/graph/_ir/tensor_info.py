"""What is known of a tensor before it exists: its element type, its shape, its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.wire.dtypes import item_bytes


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that goes into a stage or comes out of it.

    Attributes
    ----------
    name : its name in the model
    dtype : ``"float32"``, ``"bfloat16"``, ``"strings"``, …; ONNX's own for what is no tensor, ``"seq(tensor(float))"``
    shape : its extents, a free one as its name or None; None if not even their number is known
    nbytes : its size; None if that is not known before it runs
    required : False for an input that has a default
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    nbytes: int | None
    required: bool = True

    def text(self) -> str:
        """``float32[1, 64, N]``, for tables."""
        if self.shape is None:
            return self.dtype
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


def describe(value: ir.Value) -> TensorInfo:
    """What is known of ``value``.

    Raises
    ------
    UsageError : not even its type is
    """
    name = value.name or ""
    if value.type is None:
        raise UsageError(f"nothing tells the type of tensor {name!r}, so no stage can begin or end there")
    required = not (value.is_graph_input() and value.is_initializer())
    if not isinstance(value.type, ir.TensorType):
        return TensorInfo(name, _type_text(value.type), None, None, required)
    dtype = _dtype_name(value.type.dtype)
    if value.shape is None:
        return TensorInfo(name, dtype, None, None, required)
    shape = tuple(_extent(size) for size in value.shape)
    return TensorInfo(name, dtype, shape, _nbytes(dtype, shape), required)


def _extent(size: Any) -> int | str | None:
    if isinstance(size, int):
        return size
    # ONNX's inference makes up a name for an extent that has none.
    return None if size.value is None or size.value.startswith("unk__") else str(size.value)


def _dtype_name(dtype: ir.DataType) -> str:
    return "strings" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def _type_text(kind: Any) -> str:
    if isinstance(kind, ir.SequenceType):
        return f"seq({_type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_type_text(kind.elem_type)})"
    return f"tensor({_dtype_name(kind.dtype)})"


def _nbytes(dtype: str, shape: tuple[int | str | None, ...]) -> int | None:
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) < len(shape) or dtype == "strings":
        return None
    return math.prod(sizes) * item_bytes(dtype)
