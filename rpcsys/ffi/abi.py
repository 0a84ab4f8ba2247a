"""The structures of the TVM-FFI and DLPack ABIs in C's layout, and element types by name.

An Any has 16 bytes and an object's header 24, on 32-bit as on 64-bit machines. The address of an object is that of its
header; the fields of its type follow directly.
"""

from __future__ import annotations

import ctypes
from typing import Dict, Tuple, Type, TypeVar

from rpcsys.errors import NativeError

# The type index of an Any. Below OBJECT the value is in the Any itself or borrowed.
NONE, INT, BOOL, FLOAT, POINTER, DTYPE, DEVICE, DLTENSOR, RAW_STR, BYTE_ARRAY = range(10)
SMALL_STR, SMALL_BYTES = 11, 12
OBJECT = 64
STR, BYTES, ERROR, FUNCTION, SHAPE, TENSOR, ARRAY, MAP, MODULE = range(65, 74)
LIST, DICT = 75, 76

SMALL = 7  # a string or bytes of at most this many bytes may be stored in the Any itself
CPU = 1  # devices whose memory the process can read


_extents = ctypes.POINTER(ctypes.c_int64)


class DataType(ctypes.Structure):
    """DLDataType: an element type. ``code`` is the kind, ``bits`` the width of a lane."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLDevice(ctypes.Structure):
    """A device; ``CPU`` and 0 for ordinary memory."""

    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Value(ctypes.Union):
    _fields_ = [
        ("int", ctypes.c_int64), ("float", ctypes.c_double), ("pointer", ctypes.c_void_p),
        ("dtype", DataType), ("device", DLDevice), ("bytes", ctypes.c_uint8 * 8),
    ]  # fmt: skip


class Any(ctypes.Structure):
    """TVMFFIAny: one argument or result. ``size`` is the length of a small string."""

    _anonymous_ = ("value",)
    _fields_ = [("type", ctypes.c_int32), ("size", ctypes.c_uint32), ("value", _Value)]


class ByteArray(ctypes.Structure):
    """TVMFFIByteArray: bytes that another owner holds."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Deleter(ctypes.Union):
    _fields_ = [("call", ctypes.c_void_p), ("width", ctypes.c_int64)]


class Header(ctypes.Structure):
    """TVMFFIObject: the header of every reference-counted object. The lower half of ``counts`` is the strong count."""

    _fields_ = [
        ("counts", ctypes.c_uint64), ("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("deleter", _Deleter),
    ]  # fmt: skip


HEADER_BYTES = ctypes.sizeof(Header)


class DLTensor(ctypes.Structure):
    """DLPack's tensor. ``strides`` counts elements; null for C order."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int32), ("dtype", DataType),
        ("shape", _extents), ("strides", _extents), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor: a tensor; its last user calls ``deleter`` with this structure's address."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


class ErrorCell(ctypes.Structure):
    """The fields of an error object behind its header, as far as they are read here."""

    _fields_ = [("kind", ByteArray), ("message", ByteArray), ("backtrace", ByteArray)]


class ShapeCell(ctypes.Structure):
    """The fields of a shape object behind its header."""

    _fields_ = [("data", _extents), ("size", ctypes.c_size_t)]


#: ``int f(field, result)``: reads a field of an object.
FieldGetter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Any))


class FieldInfo(ctypes.Structure):
    """TVMFFIFieldInfo: a field of a type, as far as it is read here. ``offset`` counts from the object's address."""

    _fields_ = [
        ("name", ByteArray), ("doc", ByteArray), ("metadata", ByteArray), ("flags", ctypes.c_int64),
        ("size", ctypes.c_int64), ("alignment", ctypes.c_int64), ("offset", ctypes.c_int64), ("get", FieldGetter),
    ]  # fmt: skip


class TypeInfo(ctypes.Structure):
    """TVMFFITypeInfo: a type of objects, as far as it is read here."""

    _fields_ = [
        ("type", ctypes.c_int32), ("depth", ctypes.c_int32), ("key", ByteArray), ("ancestors", ctypes.c_void_p),
        ("hash", ctypes.c_uint64), ("field_count", ctypes.c_int32), ("method_count", ctypes.c_int32),
        ("fields", ctypes.POINTER(FieldInfo)),
    ]  # fmt: skip


#: ``int f(self, args, count, result)``: every native function; 0 is success.
SafeCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Any), ctypes.c_int32, ctypes.POINTER(Any))
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # ``void f(pointer)``: frees the resources behind the pointer

Cell = TypeVar("Cell", bound=ctypes.Structure)


def cell(address: int, kind: Type[Cell]) -> Cell:
    """The fields of an object behind its header, by the object's address."""
    return kind.from_address(address + HEADER_BYTES)


def bytes_at(array: ByteArray) -> bytes:
    """A copy of borrowed bytes."""
    return ctypes.string_at(array.data, array.size) if array.size else b""


def borrowed(data: bytes) -> ByteArray:
    """``data`` as a ByteArray, which keeps the bytes alive."""
    return ByteArray(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))


# ------------------------------------------------------------------ element types


#: DLDataTypeCode of dlpack.h -> the kind's name, to which the number of bits is appended.
_CODE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
#: The float8 types; their codes count from 7.
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
#: Name -> (code, bits); the last three lines are exceptions to the rule.
_CODES: Dict[str, Tuple[int, int]] = {
    **{f"{kind}{bits}": (code, bits) for code, kind in ((0, "int"), (1, "uint")) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64, 128)},
    **{f"complex{bits}": (5, bits) for bits in (64, 128, 256)},
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "handle": (3, 64),
    **{f"float8_{kind}": (code, 8) for code, kind in enumerate(_FLOAT8, 7)},
}
_NAMES = {codes: name for name, codes in _CODES.items()}
_NAMES[(1, 1)] = "bool"  # TVM's code for it until 0.19


class DType(str):
    """The name of an element type as a value: native code receives it as a type, not as a string."""

    __slots__ = ()


def dtype_codes(name: str) -> Tuple[int, int]:
    """DLPack's code and bits. Raises `NativeError`, also for types below eight bits, which arrays here do not pack."""
    try:
        return _CODES[name]
    except KeyError:
        text = f"an array of {name} cannot be given to native code; convert it to a plain element type first"
        raise NativeError(text, kind="TypeError") from None


def dtype_of(name: str) -> DataType:
    """The structure for a name, which may end in ``x`` and a number of lanes. Raises `NativeError`."""
    if name in _CODES:
        return DataType(*_CODES[name], 1)
    base, _, lanes = name.rpartition("x")
    if not (base and lanes.isdigit() and int(lanes) < 1 << 16):
        base, lanes = name, "1"
    return DataType(*dtype_codes(base), int(lanes))


def dtype_name(dtype: DataType) -> str:
    """The name of a structure's element type, such as ``float32`` or ``float32x4``."""
    code, bits, lanes = dtype.code, dtype.bits, dtype.lanes
    name = _NAMES.get((code, bits)) or "{}{}".format(_CODE_NAMES.get(code, f"custom[{code}]"), bits)
    return name if lanes == 1 else f"{name}x{lanes}"
