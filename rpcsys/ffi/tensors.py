"""Arrays: Python's passed to native code, native ones passed to Python, and DLPack both ways. Nothing is copied.

With libtvm_ffi an array becomes a Tensor object (type 70); native code may keep it, and with it Python's memory.
Without libtvm_ffi it is a plain DLTensor (type 7), valid for one call.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, library
from rpcsys.ffi.library import Object
from rpcsys.ffi.memory import flat, locate, python_function
from rpcsys.wire.device_names import of_dlpack

_POINTER = struct.Struct("P")
_pack_pointer = _POINTER.pack
_MAX_TEMPLATES = 1024  # the most kinds of arrays to remember; a model has some tens
_templates: Dict[Any, _Template] = {}  # by type, shape and strides
#: Arrays that native code holds: a structure's address -> the structure and all that it points to.
_exported: Dict[int, Tuple[Any, ...]] = {}


class TensorView:
    """A native array with another owner: an argument, valid during its call."""

    def __init__(self, tensor: abi.DLTensor, owner: Any = None) -> None:
        self._tensor = tensor
        self._owner = owner
        self.dtype = abi.dtype_name(tensor.dtype)  # the element type's name
        self.shape: Tuple[int, ...] = tuple(tensor.shape[: tensor.ndim])
        self.device = of_dlpack(tensor.device.type, tensor.device.id)  # ``"opencl:0"``

    def __repr__(self) -> str:
        return f"<native array {self.dtype} {self.shape} on {self.device}>"

    @property
    def address(self) -> int:
        """The address of the structure that describes it."""
        return ctypes.addressof(self._tensor)

    @property
    def data(self) -> memoryview:
        """Its bytes in C order, a view of the same memory; a copy if its elements are not contiguous.

        Raises `NativeError` for memory of another device, and for elements that are not whole bytes.
        """
        tensor = self._tensor
        bits = tensor.dtype.bits * tensor.dtype.lanes
        if tensor.device.type != abi.CPU or bits % 8:
            raise NativeError(f"an array of {self.dtype} on {self.device} cannot be read from Python")
        count = math.prod(self.shape)
        if not count:
            return memoryview(b"")
        start, strides = tensor.data + tensor.byte_offset, tensor.strides[: tensor.ndim] if tensor.strides else None
        order = zip(self.shape, strides or (), _c_order(self.shape))
        if all(extent == 1 or stride == expected for extent, stride, expected in order):
            return flat(start, count * (bits // 8), (self, self._owner))
        return memoryview(_gather(start, self.shape, strides, bits // 8))


class NativeTensor(TensorView):
    """A native array that owns its memory. Other libraries take it without a copy through ``__dlpack__``."""

    def __init__(self, native: Object) -> None:
        super().__init__(abi.cell(native.handle, abi.DLTensor), native)
        self.object = native

    def __dlpack__(
        self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None, dl_device: Any = None,
        copy: Optional[bool] = None,
    ) -> Any:  # fmt: skip
        """A DLPack capsule of the same memory. Raises BufferError if a copy is requested."""
        if copy:
            raise BufferError("rpcsys shares its memory and makes no copy")
        name = _PLAIN if max_version is None or max_version[0] < 1 else _VERSIONED
        out = ctypes.c_void_p()
        api = library.api()
        call = api.TVMFFITensorToDLPack if name is _PLAIN else api.TVMFFITensorToDLPackVersioned
        if call(self.object.handle, ctypes.byref(out)):
            raise NativeError("this array cannot be given to other libraries through DLPack")
        return _new(out.value, name, _destructor_address)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._tensor.device.type, self._tensor.device.id


def as_argument(array: Any, keep: List[Any]) -> Optional[Tuple[int, int]]:
    """``array`` as an argument: a type index and a pointer; None if it is not an array.

    All that must live until the call returns is added to ``keep``. Raises `NativeError`.
    """
    if hasattr(array, "__dlpack__") and not hasattr(array, "__array_interface__"):
        return _borrowed(array, keep)
    memory = locate(array)
    if memory is None:
        return None
    key = memory[1:4]
    template = _templates.get(key) or _template(key)
    managed = abi.ManagedTensor.from_buffer_copy(_pack_pointer(memory.address) + template.rest)
    address = ctypes.addressof(managed)  # the tensor is the structure's first field
    if not library.present():
        keep.append((managed, template, memory.owner))
        return abi.DLTENSOR, address
    _exported[address] = (managed, template, memory.owner)
    out = ctypes.c_void_p()
    if library.api().TVMFFITensorFromDLPack(address, 0, 0, ctypes.byref(out)) or not out.value:
        _exported.pop(address, None)
        raise NativeError(f"an array of {memory.dtype} {memory.shape} cannot be given to native code")
    keep.append(Object(out.value))
    return abi.TENSOR, out.value


class _Template(NamedTuple):
    """The fields that arrays of one type and shape share."""

    rest: bytes  # a ManagedTensor without its first field, the address
    shape: Any  # the memory that ``rest`` points to
    strides: Any


def _template(key: Any) -> _Template:
    """Make and remember the template for a type, a shape and strides. Raises `NativeError`."""
    dtype, shape, strides = key
    extents = ctypes.c_int64 * len(shape)
    own, steps = extents(*shape), extents(*(_c_order(shape) if strides is None else strides))
    managed = abi.ManagedTensor()
    managed.deleter = _release_address
    tensor = managed.tensor
    tensor.device.type, tensor.ndim = abi.CPU, len(shape)
    tensor.dtype = abi.DataType(*abi.dtype_codes(dtype), 1)
    tensor.shape, tensor.strides = own, steps
    if len(_templates) >= _MAX_TEMPLATES:
        _templates.clear()
    template = _templates[key] = _Template(bytes(managed)[_POINTER.size :], own, steps)
    return template


def _c_order(shape: Tuple[int, ...]) -> List[int]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _gather(start: int, shape: Tuple[int, ...], strides: Any, item: int) -> bytearray:
    """The elements of a strided array, contiguous in C order."""
    if not shape:
        return bytearray(ctypes.string_at(start, item))
    if len(shape) == 1 and strides[0] == 1:
        return bytearray(ctypes.string_at(start, shape[0] * item))
    result = bytearray()
    for index in range(shape[0]):
        result += _gather(start + index * strides[0] * item, shape[1:], strides[1:], item)
    return result


_release_call = abi.Deleter(lambda address: _exported.pop(address, None) and None)
_release_address = ctypes.cast(_release_call, ctypes.c_void_p).value


# ------------------------------------------------------------------ DLPack capsules

# A capsule's name is ``dltensor`` (or ``dltensor_versioned``, since DLPack 1) until its tensor is taken, and then is
# prefixed with ``used_``. A capsule that is deleted before that calls the tensor's deleter.
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_STRUCTURES = {_PLAIN: abi.ManagedTensor, _VERSIONED: abi.VersionedTensor}
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}  # constants: a capsule does not copy names
_VERSION = (1, 0)  # the version of the structures here: valid for all of DLPack 1


_new = python_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# By address: a destructor runs after its capsule's last reference is gone, and must not create a new one.
_is_valid = python_function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = python_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = python_function("PyCapsule_SetName", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


def _borrowed(array: Any, keep: List[Any]) -> Tuple[int, int]:
    """Another library's array as an argument: a type index and a pointer. Raises `NativeError`."""
    try:
        capsule = array.__dlpack__(max_version=_VERSION)
    except TypeError:  # the array's library is older than DLPack 1
        capsule = array.__dlpack__()
    name = next((name for name in _STRUCTURES if _is_valid(id(capsule), name)), None)
    if name is None:
        raise NativeError(f"{type(array).__name__}.__dlpack__ returned no DLPack capsule", kind="TypeError")
    address = _pointer(id(capsule), name)
    if not library.present():
        keep.append(capsule)
        return abi.DLTENSOR, ctypes.addressof(_STRUCTURES[name].from_address(address).tensor)
    api = library.api()
    take = api.TVMFFITensorFromDLPackVersioned if name is _VERSIONED else api.TVMFFITensorFromDLPack
    out = ctypes.c_void_p()
    if take(address, 0, 0, ctypes.byref(out)) or not out.value:
        raise NativeError(f"a {type(array).__name__} cannot be given to native code")
    _rename(id(capsule), _USED[name])
    keep.append(Object(out.value))
    return abi.TENSOR, out.value


def _destroy(capsule: int) -> None:
    for name, structure in _STRUCTURES.items():
        if _is_valid(capsule, name):
            address = _pointer(capsule, name)
            deleter = structure.from_address(address).deleter
            if deleter:
                abi.Deleter(deleter)(address)


_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)
_destructor_address = ctypes.cast(_destructor, ctypes.c_void_p).value
