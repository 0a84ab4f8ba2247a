"""A shared library's symbols and needs, read from the file alone: any architecture, nothing is loaded.

From the ELF specification (System V ABI, chapters 4 and 5) and the processors' supplements. Everything
the file says of places and sizes is checked against the file before it is used, so that a broken or
hostile one is an `ElfError`; loading such a file could end the process instead.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
import sys
from typing import Dict, Iterator, List, NamedTuple, Tuple, Union

Data = Union[bytes, mmap.mmap]


#: e_machine -> what Linux calls the architecture.
MACHINES = {
    3: "i386",
    8: "mips",
    20: "ppc",
    21: "ppc64",
    22: "s390x",
    40: "arm",
    62: "x86_64",
    164: "hexagon",
    183: "aarch64",
    243: "riscv",
    258: "loongarch",
}
#: What Linux calls this machine -> the name above, where it is another.
_SAME = {"i686": "i386", "i586": "i386", "amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64"}
_SHARED = 3  # e_type of a shared object
_LOAD = 1  # p_type of a segment that is mapped
_DYNSYM, _DYNAMIC = 11, 6  # sh_type
_NEEDED = 1  # d_tag of a library that must be there


class ElfError(ValueError):
    """The file is no shared library, or a broken one; the message says which, and fits behind its name."""


class Symbol(NamedTuple):
    """One entry of .dynsym. ``section`` 0 means that another library has to define it."""

    name: str
    value: int
    size: int
    section: int
    weak: bool


class _Layout(NamedTuple):
    """Where the fields stand, for 32 or 64 bits."""

    header: str
    section: str
    segment: str
    symbol: str
    dynamic: str


_LAYOUTS = {
    32: _Layout("HHIIIIIHHHHHH", "IIIIIIIIII", "IIIIIIII", "IIIBBH", "II"),
    64: _Layout("HHIQQQIHHHHHH", "IIQQQQIIQQ", "IIQQQQQQ", "IBBHQQ", "QQ"),
}
_IDENT_BYTES = 16
#: Entries of a table that are read; the largest libraries have some ten thousand symbols.
_MAX_ENTRIES = 1 << 20


class Elf:
    """A shared library as bytes.

    Attributes
    ----------
    machine : what Linux calls its architecture (``x86_64``, ``aarch64``, ``arm``, …)
    bits : 32 or 64
    symbols : its .dynsym by name
    needed : names of the libraries that must be there
    """

    def __init__(self, data: Data) -> None:
        """Raises `ElfError`."""
        if data[:4] != b"\x7fELF":
            raise ElfError("is not an ELF shared library")
        self._data: Data = data
        self.bits = {1: 32, 2: 64}.get(_byte(data, 4), 0)
        order = {1: "<", 2: ">"}.get(_byte(data, 5), "")
        if not self.bits or not order:
            raise ElfError("has a broken ELF header")
        self._order = order
        self._layout = _LAYOUTS[self.bits]
        fields = self._unpack(self._layout.header, _IDENT_BYTES)
        self.machine = MACHINES.get(fields[1], f"machine {fields[1]}")
        if fields[0] != _SHARED:
            raise ElfError("is an ELF file, but no shared library (link it with -shared)")
        self._segments(fields[4], fields[9])
        self._sections = self._read_sections(fields[5], fields[11])
        self.symbols: Dict[str, Symbol] = {symbol.name: symbol for symbol in self._read_symbols()}
        self.needed: List[str] = list(self._read_needed())

    def fits(self) -> bool:
        """Whether this process could load it: its architecture, width and byte order are this one's."""
        here = platform.machine()
        here = _SAME.get(here, "arm" if here.startswith("arm") else here)
        here = "riscv" if here.startswith("riscv") else here
        own_bits = 64 if sys.maxsize > 1 << 32 else 32
        wanted = {("x86_64", 32): "i386", ("aarch64", 32): "arm"}.get((here, own_bits), here)
        order = "<" if sys.byteorder == "little" else ">"
        return (self.machine, self.bits, self._order) == (wanted, own_bits, order)

    def undefined(self) -> List[str]:
        """Names that another library must define, weak ones left out."""
        return [symbol.name for symbol in self.symbols.values() if not symbol.section and not symbol.weak]

    def _segments(self, offset: int, count: int) -> None:
        """Check that every mapped segment is in the file: touching one that is not ends a process."""
        for kind, *rest in self._table(self._layout.segment, offset, count):
            start, size = (rest[1], rest[4]) if self.bits == 64 else (rest[0], rest[3])
            if kind == _LOAD and start + size > len(self._data):
                raise ElfError("is cut off (copied while it was being written, or only in part)")

    def _read_sections(self, offset: int, count: int) -> List[Tuple[int, ...]]:
        return list(self._table(self._layout.section, offset, count))

    def _contents(self, kind: int) -> Iterator[Tuple[int, int, int]]:
        """Offset, size and the offset of the string table of every section of ``kind``."""
        for section in self._sections:
            if section[1] == kind:
                if section[6] >= len(self._sections):
                    raise ElfError("has broken sections")
                yield section[4], section[5], self._sections[section[6]][4]

    def _read_symbols(self) -> Iterator[Symbol]:
        for offset, size, strings in self._contents(_DYNSYM):
            count = size // struct.calcsize(self._order + self._layout.symbol)
            for fields in self._table(self._layout.symbol, offset, count):
                if self.bits == 64:
                    name, info, _, section, value, length = fields
                else:
                    name, value, length, info, _, section = fields
                if name:
                    yield Symbol(self._text(strings + name), value, length, section, info >> 4 == 2)

    def _read_needed(self) -> Iterator[str]:
        for offset, size, strings in self._contents(_DYNAMIC):
            count = size // struct.calcsize(self._order + self._layout.dynamic)
            for tag, value in self._table(self._layout.dynamic, offset, count):
                if tag == _NEEDED:
                    yield self._text(strings + value)

    def _table(self, layout: str, offset: int, count: int) -> Iterator[Tuple[int, ...]]:
        size = struct.calcsize(self._order + layout)
        if count > _MAX_ENTRIES or offset + count * size > len(self._data):
            raise ElfError("has a table that is not in the file (cut off?)")
        return struct.iter_unpack(self._order + layout, self._data[offset : offset + count * size])

    def _unpack(self, layout: str, offset: int) -> Tuple[int, ...]:
        return next(self._table(layout, offset, 1))

    def _text(self, offset: int) -> str:
        end = self._data.find(b"\0", offset)
        if not 0 <= offset < len(self._data) or end < 0:
            raise ElfError("has a name that is not in the file")
        return self._data[offset:end].decode("utf-8", "replace")


def read(path: str) -> Elf:
    """The shared library at ``path``. Raises `ElfError` for what is none, OSError for what cannot be read."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ElfError("is an empty file")
        # Mapped: only the tables are read, whatever the size of the library.
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return Elf(data)


def _byte(data: Data, index: int) -> int:
    return data[index] if len(data) > index else -1
