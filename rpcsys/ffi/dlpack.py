"""DLPack capsules: native arrays for other libraries, and other libraries' arrays for native code.

A capsule is called ``dltensor`` (or ``dltensor_versioned``, since DLPack 1) until its tensor has been taken, and
``used_`` after; one that dies untaken calls the tensor's deleter.
"""

from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, library
from rpcsys.ffi.objects import Object

PLAIN = b"dltensor"
VERSIONED = b"dltensor_versioned"
_USED = {PLAIN: b"used_dltensor", VERSIONED: b"used_dltensor_versioned"}
#: The versions whose structures are known here: all of DLPack 1.
_VERSION = (1, 0)

_python = ctypes.pythonapi
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
# By address: a destructor runs when its capsule has no reference left, and must not make one.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_SetName", _python))


def export(handle: int, versioned: bool) -> Any:
    """A capsule of the Tensor object at ``handle``. Raises `NativeError`."""
    api = library.api()
    out = ctypes.c_void_p()
    call = api.TVMFFITensorToDLPackVersioned if versioned else api.TVMFFITensorToDLPack
    if call(handle, ctypes.byref(out)):
        raise NativeError("this array cannot be given to other libraries through DLPack")
    return _new(out.value, VERSIONED if versioned else PLAIN, _destructor_address)


def borrow(array: Any, keep: List[Any]) -> Tuple[int, int]:
    """Another library's array as an argument: a type index and a pointer. Raises `NativeError`."""
    capsule = _capsule(array)
    name = VERSIONED if _is_valid(id(capsule), VERSIONED) else PLAIN
    if not _is_valid(id(capsule), name):
        raise NativeError(f"{type(array).__name__}.__dlpack__ returned no DLPack capsule", kind="TypeError")
    address = _pointer(id(capsule), name)
    if not library.present():
        kind = abi.VersionedTensor if name is VERSIONED else abi.ManagedTensor
        keep.append(capsule)
        return abi.DLTENSOR, ctypes.addressof(kind.from_address(address).tensor)
    api = library.api()
    take = api.TVMFFITensorFromDLPackVersioned if name is VERSIONED else api.TVMFFITensorFromDLPack
    out = ctypes.c_void_p()
    if take(address, 0, 0, ctypes.byref(out)) or not out.value:
        raise NativeError(f"a {type(array).__name__} cannot be given to native code")
    _rename(id(capsule), _USED[name])
    keep.append(Object(out.value))
    return abi.TENSOR, out.value


def _capsule(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=_VERSION)
    except TypeError:  # written before DLPack 1
        return array.__dlpack__()


def _destroy(capsule: int) -> None:
    for name, kind in ((PLAIN, abi.ManagedTensor), (VERSIONED, abi.VersionedTensor)):
        if _is_valid(capsule, name):
            address = _pointer(capsule, name)
            deleter = kind.from_address(address).deleter
            if deleter:
                abi.Deleter(deleter)(address)


_destructor = _Destructor(_destroy)
_destructor_address = ctypes.cast(_destructor, ctypes.c_void_p).value
