"""Writes ELF files without code and without a linker: a shared library of data, or an object file to be linked.

Both define two symbols: the data, and one zeroed, writable word. They need no compiler. They follow the ELF
specification (System V ABI, chapters 4 and 5) and the processors' supplements. The same data gives the same bytes.
"""

from __future__ import annotations

import struct
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from rpcsys.module.elf import IDENT_BYTES, LAYOUTS

PAGE = 4096  # offset of the data in the file, behind all tables; so page-aligned data stays page-aligned in the file


class Machine(NamedTuple):
    """The header fields of a machine."""

    number: int
    bits: int
    flags: int
    page: int  # the largest page size of its systems
    large: int = 0  # the flag of a section that short addresses cannot reach (only x86-64 has one)


#: Machines by their names in `rpcsys.module.elf` and word size; all little-endian. Flags: the ABI that linkers require
#: of every part: version 5 on ARM, doubles passed in registers on RISC-V.
MACHINES: Dict[Tuple[str, int], Machine] = {
    ("x86_64", 64): Machine(62, 64, 0, 0x1000, 0x10000000),
    ("i386", 32): Machine(3, 32, 0, 0x1000),
    ("aarch64", 64): Machine(183, 64, 0, 0x10000),
    ("arm", 32): Machine(40, 32, 0x05000000, 0x10000),
    ("riscv", 64): Machine(243, 64, 0x5, 0x1000),
}

_OBJECT_FILE, _SHARED = 1, 3  # e_type
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551  # p_type
_READ, _WRITE = 4, 2  # p_flags
_PROGBITS, _SYMTAB, _STRTAB, _HASH, _DYNAMIC, _NOBITS, _DYNSYM = 1, 2, 3, 5, 6, 8, 11  # sh_type
_WRITABLE, _ALLOCATED = 1, 2  # sh_flags
_BSS, _DATA, _ABSOLUTE = 5, 6, 0xFFF1  # st_shndx: two sections of the tables below, and no section
_GLOBAL, _WEAK = 1 << 4 | 1, 2 << 4 | 1  # st_info: binding, and STT_OBJECT


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int = 0
    address: int = 0
    offset: int = 0
    size: int = 0
    link: int = 0
    info: int = 0
    align: int = 1
    entry: int = 0


class _Format:
    """Packs the tables for a machine's word size."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._layout = layout = LAYOUTS[machine.bits]
        self._wide = machine.bits == 64
        self.word = machine.bits // 8  # bytes of an address
        self.header_size = IDENT_BYTES + struct.calcsize("<" + layout.header)
        self.segment_size = struct.calcsize("<" + layout.segment)
        self.symbol_size = struct.calcsize("<" + layout.symbol)

    def words(self, *values: int) -> bytes:
        return struct.pack("<" + self._layout.word * len(values), *values)

    def header(self, kind: int, segments: int, sections_at: int, sections: int) -> bytes:
        """The file's header; the segments follow it directly, and the names are in the last section."""
        machine, size = self._machine, self.header_size
        rows = (size, self.segment_size, segments) if segments else (size, 0, 0)
        section = struct.calcsize("<" + self._layout.section)
        places = (0, size if segments else 0, sections_at)
        fields = (kind, machine.number, 1, *places, machine.flags, *rows, section, sections, sections - 1)
        ident = b"\x7fELF" + bytes([self.word // 4, 1, 1]) + bytes(9)
        return ident + struct.pack("<" + self._layout.header, *fields)

    def segment(self, kind: int, rights: int, offset: int, address: int, size: int, memory: int, align: int) -> bytes:
        places = (offset, address, address, size, memory)
        fields = (kind, rights, *places, align) if self._wide else (kind, *places, rights, align)
        return struct.pack("<" + self._layout.segment, *fields)

    def symbol(self, name: int, section: int, value: int, size: int, info: int = _GLOBAL) -> bytes:
        fields = (name, info, 0, section, value, size) if self._wide else (name, value, size, info, 0, section)
        return struct.pack("<" + self._layout.symbol, *fields)

    def sections(self, sections: Sequence[_Section], at: int) -> Tuple[bytes, bytes]:
        """The table of these sections plus one for their names at ``at``; and the names."""
        names, places = _strings([*(section.name for section in sections), ".shstrtab"])
        rows = [*sections, _Section(".shstrtab", _STRTAB, 0, 0, at, len(names))]
        layout = "<" + self._layout.section
        return b"".join(struct.pack(layout, place, *row[1:]) for place, row in zip(places, rows)), names


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


def shared_library(machine: Machine, data: str, cell: str, size: int) -> bytes:
    """The first `PAGE` bytes of a shared library whose other bytes are ``size`` bytes of data.

    ``data`` is the name of the data's symbol, ``cell`` that of the word's. Raises ValueError if the machine's addresses
    are too short for so many bytes.
    """
    _check_size(machine, size + 4 * machine.page)
    address = 2 * machine.page + PAGE
    front = _library(machine, cell, [_Symbol(data, _DATA, address, size)], (address, size))
    return front.ljust(PAGE, b"\0")


def function_library(machine: Machine, functions: Mapping[str, int]) -> bytes:
    """A library without code; its functions are at these addresses of the process that loads it."""
    named = [_Symbol(name, _ABSOLUTE, address, 0) for name, address in functions.items()]
    return _library(machine, "", named, None)


def _library(machine: Machine, cell: str, symbols: Sequence[_Symbol], data: Optional[Tuple[int, int]]) -> bytes:
    """A library without its data; ``data`` is their address and size, and they begin at the file's second page."""
    make = _Format(machine)
    page, word, symbol = machine.page, make.word, make.symbol_size
    strings, names = _strings([cell, *(one.name for one in symbols)])
    count = len(names)
    # A hash table with all symbols in one chain, the last one first; symbol 0 means none.
    hashes = struct.pack(f"<{4 + count}I", 1, count + 1, count, 0, *range(count))
    segments = 5 if data else 4
    hash_at = make.header_size + segments * make.segment_size
    symbols_at = _up(hash_at + len(hashes), 8)
    symbols_size = (1 + count) * symbol
    strings_at = symbols_at + symbols_size
    dynamic_at = _up(strings_at + len(strings), 8)
    dynamic = make.words(4, hash_at, 5, strings_at, 6, symbols_at, 10, len(strings), 11, symbol, 0, 0)
    end = dynamic_at + len(dynamic)
    # The end of this is mapped again as writable: for the linker and the cell.
    apart = _up(end, page)
    table = [_Symbol(cell, _BSS, apart + end, word), *symbols]
    both = _WRITABLE | _ALLOCATED
    sections = [
        _Section("", 0, align=0),
        _Section(".hash", _HASH, _ALLOCATED, hash_at, hash_at, len(hashes), 2, 0, 4, 4),
        _Section(".dynsym", _DYNSYM, _ALLOCATED, symbols_at, symbols_at, symbols_size, 3, 1, 8, symbol),
        _Section(".dynstr", _STRTAB, _ALLOCATED, strings_at, strings_at, len(strings)),
        _Section(".dynamic", _DYNAMIC, both, apart + dynamic_at, dynamic_at, len(dynamic), 3, 0, 8, 2 * word),
        _Section(".bss", _NOBITS, both, apart + end, end, word, align=8),
    ]  # fmt: skip
    loads = [
        make.segment(_LOAD, _READ, 0, 0, end, end, page),
        make.segment(_LOAD, _READ | _WRITE, dynamic_at, apart + dynamic_at, len(dynamic), len(dynamic) + word, page),
    ]  # fmt: skip
    if data:
        address, size = data
        sections.append(_Section(".rodata", _PROGBITS, _ALLOCATED, address, PAGE, size, align=PAGE))
        loads.append(make.segment(_LOAD, _READ, PAGE, address, size, size, page))
    loads += [
        make.segment(_DYNAMIC_SEGMENT, _READ | _WRITE, dynamic_at, apart + dynamic_at, len(dynamic), len(dynamic), 8),
        make.segment(_STACK, _READ | _WRITE, 0, 0, 0, 0, 16),
    ]  # fmt: skip
    rows, section_names = make.sections(sections, end)
    rows_at = _up(end + len(section_names), 8)
    return _placed(
        (0, make.header(_SHARED, segments, rows_at, len(sections) + 1)),
        (make.header_size, b"".join(loads)),
        (hash_at, hashes),
        (symbols_at + symbol, b"".join(make.symbol(name, *one[1:]) for name, one in zip(names, table))),
        (strings_at, strings),
        (dynamic_at, dynamic),
        (end, section_names),
        (rows_at, rows),
    )


def object_file(machine: Machine, data: str, cell: str, size: int) -> bytes:
    """`shared_library` for an object file, to be linked. The word is weak: code that TVM compiled defines it, too."""
    make = _Format(machine)
    _check_size(machine, size + 4 * machine.page)
    symbol = make.symbol_size
    strings, (data_name, cell_name) = _strings([data, cell])
    symbols_at = _up(make.header_size, 8)
    strings_at = symbols_at + 3 * symbol
    names_at = strings_at + len(strings)
    # If code and data are further apart than a short address reaches, only a large section can be linked.
    name = ".lrodata" if machine.large else ".rodata"
    sections = [
        _Section("", 0, align=0),
        _Section(name, _PROGBITS, _ALLOCATED | machine.large, 0, PAGE, size, align=PAGE),
        _Section(".bss", _NOBITS, _WRITABLE | _ALLOCATED, 0, PAGE, make.word, align=8),
        _Section(".symtab", _SYMTAB, 0, 0, symbols_at, 3 * symbol, 4, 1, 8, symbol),
        _Section(".strtab", _STRTAB, 0, 0, strings_at, len(strings)),
        # Without this section the linker would make the stack executable.
        _Section(".note.GNU-stack", _PROGBITS, 0, 0, names_at),
    ]
    table, names = make.sections(sections, names_at)
    table_at = _up(names_at + len(names), 8)
    symbols = make.symbol(data_name, 1, 0, size) + make.symbol(cell_name, 2, 0, make.word, _WEAK)
    front = _placed(
        (0, make.header(_OBJECT_FILE, 0, table_at, len(sections) + 1)),
        (symbols_at + symbol, symbols),
        (strings_at, strings),
        (names_at, names),
        (table_at, table),
    )
    return front.ljust(PAGE, b"\0")


def _check_size(machine: Machine, size: int) -> None:
    if size >> (machine.bits - 1):
        raise ValueError(f"{size >> 20} MB do not fit into the {machine.bits}-bit addresses of its target")


def _strings(texts: Sequence[str]) -> Tuple[bytes, List[int]]:
    """A string table, and the offset of each text in it."""
    table, places = bytearray(1), []
    for text in texts:
        places.append(len(table) if text else 0)
        table += text.encode() + b"\0" if text else b""
    return bytes(table), places


def _placed(*parts: Tuple[int, bytes]) -> bytes:
    """The parts, each at its offset, the last one at the end."""
    block = bytearray()
    for at, part in parts:
        block += bytes(at - len(block)) + part
    return bytes(block)


def _up(value: int, align: int) -> int:
    return value + -value % align
