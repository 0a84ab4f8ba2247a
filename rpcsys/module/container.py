"""The modules inside a shared library, read from its file: mapped, never loaded, whatever machine it is for.

Opening one costs the same whatever its size: the tables are read, and of the modules what stands before their bytes.
The bytes themselves are views of the mapped file; the pages that nobody looks at take no memory.

Known weakness: a file that is cut off while it is mapped takes the process with it (SIGBUS). Replace models by
renaming another file over them, as `export_library` does; never write into one.
"""

from __future__ import annotations

import mmap
import os
from typing import List, NamedTuple, Optional

from rpcsys.ffi.module import LIBRARY_BIN
from rpcsys.module import elf, layout, olderlayout
from rpcsys.module.elf import Elf, ElfError
from rpcsys.module.layout import LIBRARY, Record

#: Where TVM had the modules before tvm-ffi.
OLDER_BIN = "__tvm_dev_mblob"


class Container(NamedTuple):
    """What a library holds.

    Attributes
    ----------
    elf : what it says of itself
    records : the modules, the root first; the library alone where nothing else is inside
    older : whether they are in the layout that TVM had before tvm-ffi
    """

    elf: Elf
    records: List[Record]
    older: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it holds no modules beside its own functions."""
        return [record.kind for record in self.records] == [LIBRARY]


def read(path: str) -> Container:
    """The library at ``path``; its modules' bytes keep the file mapped.

    Raises `ElfError` for what is no shared library, or a broken one, `FormatError` for broken modules
    inside, OSError for what cannot be read. Both messages fit behind the file's name.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ElfError("is an empty file")
        return parse(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def parse(data: elf.Data) -> Container:
    """The library that ``data`` is. Raises `ElfError`, `FormatError`."""
    file = elf.parse(data)
    blob = _blob(file, data, LIBRARY_BIN)
    if blob is not None:
        return Container(file, layout.decode(blob))
    blob = _blob(file, data, OLDER_BIN)
    if blob is not None:
        return Container(file, olderlayout.decode(blob), True)
    return Container(file, [Record(LIBRARY, ())])


def _blob(file: Elf, data: elf.Data, symbol: str) -> Optional[memoryview]:
    place = file.place(symbol)
    return None if place is None else memoryview(data)[place.start : place.stop]
