"""The functions of a library by their symbols: function ``f`` of a TVM-FFI library is the symbol ``__tvm_ffi_f``.

This suffices for self-contained libraries, with or without any TVM library. Libraries with other modules inside, or
that use TVM's thread pool, need TVM's own loader (`rpcsys.ffi.tvm`).
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi
from rpcsys.ffi import library as ffi
from rpcsys.ffi.calls import get_global, invoke, last_error, timed

PREFIX = "__tvm_ffi_"
LIBRARY_BIN = PREFIX + "_library_bin"  # the symbol of other modules inside a library
LIBRARY_CTX = PREFIX + "_library_ctx"  # the symbol in which TVM's loader stores the library's module


class Lacking(NamedTuple):
    """The needs of a library if there is no libtvm_ffi."""

    slots: Dict[str, int]  # functions of libtvm_ffi -> the address in the file at which each is bound
    anchor: Tuple[str, int]  # a symbol and its address in the file, to compute where in memory the slots are
    others: Sequence[str]  # other symbols that it needs


class Library:
    """A loaded library. It stays loaded, because no one can know when its code is no longer used."""

    def __init__(self, path: str, lacking: Optional[Lacking] = None) -> None:
        """Raises OSError with the missing symbol or library, and `NativeError` if it cannot work without libtvm_ffi."""
        path = ffi.to_open(path)
        if lacking is None:
            self._library = ctypes.CDLL(path)
            return
        self._library = _open_lazily(path, lacking.others)
        symbol, place = lacking.anchor
        base = (ctypes.cast(self._library[symbol], ctypes.c_void_p).value or 0) - place
        _fill_slots({name: base + place for name, place in lacking.slots.items()})

    def connect(self, names: Sequence[str]) -> None:
        """Do what TVM's loader does: set the pointers to the functions ``names`` of TVM's runtime, and a context."""
        ffi.load_runtime()
        process = ctypes.CDLL(None)
        for name in names:
            if not hasattr(process, name):
                raise NativeError(f"TVM's runtime has no {name}", kind="LibraryBroken")
            address = ctypes.cast(process[name], ctypes.c_void_p).value
            ctypes.c_void_p.in_dll(self._library, "__" + name).value = address
        if hasattr(self._library, LIBRARY_CTX):
            empty = get_global("ffi.SystemLib").raw("rpcsys_")  # one per process; TVM keeps it
            ctypes.c_void_p.in_dll(self._library, LIBRARY_CTX).value = empty.handle

    def function(self, name: str) -> LibraryFunction:
        """The function ``name``. Raises `NativeError` (kind AttributeError) if there is none."""
        try:
            return LibraryFunction(self._library, name)
        except AttributeError:
            raise NativeError(f"the library has no function {name!r}", kind="AttributeError") from None


class LibraryFunction:
    """A function of a library, called like any other. Raises `NativeError`."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        """Raises AttributeError if the library has no such symbol."""
        self.__name__ = name
        self._library = library  # keeps the code loaded
        self._code = getattr(library, PREFIX + name)
        self._code.argtypes = abi.SafeCall._argtypes_

    def __call__(self, *args: Any) -> Any:
        return invoke(self._call, self.__name__, args)

    def timed(self, args: Sequence[Any], clock: Callable[[], float]) -> Callable[[int], float]:
        """A function that makes so many calls with ``args``, and returns the seconds; see `calls.timed`."""
        return timed(self._code, self.__name__, args, clock)

    def _call(self, packed: Any, count: int, result: Any) -> int:
        return int(self._code(None, packed, count, result))


def check_symbols(path: str) -> None:
    """Load the library with all its symbols, and unload it. Raises OSError with the missing symbol or library.

    A symbol that is found missing at its first use would end the process.
    """
    process = ctypes.CDLL(None)
    process.dlclose.argtypes = (ctypes.c_void_p,)
    process.dlclose(ctypes.CDLL(ffi.to_open(path))._handle)


# ------------------------------------------------------------------ without libtvm_ffi

# A library that TVM built needs one function of libtvm_ffi: to set an error. It binds this function at the first call,
# and a process without libtvm_ffi would end there. So the library is opened lazily, and a substitute is written into
# the function's slot of the procedure linkage table. Limitation: a library that was linked to bind all functions when
# it is loaded (``-z now``) has no such slots, and is refused.


def _open_lazily(path: str, needs: Sequence[str]) -> ctypes.CDLL:
    """Open the library; functions are bound at their first call. Raises OSError if it or one of ``needs`` is absent."""
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


def _fill_slots(slots: Dict[str, int]) -> None:
    """Write the substitutes' addresses into ``slots`` (name -> slot). Raises `NativeError` if that is impossible."""
    for name, address in slots.items():
        if name not in _SUBSTITUTES:
            raise _missing(f"it needs {name} of libtvm_ffi")
        if not any(start <= address < end for start, end in _writable()):
            raise _missing(f"its slot for {name} cannot be written to")
    for name, address in slots.items():
        ctypes.c_void_p.from_address(address).value = ctypes.cast(_SUBSTITUTES[name], ctypes.c_void_p).value


def _missing(what: str) -> NativeError:
    return NativeError(f"{what}; start the server with --tvm-library DIR", kind="LibraryMissing")


def _writable() -> Iterator[Tuple[int, int]]:
    """The writable address ranges of this process."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights = line.split(None, 2)[:2]
            if "w" in rights:
                start, _, end = place.partition("-")
                yield int(start, 16), int(end, 16)


def _set_error(kind: bytes, message: bytes) -> None:
    last_error.value = NativeError(message.decode("utf-8", "replace"), kind=kind.decode("utf-8", "replace"))


def _set_error_parts(kind: bytes, parts: Any, count: int) -> None:
    _set_error(kind, b"".join(parts[index] or b"" for index in range(count)))


_PartsCall = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
#: The substitutes for functions of libtvm_ffi.
_SUBSTITUTES = {
    "TVMFFIErrorSetRaisedFromCStr": ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(_set_error),
    "TVMFFIErrorSetRaisedFromCStrParts": _PartsCall(_set_error_parts),
}
