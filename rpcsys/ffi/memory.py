"""Finds the memory of a Python array of any kind, without copying.

Supported: numpy's arrays and others with ``__array_interface__``; objects with a dtype name, a shape and flat
``data`` (rpcsys's own arrays); objects with a buffer (memoryview, array.array, bytes, mmap).
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Optional, Tuple

from rpcsys.errors import NativeError

_PYBUF_STRIDES = 0x1C  # PyBUF_FORMAT | PyBUF_STRIDES of CPython's object.h: any buffer with a shape, also read-only


class Memory(NamedTuple):
    """An array's memory. ``strides`` counts elements and is None for C order; ``owner`` keeps the memory alive."""

    address: int
    dtype: str
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]
    readonly: bool
    owner: Any


def python_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of CPython's C API, with the types of its result and arguments."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython's C API, unchanged since 3.0."""

    _fields_ = [
        ("address", ctypes.c_void_p), ("object", ctypes.c_void_p), ("length", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


_pointer = ctypes.POINTER(_PyBuffer)
_get_buffer = python_function("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object, _pointer, ctypes.c_int)
_release_buffer = python_function("PyBuffer_Release", None, _pointer)

#: struct's format characters with the same size on every machine -> names of element types.
_FORMATS = {
    "?": "bool", "c": "int8", "b": "int8", "h": "int16", "i": "int32", "q": "int64",
    "B": "uint8", "H": "uint16", "I": "uint32", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64",
}  # fmt: skip
_names: Dict[Any, str] = {}  # numpy's types -> their names; only plain types are added
_MAX_NAMES = 64


def locate(array: Any) -> Optional[Memory]:
    """The memory of ``array``; None if it is not an array. Raises `NativeError` for element types without a name."""
    if type(array) is Memory:
        return array
    interface = getattr(array, "__array_interface__", None)
    if interface is not None and hasattr(array, "dtype"):
        return _of_interface(array, interface)
    if hasattr(array, "data") and isinstance(getattr(array, "dtype", None), str):
        return _of_parts(array)
    try:
        view = memoryview(array)
    except TypeError:
        return None
    name = _name_of(view)
    strides = None if view.c_contiguous else tuple(s // view.itemsize for s in view.strides or ())
    return Memory(address_of(view), name, tuple(view.shape or ()), strides, view.readonly, view)


def address_of(view: memoryview) -> int:
    """The address of a view's first element; valid while the view exists."""
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), _PYBUF_STRIDES)
    address = buffer.address or 0
    _release_buffer(ctypes.byref(buffer))
    return int(address)


def flat(address: int, size: int, owner: Any) -> memoryview:
    """``size`` bytes at ``address`` as a flat view, which keeps ``owner`` alive."""
    # A cast would refuse the format that ctypes gives its arrays; a view of raw() has none.
    from _pickle import PickleBuffer

    block: Any = (ctypes.c_ubyte * size).from_address(address)
    block.owner = owner
    view: memoryview = PickleBuffer(block).raw()
    return view


def _of_interface(array: Any, interface: Any) -> Memory:
    dtype = array.dtype
    name = _names.get(dtype) or _learn(dtype)
    strides = interface["strides"]
    if strides is not None:
        strides = tuple(stride // dtype.itemsize for stride in strides)
    address, readonly = interface["data"]
    return Memory(address, name, interface["shape"], strides, readonly, array)


def _learn(dtype: Any) -> str:
    """The name of a numpy type; numpy itself takes longer to compute it than all other work here."""
    if not dtype.isnative:
        raise NativeError(f"an array of byte-swapped {dtype.name}; convert it first", kind="TypeError")
    if len(_names) < _MAX_NAMES:
        _names[dtype] = str(dtype.name)
    return str(dtype.name)


def _of_parts(array: Any) -> Memory:
    data = array.data
    if isinstance(data, list):
        raise NativeError("an array of strings cannot be given to native code", kind="TypeError")
    interface = getattr(data, "__array_interface__", None)
    if interface is not None:
        address, readonly = interface["data"]
        return Memory(address, array.dtype, tuple(array.shape), None, readonly, array)
    view = memoryview(data)
    return Memory(address_of(view), array.dtype, tuple(array.shape), None, view.readonly, (array, view))


def _name_of(view: memoryview) -> str:
    code = view.format.lstrip("@=<")
    if code in _FORMATS:
        return _FORMATS[code]
    if code and code in "lnLN":  # their size depends on the machine
        return "{}int{}".format("u" if code.isupper() else "", view.itemsize * 8)
    text = f"a buffer of format {view.format!r} cannot be given to native code; cast it to a plain type first"
    raise NativeError(text, kind="TypeError")
