"""Arrays of the wire, with numpy or without it, and the conversion of other arrays to them."""

from __future__ import annotations

import array
import struct
import sys
from typing import Any, Optional, Sequence, Tuple

from rpcsys.errors import ValueNotSupported
from rpcsys.wire import dtypes

_BIG_ENDIAN = sys.byteorder == "big"


class Tensor:
    """An array of the wire: dtype name, shape and memory. Needs no numpy.

    ``data`` is a flat view of bytes, little-endian, C order; `view` adds type and shape.
    Arrays of strings have dtype ``"strings"``, and their ``data`` is a flat list of str.
    """

    __slots__ = ("data", "device", "dtype", "shape")

    def __init__(self, dtype: str, shape: Sequence[int], data: Any, device: str = "cpu:0") -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = data
        self.device = device

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, shape={self.shape})"

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return len(self.data)

    def view(self) -> memoryview:
        """A memoryview of its type and shape, over the same memory; flat bytes where memoryview lacks the type
        (bfloat16; float16 before Python 3.12) or there are no elements.
        """
        code = dtypes.format_of_name(self.dtype)
        flat = memoryview(self.data)
        if code is None or 0 in self.shape or (code == "e" and sys.version_info < (3, 12)):
            return flat
        cast: Any = flat.cast
        typed: memoryview = cast(code, list(self.shape))
        return typed

    def tolist(self) -> Any:
        """Its elements as nested lists of Python values; the value itself where it has no dimension.

        Raises `ValueNotSupported` for element types that Python has no value for.
        """
        if self.dtype == "strings":
            return _nested(self.data, self.shape)
        code = dtypes.format_of_name(self.dtype)
        if code is None:
            raise ValueNotSupported(f"Python has no value for an element of type {self.dtype}; use numpy()")
        return _nested(struct.unpack(f"<{dtypes.count(self.shape)}{code}", self.data), self.shape)

    def numpy(self) -> Any:
        """A ``numpy.ndarray`` over the same memory (object dtype for strings).

        Raises `ValueNotSupported` where this machine's numpy has no such element type.
        """
        np = dtypes.need_numpy()
        if self.dtype == "strings":
            return np.array(self.data, dtype=object).reshape(self.shape)
        dtype = dtypes.numpy_dtype(self.dtype)
        if dtype is None:
            raise ValueNotSupported(f"numpy here has no element type {self.dtype}; install ml_dtypes")
        if dtype.itemsize == 0:
            return np.ndarray(self.shape, dtype)
        return np.ndarray(self.shape, dtype, self.data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        result = self.numpy()
        return result if dtype is None else result.astype(dtype)


def _nested(flat: Sequence[Any], shape: Tuple[int, ...]) -> Any:
    """The elements of ``flat`` as nested lists of ``shape``."""
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return list(flat)
    step = dtypes.count(shape[1:])
    return [_nested(flat[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


def as_tensor(value: Any) -> Optional[Tensor]:
    """``value`` as a `Tensor` over the same memory where that is C order, else over a copy.

    Takes Tensor, numpy arrays and scalars, memoryview, array.array, and objects with ``__array__``;
    None for anything else. Raises `ValueNotSupported` for element types without a name on the wire.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (memoryview, array.array)):
        return _from_buffer(memoryview(value))
    numpy = dtypes.loaded_numpy()
    if numpy is None or isinstance(value, type) or not hasattr(value, "__array__"):
        return None
    return _from_numpy(numpy, value)


def as_array(tensor: Tensor, numpy: Any = None) -> Any:
    """A numpy array over the same memory, where numpy is given or imported already; else ``tensor``.

    ``tensor``, too, where this machine's numpy lacks the element type.
    """
    if numpy is None and dtypes.loaded_numpy() is None:
        return tensor
    try:
        return tensor.numpy()
    except ValueNotSupported:
        return tensor


def _from_numpy(numpy: Any, value: Any) -> Tensor:
    flat = numpy.asarray(value, order="C")
    kind = flat.dtype.kind
    if kind == "O" or kind == "T":
        items = flat.reshape(-1).tolist()
        if all(type(item) is str for item in items):
            return Tensor("strings", flat.shape, items)
    if not flat.dtype.isnative or _BIG_ENDIAN:
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    name = dtypes.name_of_numpy(flat.dtype)
    # A flat view of bytes is what every socket takes; some element types refuse the buffer protocol.
    return Tensor(name, flat.shape, flat.reshape(-1).view("u1") if flat.size and flat.itemsize else b"")


def _from_buffer(view: memoryview) -> Tensor:
    name = dtypes.name_of_format(view.format, view.itemsize)
    shape = tuple(view.shape or ())
    if 0 in shape:
        return Tensor(name, shape, b"")
    return Tensor(name, shape, view.cast("B") if view.c_contiguous else memoryview(view.tobytes()))
