"""Inputs and outputs as a model declares them: described for clients, and checked before a runtime gets them."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.module.placement import DeviceArray
from rpcsys.wire.tensor import Tensor, as_tensor

#: Element types that numpy lacks -> (onnx.TensorProto's number, the numpy type of the same width).
RAW = {
    "bfloat16": (NUMBERS["bfloat16"], "uint16"),
    **{name: (number, "uint8") for name, number in NUMBERS.items() if name.startswith("float8")},
    **{name: (number, "uint8") for name, number in (("uint4", 21), ("int4", 22), ("uint2", 25), ("int2", 26))},
}


class Value:
    """An input or output as the model declares it."""

    def __init__(
        self, name: str, dtype: Optional[str], shape: Sequence[Any] = (), type_: str = "", optional: bool = False
    ) -> None:
        """``dtype``: None for what is no tensor, which is then described as ``type_``.

        ``shape``: a free extent is its name or None; empty for a scalar, and for an unknown rank.
        """
        self.name = name
        self.dtype = dtype
        self.shape = list(shape)
        self.type = type_
        self.optional = optional
        self._numpy = None if dtype is None or dtype == "strings" or dtype in RAW else np.dtype(dtype)

    def describe(self) -> Dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype or self.type, "shape": self.shape}

    def check(self, given: Any) -> Any:
        """Convert ``given`` for a runtime. Raises `RemoteArgumentError` for a wrong dtype or shape."""
        if self.dtype is None:
            return given
        if type(given) is np.ndarray and given.dtype is self._numpy and self._fits(given.shape):
            return given  # most calls: the name of a dtype alone takes microseconds
        value: Any
        if isinstance(given, DeviceArray):
            dtype, shape, value = given.dtype, given.shape, given
        elif self.dtype in RAW:
            tensor = as_tensor(given)
            dtype, shape, value = (tensor.dtype, tensor.shape, tensor) if tensor else (type(given).__name__, (), given)
        else:
            value = self._array(given)
            dtype, shape = "strings" if value.dtype.kind in "OU" else value.dtype.name, value.shape
        if dtype != self.dtype or not self._fits(shape):
            wants, got = f"{self.dtype} {shape_text(self.shape)}", f"{dtype} {shape_text(shape)}"
            hint = f"; convert it with .astype({self.dtype!r})" if dtype != self.dtype else ""
            raise RemoteArgumentError(f"input {self.name!r} wants {wants}, and got {got}{hint}")
        return value

    def _array(self, given: Any) -> Any:
        """``given`` as an array that a runtime reads correctly."""
        try:
            value = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
        except ValueError as error:  # a list of lists of unequal lengths
            raise RemoteArgumentError(f"input {self.name!r} cannot be made an array: {error}") from None
        if value.dtype.kind == "T":
            return value.astype(object)
        # onnxruntime reads the other byte order as if it were its own, without an error.
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))

    def _fits(self, shape: Tuple[int, ...]) -> bool:
        # onnxruntime reports an empty shape both for a scalar and for a tensor of unknown rank.
        if not self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            not isinstance(want, int) or want < 0 or want == have for want, have in zip(self.shape, shape)
        )


def shape_text(shape: Sequence[Any]) -> str:
    """A shape for a message: ``[?, 4]``."""
    return "[{}]".format(", ".join("?" if extent is None else str(extent) for extent in shape))
