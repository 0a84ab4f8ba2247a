"""The functions of a library by their symbols alone, with or without any TVM library.

A function ``f`` of a TVM-FFI library is the symbol ``__tvm_ffi_f``. This is enough for libraries that stand
for themselves; those with other modules inside, or that use TVM's thread pool, need TVM's own loader
(`rpcsys.ffi.tvm`).
"""

from __future__ import annotations

import ctypes
from typing import Any

from rpcsys.errors import NativeError
from rpcsys.ffi import abi
from rpcsys.ffi.functions import invoke

PREFIX = "__tvm_ffi_"
#: Where a library has other modules inside.
LIBRARY_BIN = PREFIX + "_library_bin"


class Library:
    """A loaded library. It stays loaded: nothing tells when its code is no longer used."""

    def __init__(self, path: str) -> None:
        """Raises OSError, saying what is missing."""
        self._library = ctypes.CDLL(path)

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
