"""Reads a shared library's symbols and needed libraries from the file: any architecture, nothing is loaded.

It follows the ELF specification (System V ABI, chapters 4 and 5) and the processors' supplements. Every offset and size
is checked against the file before use: a broken file is an `ElfError`, whereas loading it could end the process.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

Data = Union[bytes, mmap.mmap, memoryview]

#: e_machine -> Linux's name of the architecture.
MACHINES = {
    3: "i386", 8: "mips", 20: "ppc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 164: "hexagon", 183: "aarch64",
    243: "riscv", 258: "loongarch",
}  # fmt: skip
#: Linux's name of a machine -> the name above, where the two differ.
_SAME = {"i686": "i386", "i586": "i386", "amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64"}
_SHARED = 3  # e_type of a shared object
_LOAD = 1  # p_type of a segment that is mapped
_RELA, _DYNAMIC, _REL, _DYNSYM = 4, 6, 9, 11  # sh_type
#: Machine -> the type of a relocation that binds a function at its first call (R_*_JUMP_SLOT).
_JUMP_SLOTS = {"x86_64": 7, "i386": 7, "aarch64": 1026, "arm": 22, "riscv": 5}
_NEEDED = 1  # d_tag of a library that this one needs
_WEAK = 2  # binding of a symbol that may stay undefined


class ElfError(ValueError):
    """The file is not a shared library, or is broken; the message is to follow the file's name."""


class Symbol(NamedTuple):
    """One entry of .dynsym."""

    name: str
    value: int
    size: int
    section: int  # 0: another library must define it
    weak: bool


class Segment(NamedTuple):
    """A part of the file that is mapped: ``size`` bytes at ``offset`` of the file, mapped at ``address``."""

    offset: int
    address: int
    size: int


class Layout(NamedTuple):
    """The fields of a file's tables in `struct`'s format; the comments give the specification's names."""

    header: str  # type machine version entry phoff shoff flags ehsize phentsize phnum shentsize shnum shstrndx
    section: str  # name type flags addr offset size link info addralign entsize
    segment: str  # 64 bits: type flags offset vaddr paddr filesz memsz align; 32 bits: flags stand before align
    symbol: str  # 64 bits: name info other shndx value size; 32 bits: name value size info other shndx
    word: str  # an address or a size


#: By the machine's word size in bits.
LAYOUTS = {
    32: Layout("HHIIIIIHHHHHH", "IIIIIIIIII", "IIIIIIII", "IIIBBH", "I"),
    64: Layout("HHIQQQIHHHHHH", "IIQQQQIIQQ", "IIQQQQQQ", "IBBHQQ", "Q"),
}
IDENT_BYTES = 16
_MAX_ENTRIES = 1 << 22  # the most entries of a table to read; the largest libraries have some hundred thousand
#: Bytes to read for a name: most names are shorter than the first; those of C++ templates reach some ten thousand.
_USUAL_NAME, _MAX_NAME = 200, 1 << 16


class Elf(NamedTuple):
    """Facts from a shared library's file."""

    machine: str  # Linux's name of its architecture (``x86_64``, ``aarch64``, ``arm``, …)
    bits: int  # 32 or 64
    order: str  # ``"<"`` little-endian, ``">"`` big-endian
    symbols: Dict[str, Symbol]  # its .dynsym by name
    needed: List[str]  # names of the libraries that it needs
    jump_slots: Dict[str, int]  # functions that are bound at their first call -> the address of each one's slot
    segments: List[Segment]

    def place(self, name: str) -> Optional[range]:
        """The file from symbol ``name`` to the end of its segment; None for no such symbol. Raises `ElfError`."""
        symbol = self.symbols.get(name)
        if symbol is None or not symbol.section:
            return None
        for segment in self.segments:
            into = symbol.value - segment.address
            if 0 <= into < segment.size:
                return range(segment.offset + into, segment.offset + segment.size)
        raise ElfError(f"is broken ({name} is not in the file)")

    def fits(self) -> bool:
        """Whether this process could load it: same architecture, word size and byte order."""
        order = "<" if sys.byteorder == "little" else ">"
        return (self.machine, self.bits, self.order) == (*here(), order)

    def undefined(self) -> List[str]:
        """Names that other libraries must define, without weak ones."""
        return [symbol.name for symbol in self.symbols.values() if not symbol.section and not symbol.weak]


def read(path: str) -> Elf:
    """Read the shared library at ``path``. Raises `ElfError` if it is not one, OSError if it cannot be read."""
    with mapped(path) as data:
        return parse(data)


def mapped(path: str) -> mmap.mmap:
    """Map the file at ``path`` for reading. Raises `ElfError` if it is empty, OSError if it cannot be read."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ElfError("is an empty file")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def parse(data: Data) -> Elf:
    """Read a shared library from its bytes. Raises `ElfError`."""
    if data[:4] != b"\x7fELF":
        raise ElfError("is not an ELF shared library")
    bits = {1: 32, 2: 64}.get(data[4] if len(data) > 4 else 0)
    order = {1: "<", 2: ">"}.get(data[5] if len(data) > 5 else 0)
    if bits is None or order is None:
        raise ElfError("has a broken ELF header")
    return _ElfReader(data, bits, order).elf()


def here() -> Tuple[str, int]:
    """Machine and word size of the libraries that this process could load."""
    import platform  # an idle server does not need it

    bits = 64 if sys.maxsize > 1 << 32 else 32
    machine = machine_of(platform.machine())
    return {("x86_64", 32): "i386", ("aarch64", 32): "arm"}.get((machine, bits), machine), bits


def machine_of(processor: str) -> str:
    """The name in `MACHINES` for Linux's or CMake's name: ``armv7l`` is ``arm``, ``riscv64`` is ``riscv``."""
    for start in ("arm", "riscv"):
        if processor.startswith(start) and processor != "arm64":
            return start
    return _SAME.get(processor.lower(), processor)


class _ElfReader:
    """Reads the tables of one file, and checks every offset and size."""

    def __init__(self, data: Data, bits: int, order: str) -> None:
        self._data = data
        self._bits = bits
        self._order = order
        self._layout = LAYOUTS[bits]
        self._sections: List[Tuple[int, ...]] = []

    def elf(self) -> Elf:
        fields = next(self._table(self._layout.header, IDENT_BYTES, 1))
        if fields[0] != _SHARED:
            raise ElfError("is an ELF file, but no shared library (link it with -shared)")
        machine = MACHINES.get(fields[1], f"machine {fields[1]}")
        segments = list(self._segments(fields[4], fields[9]))
        self._sections = list(self._table(self._layout.section, fields[5], fields[11]))
        symbols = list(self._symbols())
        named = {symbol.name: symbol for symbol in symbols if symbol.name}
        slots = dict(self._jump_slots(symbols, _JUMP_SLOTS.get(machine)))
        return Elf(machine, self._bits, self._order, named, list(self._needed()), slots, segments)

    def _segments(self, offset: int, count: int) -> Iterator[Segment]:
        """Every mapped segment; each must be within the file: reading beyond its end would end the process."""
        for kind, *rest in self._table(self._layout.segment, offset, count):
            start, address, size = (rest[1], rest[2], rest[4]) if self._bits == 64 else (*rest[:2], rest[3])
            if kind == _LOAD:
                if start + size > len(self._data):
                    raise ElfError("is cut off (copied while it was being written, or only in part)")
                yield Segment(start, address, size)

    def _symbols(self) -> Iterator[Symbol]:
        for fields, strings in self._entries(_DYNSYM, self._layout.symbol):
            if self._bits == 64:
                name, info, _, section, value, length = fields
            else:
                name, value, length, info, _, section = fields
            yield Symbol(self._text(strings + name), value, length, section, info >> 4 == _WEAK)

    def _needed(self) -> Iterator[str]:
        for (tag, value), strings in self._entries(_DYNAMIC, self._layout.word * 2):
            if tag == _NEEDED:
                yield self._text(strings + value)

    def _jump_slots(self, symbols: List[Symbol], wanted: Optional[int]) -> Iterator[Tuple[str, int]]:
        word = self._layout.word
        shift = 8 if self._bits == 32 else 32
        for kind, layout in ((_REL, word * 2), (_RELA, word * 2 + word.lower())):
            for (place, info, *_), _strings in self._entries(kind, layout):
                if info & ((1 << shift) - 1) == wanted and info >> shift < len(symbols):
                    yield symbols[info >> shift].name, place

    def _entries(self, kind: int, layout: str) -> Iterator[Tuple[Tuple[int, ...], int]]:
        """Every entry of the sections of ``kind``, with the offset of their string table."""
        for section in self._sections:
            if section[1] == kind:
                if section[6] >= len(self._sections):
                    raise ElfError("has broken sections")
                strings = self._sections[section[6]][4]
                count = section[5] // struct.calcsize(self._order + layout)
                for fields in self._table(layout, section[4], count):
                    yield fields, strings

    def _table(self, layout: str, offset: int, count: int) -> Iterator[Tuple[int, ...]]:
        size = struct.calcsize(self._order + layout)
        if count > _MAX_ENTRIES or offset + count * size > len(self._data):
            raise ElfError("has a table that is not in the file (cut off?)")
        return struct.iter_unpack(self._order + layout, self._data[offset : offset + count * size])

    def _text(self, offset: int) -> str:
        for most in (_USUAL_NAME, _MAX_NAME):
            text = bytes(self._data[offset : offset + most])
            end = text.find(b"\0")
            if end >= 0:
                return text[:end].decode("utf-8", "replace")
        raise ElfError("has a name that is not in the file")
