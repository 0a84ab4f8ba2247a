"""The values that a model in onnxruntime takes and gives, and what is said of others."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import onnxruntime

from rpcsys.errors import RemoteArgumentError
from rpcsys.wire.dtypes import count
from rpcsys.wire.tensor import Tensor, as_tensor

#: onnxruntime's name of an element type -> the wire's.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "string": "strings",
    "complex64": "complex64",
    "complex128": "complex128",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
}
#: Element types numpy lacks -> (onnx.TensorProto's number, the numpy type of the same width).
RAW = {
    "bfloat16": (16, "uint16"),
    "float8_e4m3fn": (17, "uint8"),
    "float8_e4m3fnuz": (18, "uint8"),
    "float8_e5m2": (19, "uint8"),
    "float8_e5m2fnuz": (20, "uint8"),
    "uint4": (21, "uint8"),
    "int4": (22, "uint8"),
    "uint2": (25, "uint8"),
    "int2": (26, "uint8"),
}
#: Of these onnxruntime keeps several in a byte, the first one lowest; on the wire, each has a byte of its own.
_BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}
_BY_NUMBER = {number: name for name, (number, _) in RAW.items()}
_TENSOR = re.compile(r"tensor\((\w+)\)\Z")


class Value:
    """An input or output as the model declares it."""

    def __init__(self, node: Any) -> None:
        self.name: str = node.name
        self.type: str = node.type
        match = _TENSOR.match(node.type)
        self.dtype = _DTYPES.get(match.group(1)) if match else None
        self.shape: List[Any] = list(node.shape) if match and node.shape is not None else []
        self.optional = node.type.startswith("optional")

    def describe(self) -> Dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype or self.type, "shape": self.shape}

    def check(self, given: Any) -> Any:
        """``given`` as onnxruntime takes it. Raises `RemoteArgumentError` for a wrong dtype or shape."""
        if self.dtype is None:
            return given
        if self.dtype in RAW:
            tensor = as_tensor(given)
            dtype, shape, value = (tensor.dtype, tensor.shape, tensor) if tensor else (type(given).__name__, (), given)
        else:
            value = self._array(given)
            dtype, shape = "strings" if value.dtype.kind in "OU" else value.dtype.name, value.shape
        if dtype != self.dtype or not self._fits(shape):
            raise RemoteArgumentError(
                "input {!r} wants {} {}, and got {} {}{}".format(
                    self.name,
                    self.dtype,
                    _shape_text(self.shape),
                    dtype,
                    _shape_text(shape),
                    f"; convert it with .astype({self.dtype!r})" if dtype != self.dtype else "",
                )
            )
        return value

    def _array(self, given: Any) -> Any:
        """``given`` as an array of a kind that onnxruntime reads rightly."""
        try:
            value = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
        except ValueError as error:  # a list of lists of unequal lengths
            raise RemoteArgumentError(f"input {self.name!r} cannot be made an array: {error}") from None
        if value.dtype.kind == "T":
            return value.astype(object)
        # It takes the bytes of other machines' numbers as they are, without a word.
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))

    def _fits(self, shape: Tuple[int, ...]) -> bool:
        # onnxruntime gives an empty shape for a scalar and for a tensor of unknown rank alike.
        if not self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            not isinstance(want, int) or want < 0 or want == have for want, have in zip(self.shape, shape)
        )


def to_ort(value: Any) -> Any:
    """A checked input as an OrtValue over the same memory."""
    make = onnxruntime.OrtValue
    if isinstance(value, Tensor) and value.dtype in RAW:
        number, same_width = RAW[value.dtype]
        bits = np.frombuffer(value.data, same_width).reshape(value.shape)
        if value.dtype in _BITS:
            bits = _packed(bits, _BITS[value.dtype])
        return make.ortvalue_from_numpy_with_onnx_type(bits, number)
    return make.ortvalue_from_numpy(value)


def from_ort(value: Any) -> Any:
    """An output as a session passes it on: numpy's array, or a `Tensor` of a type that numpy lacks."""
    name = _BY_NUMBER.get(value.element_type()) if value.is_tensor() else None
    if name is None:
        return value.numpy()
    data = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    if name in _BITS:
        data = _unpacked(data, name, count(tuple(value.shape())))
    return Tensor(name, value.shape(), data)


def _packed(values: Any, bits: int) -> Any:
    """An array of the same shape that begins with ``values``, ``bits`` each."""
    each = 8 // bits
    rows = np.zeros((-(-values.size // each), each), "uint8")
    rows.reshape(-1)[: values.size] = values.reshape(-1) & ((1 << bits) - 1)
    packed = np.zeros(values.size, "uint8")
    packed[: len(rows)] = np.bitwise_or.reduce(rows << np.arange(0, 8, bits, dtype="uint8"), axis=1)
    return packed.reshape(values.shape)


def _unpacked(packed: bytearray, name: str, size: int) -> bytearray:
    """The inverse: ``size`` values, a byte each; of those with a sign, the sign carried through."""
    bits = _BITS[name]
    places = np.arange(0, 8, bits, dtype="uint8")
    values = (np.frombuffer(packed, "uint8")[:, None] >> places & ((1 << bits) - 1)).reshape(-1)[:size]
    if name.startswith("int"):
        values = values | np.where(values >> (bits - 1), 0xFF << bits & 0xFF, 0).astype("uint8")
    return bytearray(values.astype("uint8").tobytes())


def _shape_text(shape: Sequence[Any]) -> str:
    return "[{}]".format(", ".join("?" if extent is None else str(extent) for extent in shape))
