"""Arrays: Python's given to native code, native ones handed to Python, and DLPack either way. Nothing is copied.

With libtvm_ffi an array becomes a Tensor object (type 70), which native code may keep: Python's memory is then
kept until it lets go. Without, it is a plain DLTensor (type 7), valid for one call.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, dlpack, dtypes, library
from rpcsys.ffi.memory import flat, locate
from rpcsys.ffi.objects import Object

_POINTER = struct.Struct("P")
_pack_pointer = _POINTER.pack
#: Kinds of arrays that are remembered; a model has some tens.
_MAX_PLANS = 1024
_plans: Dict[Any, _Plan] = {}  # by type, shape and strides
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
    key = memory[1:4]
    plan = _plans.get(key) or _plan(key)
    managed = abi.ManagedTensor.from_buffer_copy(_pack_pointer(memory.address) + plan.template)
    address = ctypes.addressof(managed)  # the tensor is the structure's first field
    if not library.present():
        keep.append((managed, plan, memory.owner))
        return abi.DLTENSOR, address
    _lent[address] = (managed, plan, memory.owner)
    out = ctypes.c_void_p()
    if library.api().TVMFFITensorFromDLPack(address, 0, 0, ctypes.byref(out)) or not out.value:
        _lent.pop(address, None)
        raise NativeError(f"an array of {memory.dtype} {memory.shape} cannot be given to native code")
    keep.append(Object(out.value))
    return abi.TENSOR, out.value


def lent() -> int:
    """How many arrays of Python's native code holds at the moment."""
    return len(_lent)


class _Plan(NamedTuple):
    """What arrays of one type and shape have in common."""

    template: bytes  # a ManagedTensor but for its first field, the address
    shape: Any  # what the template points to
    strides: Any


def _plan(key: Any) -> _Plan:
    """Make and remember the plan for a type, a shape and strides. Raises `NativeError`."""
    dtype, shape, strides = key
    extents = ctypes.c_int64 * len(shape)
    managed = abi.ManagedTensor()
    managed.deleter = _give_back_address
    tensor = managed.tensor
    tensor.device.type = abi.CPU
    tensor.ndim = len(shape)
    tensor.dtype = abi.DataType(*dtypes.codes(dtype), 1)
    own = extents(*shape)
    steps = extents(*(_c_order(shape) if strides is None else strides))
    tensor.shape, tensor.strides = own, steps
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    plan = _plans[key] = _Plan(bytes(managed)[_POINTER.size :], own, steps)
    return plan


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
