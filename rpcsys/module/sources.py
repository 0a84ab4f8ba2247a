"""Native functions that are still source: C and C++ files, object files and archives, linked when a tree is exported."""

from __future__ import annotations

import os
from typing import Sequence, Union

from rpcsys.errors import UsageError
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Module

C_PLUS_PLUS = (".cc", ".cpp", ".cxx")
#: What is compiled; anything else is for the linker.
COMPILED = (".c", *C_PLUS_PLUS)
_LINKED = (".o", ".a")


class Sources(Module):
    """Functions of the TVM-FFI ABI by their source: every symbol ``__tvm_ffi_NAME`` is a function ``NAME``.

    In a tree that is exported they become the library's own code (kind ``_lib``); before, they cannot be called.

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
        if not self.files:
            raise UsageError("native functions need at least one file to be compiled or linked from")
        for file in self.files:
            if not file.endswith((*COMPILED, *_LINKED)):
                raise UsageError(
                    f"{file} is neither source nor object file; known are " + ", ".join((*COMPILED, *_LINKED))
                )
            if not os.path.isfile(file):
                raise UsageError(f"{file}: there is no such file")
