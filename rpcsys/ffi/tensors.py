"""Arrays: Python's given to native code, native ones handed to Python, and DLPack either way. Nothing is copied.

With libtvm_ffi an array becomes a Tensor object (type 70), which native code may keep: Python's memory is then
kept until it lets go. Without, it is a plain DLTensor (type 7), valid for one call.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, dlpack, dtypes, library
from rpcsys.ffi.memory import Memory, flat, locate
from rpcsys.ffi.objects import Object

_shape_types: Dict[int, Any] = {}
#: What native code holds of ours: the structure's address -> the structure and all it points into.
_lent: Dict[int, Tuple[Any, ...]] = {}


class TensorView:
    """A native array that somebody else keeps: valid as long as the call it is an argument of.

    Attributes
    ----------
    dtype : name of the element type
    shape : extents
    device : ``"cpu:0"``, or DLPack's number of another kind of device and the device's
    """

    def __init__(self, tensor: abi.DLTensor, owner: Any = None) -> None:
        self._tensor = tensor
        self._owner = owner
        self.dtype = dtypes.name_of(tensor.dtype)
        self.shape: Tuple[int, ...] = tuple(tensor.shape[: tensor.ndim])
        kind = tensor.device.type
        self.device = "{}:{}".format("cpu" if kind == abi.CPU else kind, tensor.device.id)

    def __repr__(self) -> str:
        return f"<native array {self.dtype} {self.shape} on {self.device}>"

    @property
    def address(self) -> int:
        """Where the structure is that describes it."""
        return ctypes.addressof(self._tensor)

    @property
    def data(self) -> memoryview:
        """Its bytes in C order, over the same memory; a copy where its elements do not lie one after another.

        Raises `NativeError` for memory of another device, and elements that do not fill whole bytes.
        """
        tensor = self._tensor
        bits = tensor.dtype.bits * tensor.dtype.lanes
        if tensor.device.type != abi.CPU or bits % 8:
            raise NativeError(f"an array of {self.dtype} on {self.device} cannot be read from Python")
        count = 1
        for extent in self.shape:
            count *= extent
        if not count:
            return memoryview(b"")
        start = tensor.data + tensor.byte_offset
        if self._compact():
            return flat(start, count * (bits // 8), (self, self._owner))
        return memoryview(_gather(start, self.shape, tensor.strides[: tensor.ndim], bits // 8))

    def _compact(self) -> bool:
        strides = self._tensor.strides
        if not strides:
            return True
        expected = 1
        for axis in reversed(range(len(self.shape))):
            if self.shape[axis] != 1 and strides[axis] != expected:
                return False
            expected *= self.shape[axis]
        return True


class Tensor(TensorView):
    """A native array, kept by this. Other libraries take it without a copy through ``__dlpack__``."""

    def __init__(self, native: Object) -> None:
        super().__init__(abi.cell(native.handle, abi.DLTensor), native)
        self.object = native

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Any = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A DLPack capsule over the same memory. Raises BufferError where a copy is asked for."""
        if copy:
            raise BufferError("rpcsys gives its memory, not a copy of it")
        return dlpack.export(self.object.handle, max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> Tuple[int, int]:
        device = self._tensor.device
        return (device.type, device.id)


def lend(array: Any, keep: List[Any]) -> Optional[Tuple[int, int]]:
    """``array`` as an argument: a type index and a pointer, None for what is no array.

    What must live until the call is over is added to ``keep``. Raises `NativeError`.
    """
    if hasattr(array, "__dlpack__") and not hasattr(array, "__array_interface__"):
        return dlpack.borrow(array, keep)
    memory = locate(array)
    if memory is None:
        return None
    managed = abi.ManagedTensor()
    parts = _describe(memory, managed.tensor)
    if not library.present():
        keep.append((managed, parts, memory.owner))
        return abi.DLTENSOR, ctypes.addressof(managed.tensor)
    address = ctypes.addressof(managed)
    managed.deleter = _give_back_address
    _lent[address] = (managed, parts, memory.owner)
    out = ctypes.c_void_p()
    if library.api().TVMFFITensorFromDLPack(address, 0, 0, ctypes.byref(out)) or not out.value:
        _lent.pop(address, None)
        raise NativeError(f"an array of {memory.dtype} {memory.shape} cannot be given to native code")
    keep.append(Object(out.value))
    return abi.TENSOR, out.value


def lent() -> int:
    """How many arrays of Python's native code holds at the moment."""
    return len(_lent)


def _describe(memory: Memory, tensor: abi.DLTensor) -> Any:
    """Fill ``tensor``; what it points into."""
    rank = len(memory.shape)
    extents = _shape_types.get(rank)
    if extents is None:
        extents = _shape_types[rank] = ctypes.c_int64 * rank
    shape = extents(*memory.shape)
    strides = extents(*memory.strides) if memory.strides is not None else extents(*_c_order(memory.shape))
    code, bits = dtypes.codes(memory.dtype)
    tensor.data = memory.address
    tensor.device.type = abi.CPU
    tensor.ndim = rank
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, bits, 1
    tensor.shape = shape
    tensor.strides = strides
    return shape, strides


def _c_order(shape: Tuple[int, ...]) -> List[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _gather(start: int, shape: Tuple[int, ...], strides: List[int], item: int) -> bytearray:
    """The elements of a strided array, one after another in C order."""
    if not shape:
        return bytearray(ctypes.string_at(start, item))
    if len(shape) == 1 and strides[0] == 1:
        return bytearray(ctypes.string_at(start, shape[0] * item))
    result = bytearray()
    for index in range(shape[0]):
        result += _gather(start + index * strides[0] * item, shape[1:], strides[1:], item)
    return result


def _give_back(address: int) -> None:
    _lent.pop(address, None)


_give_back_call = abi.Deleter(_give_back)
_give_back_address = ctypes.cast(_give_back_call, ctypes.c_void_p).value
