"""The functions of a library by their symbols alone, with or without any TVM library.

A function ``f`` of a TVM-FFI library is the symbol ``__tvm_ffi_f``. This is enough for libraries that stand
for themselves; those with other modules inside, or that use TVM's thread pool, need TVM's own loader
(`rpcsys.ffi.tvm`).
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Optional, Sequence

from rpcsys.errors import NativeError
from rpcsys.ffi import abi
from rpcsys.ffi import library as ffi
from rpcsys.ffi.functions import get_global, invoke

PREFIX = "__tvm_ffi_"
#: Where a library has other modules inside.
LIBRARY_BIN = PREFIX + "_library_bin"
#: Where TVM's loader stores the module that the library became.
LIBRARY_CTX = PREFIX + "_library_ctx"


class Anchor(NamedTuple):
    """A symbol and its place in the file, which tells where in memory the file's other places are."""

    symbol: str
    place: int


class Lacking(NamedTuple):
    """What a library needs where there is no libtvm_ffi.

    ``slots``: functions of libtvm_ffi and the place in the file that each is bound at; ``others``: what it
    needs besides.
    """

    slots: Dict[str, int]
    anchor: Anchor
    others: Sequence[str]


class Library:
    """A loaded library. It stays loaded: nothing tells when its code is no longer used."""

    def __init__(self, path: str, lacking: Optional[Lacking] = None) -> None:
        """Raises OSError, saying what is missing, and `NativeError` for one that cannot do without libtvm_ffi."""
        if lacking is None:
            self._library = ctypes.CDLL(path)
            return
        from rpcsys.ffi import standin

        self._library = standin.open_lazily(path, lacking.others)
        base = (ctypes.cast(self._library[lacking.anchor.symbol], ctypes.c_void_p).value or 0) - lacking.anchor.place
        standin.provide({name: base + place for name, place in lacking.slots.items()})

    def connect(self, names: Sequence[str]) -> None:
        """Give the library what TVM's loader gives it, where that does not load it.

        That is the addresses of functions of TVM's runtime (``names``), which it keeps behind symbols ``__NAME``, and a
        module through which it looks up others: here, those that are registered in the process. Raises `NativeError`.
        """
        ffi.load_runtime()
        process = ctypes.CDLL(None)
        for name in names:
            if not hasattr(process, name):
                raise NativeError(f"TVM's runtime has no {name}", kind="LibraryBroken")
            address = ctypes.cast(process[name], ctypes.c_void_p).value
            ctypes.c_void_p.in_dll(self._library, "__" + name).value = address
        if hasattr(self._library, LIBRARY_CTX):
            empty = get_global("ffi.SystemLib").raw("rpcsys_")  # one for the process, which TVM keeps
            ctypes.c_void_p.in_dll(self._library, LIBRARY_CTX).value = empty.handle

    def function(self, name: str) -> Symbol:
        """The function ``name``. Raises `NativeError` (kind AttributeError) where there is none."""
        try:
            return Symbol(self._library, name)
        except AttributeError:
            raise NativeError(f"the library has no function {name!r}", kind="AttributeError") from None


class Symbol:
    """A function of a library; called like any other. Raises `NativeError`."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        """Raises AttributeError where the library has no such symbol."""
        self.__name__ = name
        self._library = library  # keeps the code
        self._code = getattr(library, PREFIX + name)
        self._code.argtypes = abi.SafeCall._argtypes_

    def __call__(self, *args: Any) -> Any:
        return invoke(self._call, self.__name__, args)

    def _call(self, packed: Any, count: int, result: Any) -> int:
        return int(self._code(None, packed, count, result))
