"""Libraries that TVM built, on a device without any TVM library.

Such a library needs one thing of libtvm_ffi: a way to say what went wrong. It binds that function lazily, when
it is first called, and a process that has none ends there. So the library is opened lazily, and a function
of ours is put into the slot of its procedure linkage table, as the dynamic linker would put libtvm_ffi's.

Known weakness: a library that was linked to bind everything at once (``-z now``) has no such slots, and is refused.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from rpcsys.errors import NativeError

_last = threading.local()


def open_lazily(path: str, needs: Sequence[str]) -> ctypes.CDLL:
    """The library at ``path``, its functions bound when they are first called.

    Raises OSError where it does not load, or one of the symbols it ``needs`` is nowhere.
    """
    process = ctypes.CDLL(None)
    process.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    process.dlopen.restype = ctypes.c_void_p
    process.dlerror.restype = ctypes.c_char_p
    handle = process.dlopen(os.fsencode(path), os.RTLD_LAZY | os.RTLD_LOCAL)
    if not handle:
        raise OSError((process.dlerror() or b"it cannot be loaded").decode("utf-8", "replace"))
    library = ctypes.CDLL(path, handle=handle)
    for name in needs:
        if not (hasattr(library, name) or hasattr(process, name)):
            raise OSError(f"{path}: undefined symbol: {name}")
    return library


def provide(slots: Dict[str, int]) -> None:
    """Put the functions of ours that ``slots`` names at the addresses there.

    Raises `NativeError` where there is none of that name, or the memory cannot be written to.
    """
    for name, address in slots.items():
        if name not in _ADDRESSES:
            raise NativeError(f"it needs {name} of libtvm_ffi", kind="LibraryMissing")
        if not any(start <= address < end for start, end in _writable()):
            raise NativeError(f"its slot for {name} cannot be written to", kind="LibraryMissing")
    for name, address in slots.items():
        ctypes.c_void_p.from_address(address).value = _ADDRESSES[name]


def raised() -> Optional[NativeError]:
    """The error that native code has said last in this thread, and not been asked for yet."""
    error: Optional[NativeError] = getattr(_last, "error", None)
    _last.error = None
    return error


def _writable() -> Iterator[Tuple[int, int]]:
    """The parts of this process's memory that can be written to."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights = line.split(None, 2)[:2]
            if "w" in rights:
                start, _, end = place.partition("-")
                yield int(start, 16), int(end, 16)


def _set_parts(kind: bytes, parts: Any, count: int) -> None:
    _set(kind, b"".join(parts[index] or b"" for index in range(count)))


def _set(kind: bytes, message: bytes) -> None:
    _last.error = NativeError(message.decode("utf-8", "replace"), kind=kind.decode("utf-8", "replace"))


_FUNCTIONS = {
    "TVMFFIErrorSetRaisedFromCStr": ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(_set),
    "TVMFFIErrorSetRaisedFromCStrParts": ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32
    )(_set_parts),
}
_ADDRESSES = {name: ctypes.cast(function, ctypes.c_void_p).value for name, function in _FUNCTIONS.items()}
