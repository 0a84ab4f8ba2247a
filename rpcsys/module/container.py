"""Reads the modules inside a shared library from its file: mapped, never loaded, for any machine's library.

Limitation: if a file is truncated while it is mapped, the process dies of SIGBUS. To replace a model, rename another
file over it, as `export_library` does; never write into a mapped file.
"""

from __future__ import annotations

from typing import List, NamedTuple

from rpcsys.ffi.module import LIBRARY_BIN, PREFIX
from rpcsys.module import elf, layout
from rpcsys.module.elf import Elf
from rpcsys.module.layout import LIBRARY, Record

OLDER_BIN = "__tvm_dev_mblob"  # the symbol of the modules before tvm-ffi
#: Symbols that are not functions: the modules inside, and tvm-ffi's descriptions of functions.
_DATA = ("_library_", "_metadata_", "_doc_")


class Container(NamedTuple):
    """The contents of a library."""

    elf: Elf
    records: List[Record]  # the modules, the root first; only the library itself if there are no others
    older: bool = False  # whether the modules are in the layout before tvm-ffi

    @property
    def is_plain(self) -> bool:
        """Whether it holds no modules besides its own functions."""
        return [record.kind for record in self.records] == [LIBRARY]

    @property
    def kinds(self) -> List[str]:
        """The kinds of its modules, sorted, without ``_lib``."""
        return sorted({record.kind for record in self.records} - {LIBRARY})

    def older_functions(self) -> List[str]:
        """The functions of a library that was compiled before tvm-ffi, sorted; none if it has TVM-FFI functions."""
        if not self.older or functions_of(self.elf):
            return []
        return sorted(s.name for s in self.elf.symbols.values() if s.section and not s.name.startswith("_"))


def read(path: str) -> Container:
    """Read the library at ``path``; its modules' bytes keep it mapped. Raises `ElfError`, `FormatError`, OSError."""
    return parse(elf.mapped(path))


def parse(data: elf.Data) -> Container:
    """Read a library from its bytes. Raises `ElfError`, `FormatError`."""
    file = elf.parse(data)
    for symbol, decode in ((LIBRARY_BIN, layout.decode), (OLDER_BIN, layout.decode_older)):
        place = file.place(symbol)
        if place is not None:
            return Container(file, decode(memoryview(data)[place.start : place.stop]), symbol == OLDER_BIN)
    return Container(file, [Record(LIBRARY, ())])


def functions_of(file: Elf) -> List[str]:
    """The TVM-FFI functions that a library defines, sorted."""
    defined = [symbol.name for symbol in file.symbols.values() if symbol.section]
    functions = [symbol[len(PREFIX) :] for symbol in defined if symbol.startswith(PREFIX)]
    return sorted(function for function in functions if not function.startswith(_DATA))
