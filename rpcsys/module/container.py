"""The modules inside a shared library, read from its file: mapped, never loaded, whatever machine it is for.

Known weakness: a file that is cut off while it is mapped takes the process with it (SIGBUS). Replace models by
renaming another file over them, as `export_library` does; never write into one.
"""

from __future__ import annotations

from typing import List, NamedTuple

from rpcsys.ffi.module import LIBRARY_BIN, PREFIX
from rpcsys.module import elf, layout
from rpcsys.module.elf import Elf
from rpcsys.module.layout import LIBRARY, Record

OLDER_BIN = "__tvm_dev_mblob"  # where TVM had the modules before tvm-ffi
#: Symbols that are no functions: the modules inside, and what tvm-ffi says about functions.
_DATA = ("_library_", "_metadata_", "_doc_")


class Container(NamedTuple):
    """What a library holds."""

    elf: Elf
    records: List[Record]  # the modules, the root first; the library alone where nothing else is inside
    older: bool = False  # whether they are in the layout that TVM had before tvm-ffi

    @property
    def is_plain(self) -> bool:
        """Whether it holds no modules beside its own functions."""
        return [record.kind for record in self.records] == [LIBRARY]

    @property
    def kinds(self) -> List[str]:
        """The kinds of the modules in it, sorted; ``_lib`` left out."""
        return sorted({record.kind for record in self.records} - {LIBRARY})


def read(path: str) -> Container:
    """The library at ``path``, whose modules' bytes keep it mapped. Raises `ElfError`, `FormatError`, OSError."""
    return parse(elf.mapped(path))


def parse(data: elf.Data) -> Container:
    """The library that ``data`` is. Raises `ElfError`, `FormatError`."""
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
