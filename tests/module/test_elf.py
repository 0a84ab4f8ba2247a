"""The ELF reader, with libraries of this machine and others, and with invalid bytes."""

from __future__ import annotations

import contextlib
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import elf

SOURCE = """
extern int elsewhere(void);
__attribute__((weak)) extern int perhaps(void);
int __tvm_ffi_main(void) { return elsewhere() + (perhaps ? perhaps() : 0); }
char __tvm_ffi__library_bin[24] = "12345678";
"""


def build(folder: Path, *flags: str) -> Path:
    (folder / "f.c").write_text(SOURCE)
    target = folder / "f.so"
    command = ["cc", "-shared", "-fPIC", "-nostdlib", "-Wl,-z,lazy", *flags, "-o", str(target)]
    subprocess.run([*command, str(folder / "f.c")], check=True)
    return target


@pytest.fixture(scope="module", params=[64, 32])
def bits(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def library(bits: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("elf"), f"-m{bits}", "-Wl,-soname,f.so")


def test_the_facts_of_a_library(library: Path, bits: int) -> None:
    file = elf.read(str(library))
    assert (file.machine, file.bits, file.order) == ({64: "x86_64", 32: "i386"}[bits], bits, "<")
    assert file.undefined() == ["elsewhere"]
    assert file.symbols["perhaps"].weak
    assert file.symbols["__tvm_ffi_main"].section
    bin_symbol = file.symbols["__tvm_ffi__library_bin"]
    assert bin_symbol.size == 24
    assert "elsewhere" in file.jump_slots
    assert file.needed == []
    assert file.fits() == (bits == 64)


def test_agrees_with_readelf(library: Path) -> None:
    command = ["readelf", "--dyn-syms", "-W", str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in listed.splitlines() if ":" in line and line.split()[0][:-1].isdigit()]
    wanted = {row[7].split("@")[0]: (int(row[1], 16), int(row[2], 0)) for row in rows if len(row) > 7}
    seen = {name: (symbol.value, symbol.size) for name, symbol in elf.read(str(library)).symbols.items()}
    assert seen == wanted


def test_a_large_library_of_c_plus_plus() -> None:
    from rpcsys.ffi import library as libraries

    found = libraries.find()
    if found is None:
        pytest.skip("there is no libtvm_ffi here")
    file = elf.read(found.ffi)
    assert "TVMFFIFunctionCall" in file.symbols
    assert "libc.so.6" in file.needed
    assert file.fits()


def test_libraries_of_other_machines_are_read(library: Path, bits: int) -> None:
    data = bytearray(library.read_bytes())
    for number, name in ((183, "aarch64"), (243, "riscv"), (40, "arm"), (9999, "machine 9999")):
        struct.pack_into("<H", data, 18, number)
        file = elf.parse(bytes(data))
        assert file.machine == name
        assert not file.fits()
        assert "__tvm_ffi_main" in file.symbols


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"#!/bin/sh\n", "not an ELF"),
        (b"\x7fELF", "broken ELF header"),
        (b"\x7fELF\2\1" + bytes(10), "not in the file"),
        (b"\x7fELF\2\1" + bytes(58), "no shared library"),
    ],
)
def test_other_files_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(elf.ElfError, match=words):
        elf.read(str(path))


def test_every_cut_is_an_error(library: Path) -> None:
    data = library.read_bytes()
    sections_end = len(data)
    for length in range(0, sections_end, 97):
        with pytest.raises(elf.ElfError):
            elf.parse(data[:length])


@given(st.data())
def test_any_damage_is_an_error_or_nothing(library: Path, data: st.DataObject) -> None:
    damaged = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, 63) | st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(elf.ElfError):
        elf.parse(bytes(damaged))
