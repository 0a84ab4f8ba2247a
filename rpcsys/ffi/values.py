"""One value, from Python to an Any and back.

=====================================  =========================================
Python                                 native
=====================================  =========================================
None, bool, int, float                 themselves
str, bytes, bytearray                  RawStr, ByteArray as an argument; Str, Bytes
`DType`, `Device`                      DType, Device
arrays (see `rpcsys.ffi.memory`)       Tensor, or DLTensor without libtvm_ffi
tuple, list, dict                      Array, List, Map
callables                              Function
`Object` and what holds one            itself
``ctypes.c_void_p``                    an opaque pointer
=====================================  =========================================

Back it is the same, with `Tensor` for an array, `Function` for a function and `Object` for what has no
form here. A Shape comes back as a tuple.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, dtypes, library, tensors
from rpcsys.ffi.dtypes import DType
from rpcsys.ffi.memory import Memory
from rpcsys.ffi.objects import Object

Keep = List[Any]


class Device(NamedTuple):
    """A device by DLPack's number of its kind (1 is the CPU) and its own."""

    type: int
    id: int = 0


# ------------------------------------------------------------------ to native code


def fill(slot: abi.Any, value: Any, keep: Keep) -> None:
    """Write ``value`` into ``slot`` as an argument; what must live until the call is over goes into ``keep``.

    Raises `NativeError` (kind TypeError) for what has no native form.
    """
    filler = _FILLERS.get(type(value), _fill_other)
    filler(slot, value, keep)


def _fill_none(slot: abi.Any, value: None, keep: Keep) -> None:
    slot.type = abi.NONE


def _fill_bool(slot: abi.Any, value: bool, keep: Keep) -> None:
    slot.type = abi.BOOL
    slot.int = value


def _fill_int(slot: abi.Any, value: int, keep: Keep) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise NativeError(f"{value} does not fit into 64 bits", kind="OverflowError")
    slot.type = abi.INT
    slot.int = value


def _fill_float(slot: abi.Any, value: float, keep: Keep) -> None:
    slot.type = abi.FLOAT
    slot.float = value


def _fill_str(slot: abi.Any, value: str, keep: Keep) -> None:
    data = value.encode("utf-8", "surrogateescape")
    if len(data) <= abi.SMALL:
        _fill_small(slot, abi.SMALL_STR, data)
    elif b"\0" in data:
        _fill_str_with_nul(slot, data, keep)
    else:
        keep.append(data)
        slot.type = abi.RAW_STR
        slot.pointer = _address(data)


def _fill_str_with_nul(slot: abi.Any, data: bytes, keep: Keep) -> None:
    array, owned = abi.ByteArray(_address(data), len(data)), abi.Any()
    if library.api().TVMFFIStringFromByteArray(ctypes.byref(array), ctypes.byref(owned)):
        raise NativeError("native code takes no such string")
    _fill_object(slot, Object(owned.pointer), keep)


def _address(data: bytes) -> int:
    """Where the bytes lie, as long as ``data`` is kept."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _fill_bytes(slot: abi.Any, value: Any, keep: Keep) -> None:
    data = bytes(value)
    if len(data) <= abi.SMALL:
        _fill_small(slot, abi.SMALL_BYTES, data)
        return
    array = abi.ByteArray(_address(data), len(data))
    keep.extend((data, array))
    slot.type = abi.BYTE_ARRAY
    slot.pointer = ctypes.addressof(array)


def _fill_small(slot: abi.Any, kind: int, data: bytes) -> None:
    slot.type = kind
    slot.size = len(data)
    slot.int = int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


def _fill_dtype(slot: abi.Any, value: DType, keep: Keep) -> None:
    slot.type = abi.DTYPE
    slot.dtype = dtypes.structure(value)


def _fill_device(slot: abi.Any, value: Device, keep: Keep) -> None:
    slot.type = abi.DEVICE
    slot.device = abi.Device(value.type, value.id)


def _fill_pointer(slot: abi.Any, value: ctypes.c_void_p, keep: Keep) -> None:
    slot.type = abi.POINTER
    slot.pointer = value.value


def _fill_object(slot: abi.Any, value: Object, keep: Keep) -> None:
    keep.append(value)
    slot.type = value.type_index
    slot.pointer = value.handle


def _fill_memory(slot: abi.Any, value: Memory, keep: Keep) -> None:
    lent = tensors.lend(value, keep)
    assert lent is not None
    slot.type, slot.pointer = lent


def _fill_container(slot: abi.Any, value: Any, keep: Keep) -> None:
    from rpcsys.ffi import containers  # it calls native functions, which need this module

    _fill_object(slot, containers.make(value), keep)


def _fill_other(slot: abi.Any, value: Any, keep: Keep) -> None:
    if isinstance(value, Object):
        return _fill_object(slot, value, keep)
    if isinstance(value, tensors.Tensor):
        return _fill_object(slot, value.object, keep)
    if isinstance(value, tensors.TensorView):
        keep.append(value)
        slot.type, slot.pointer = abi.DLTENSOR, value.address
        return None
    if _is_scalar(value):
        return fill(slot, value.item(), keep)
    lent = tensors.lend(value, keep)
    if lent is not None:
        slot.type, slot.pointer = lent
        return None
    for plain in (bool, int, float, str, tuple, list, dict):
        if isinstance(value, plain):
            return _FILLERS[plain](slot, value, keep)
    if callable(value):
        from rpcsys.ffi import functions  # it converts with this module

        return _fill_object(slot, functions.wrap(value), keep)
    raise NativeError(f"a {type(value).__name__} has no form in native code", kind="TypeError")


def _is_scalar(value: Any) -> bool:
    """Whether it is one of numpy's scalars: they look like arrays, but cannot be written to."""
    return hasattr(value, "__array_interface__") and not hasattr(value, "__setitem__")


_FILLERS: Dict[type, Callable[[abi.Any, Any, Keep], None]] = {
    type(None): _fill_none,
    bool: _fill_bool,
    int: _fill_int,
    float: _fill_float,
    str: _fill_str,
    bytes: _fill_bytes,
    bytearray: _fill_bytes,
    DType: _fill_dtype,
    Device: _fill_device,
    ctypes.c_void_p: _fill_pointer,
    Memory: _fill_memory,
    tuple: _fill_container,
    list: _fill_container,
    dict: _fill_container,
}


def give(result: abi.Any, value: Any) -> None:
    """Write ``value`` into ``result`` as a function's result, which its caller then owns. Raises `NativeError`."""
    slot = abi.Any()
    keep: Keep = []
    fill(slot, value, keep)
    if library.api().TVMFFIAnyViewToOwnedAny(ctypes.byref(slot), ctypes.byref(result)):
        raise NativeError(f"a {type(value).__name__} cannot be returned to native code")


# ------------------------------------------------------------------ from native code


def take(slot: abi.Any) -> Any:
    """The Python value of an Any that is ours: a result. The reference in it passes to the value."""
    taker = _TAKERS.get(slot.type)
    if taker is not None:
        return taker(slot)
    if slot.type < abi.OBJECT:
        raise NativeError(f"native code returned a value of unknown type {slot.type}", kind="TypeError")
    value = Object(slot.pointer)
    opener = _OPENERS.get(slot.type)
    return value if opener is None else opener(value)


def look(slot: abi.Any) -> Any:
    """The Python value of an Any that is somebody else's: an argument of a callback."""
    if slot.type in _TAKERS:
        return _TAKERS[slot.type](slot)
    owned = abi.Any()
    if library.api().TVMFFIAnyViewToOwnedAny(ctypes.byref(slot), ctypes.byref(owned)):
        raise NativeError(f"an argument of type {slot.type} cannot be taken over")
    return take(owned)


def _take_small_str(slot: abi.Any) -> str:
    return _take_small_bytes(slot).decode("utf-8", "surrogateescape")


def _take_small_bytes(slot: abi.Any) -> bytes:
    return bytes(slot.bytes)[: min(slot.size, abi.SMALL)]


def _take_device(slot: abi.Any) -> Device:
    return Device(slot.device.type, slot.device.id)


_TAKERS: Dict[int, Callable[[abi.Any], Any]] = {
    abi.NONE: lambda slot: None,
    abi.INT: lambda slot: slot.int,
    abi.BOOL: lambda slot: bool(slot.int),
    abi.FLOAT: lambda slot: slot.float,
    abi.POINTER: lambda slot: ctypes.c_void_p(slot.pointer),
    abi.DTYPE: lambda slot: DType(dtypes.name_of(slot.dtype)),
    abi.DEVICE: _take_device,
    abi.DLTENSOR: lambda slot: tensors.TensorView(abi.DLTensor.from_address(slot.pointer)),
    abi.RAW_STR: lambda slot: ctypes.string_at(slot.pointer).decode("utf-8", "surrogateescape"),
    abi.BYTE_ARRAY: lambda slot: abi.bytes_at(abi.ByteArray.from_address(slot.pointer)),
    abi.SMALL_STR: _take_small_str,
    abi.SMALL_BYTES: _take_small_bytes,
}


def _open_bytes(native: Object) -> bytes:
    return abi.bytes_at(abi.cell(native.handle, abi.ByteArray))


def _open_shape(native: Object) -> Any:
    shape = abi.cell(native.handle, abi.ShapeCell)
    return tuple(shape.data[: shape.size])


def _open_function(native: Object) -> Any:
    from rpcsys.ffi import functions  # it converts with this module

    return functions.Function.of(native)


def open_error(native: Object) -> NativeError:
    """The error that a native error object describes."""
    error = abi.cell(native.handle, abi.ErrorCell)
    kind, message, backtrace = (
        abi.bytes_at(part).decode("utf-8", "replace") for part in (error.kind, error.message, error.backtrace)
    )
    return NativeError(message, kind=kind, backtrace=backtrace)


def _open_container(native: Object) -> Any:
    from rpcsys.ffi import containers  # it calls native functions, which need this module

    return containers.elements(native)


_OPENERS: Dict[int, Callable[[Object], Any]] = {
    abi.STR: lambda native: _open_bytes(native).decode("utf-8", "surrogateescape"),
    abi.BYTES: _open_bytes,
    abi.ERROR: open_error,
    abi.FUNCTION: _open_function,
    abi.SHAPE: _open_shape,
    abi.TENSOR: tensors.Tensor,
    abi.ARRAY: _open_container,
    abi.LIST: _open_container,
    abi.MAP: _open_container,
    abi.DICT: _open_container,
}
