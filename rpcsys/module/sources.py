"""Native functions that are still source: C and C++ files, object files and archives, linked when a tree is exported."""

from __future__ import annotations

import os
import re
import tempfile
from typing import List, Optional, Sequence, Set, Union

from rpcsys.errors import UsageError
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Function, Module

C_PLUS_PLUS = (".cc", ".cpp", ".cxx")
#: What is compiled; anything else is for the linker.
COMPILED = (".c", *C_PLUS_PLUS)
_LINKED = (".o", ".a")
#: A function by its symbol, or by the macro that tvm-ffi has for C++. An underscore more begins what is no function.
_EXPORTED = re.compile(rb"(?:__tvm_ffi_|TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*)([A-Za-z0-9]\w*)")


class Sources(Module):
    """Functions of the TVM-FFI ABI by their source: every symbol ``__tvm_ffi_NAME`` is a function ``NAME``.

    In a tree that is exported they become the library's own code (kind ``_lib``). Before, they are compiled for this
    machine when the first of them is asked for.

    Attributes
    ----------
    files : paths of ``.c``, ``.cc``, ``.cpp``, ``.cxx``, ``.o`` and ``.a`` files
    flags : more arguments for the compiler and linker (``-O3``, ``-lm``)
    """

    def __init__(self, files: Sequence[Union[str, os.PathLike[str]]], flags: Sequence[str] = ()) -> None:
        """Raises `UsageError` for a file that is not there, or of another kind."""
        super().__init__(LIBRARY)
        self.files = [os.path.abspath(os.fspath(file)) for file in files]
        self.flags = list(flags)
        self._compiled: Optional[Module] = None
        self._named: Optional[List[str]] = None
        if not self.files:
            raise UsageError("native functions need at least one file to be compiled or linked from")
        for file in self.files:
            if not file.endswith((*COMPILED, *_LINKED)):
                raise UsageError(
                    f"{file} is neither source nor object file; known are " + ", ".join((*COMPILED, *_LINKED))
                )
            if not os.path.isfile(file):
                raise UsageError(f"{file}: there is no such file")

    def names(self) -> List[str]:
        """The names as they stand in the files, for whatever machine those are."""
        if self._named is None:
            found: Set[str] = set()
            for file in self.files:
                with open(file, "rb") as content:
                    found.update(match[1].decode() for match in _EXPORTED.finditer(content.read()))
            self._named = sorted(found)
        return self._named

    def own(self, name: str) -> Optional[Function]:
        return self._library().own(name)

    def release(self) -> None:
        super().release()
        self._compiled = None

    def _library(self) -> Module:
        """The functions, compiled for this machine."""
        if self._compiled is None:
            from rpcsys.module.export import compile_functions  # it knows this class
            from rpcsys.module.kinds import native

            with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
                path = os.path.join(folder, "functions.so")
                compile_functions(self, path)
                self._compiled = native.load(path, os.path.basename(self.files[0]))
        return self._compiled
