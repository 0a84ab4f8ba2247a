"""Reads the modules inside a library from its file."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.runner import resident
from rpcsys.ffi.module import LIBRARY_BIN
from rpcsys.module import container, elfwriter
from rpcsys.module.elf import ElfError
from rpcsys.module.layout import FormatError, Record
from tests.module.libraries import TREE, library, older, string, tree, write
from tests.native import FUNCTIONS, compiled

BLOB = tree(("root", (1, 1), b"about"), ("leaf", (), bytes(5000)))


@pytest.mark.parametrize("machine", elfwriter.MACHINES, ids=lambda name: name[0])
def test_modules_for_any_machine(machine: tuple[str, int], tmp_path: Path) -> None:
    read = container.read(str(write(tmp_path / "m.so", BLOB, machine)))
    assert (read.elf.machine, read.elf.bits, read.older, read.is_plain) == (*machine, False, False)
    assert read.records == [Record("root", (1, 1), memoryview(b"about")), Record("leaf", (), memoryview(bytes(5000)))]


def test_the_older_layout() -> None:
    read = container.parse(library(older(("a", string(b"x")), ("_lib", b""), TREE), symbol="__tvm_dev_mblob"))
    assert read.older
    assert [record.kind for record in read.records] == ["a", "_lib"]


def test_a_library_of_functions_alone(tmp_path: Path) -> None:
    assert container.read(str(compiled(FUNCTIONS, tmp_path / "f.so"))).is_plain


def test_bytes_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.so", BLOB)
    data = container.read(str(path)).records[1].data
    assert data is not None
    assert isinstance(data.obj, mmap.mmap)
    assert data.readonly
    path.unlink()
    assert data == bytes(5000)  # the file lives as long as the view


def test_only_pages_that_are_read_take_memory(tmp_path: Path) -> None:
    size = 256 << 20
    blob = tree(("a", (), bytes(size)))
    front = len(blob) - size
    machine = elfwriter.MACHINES["x86_64", 64]
    with (tmp_path / "large.so").open("wb") as file:  # a sparse file: unwritten parts read as zeros
        file.write(elfwriter.shared_library(machine, LIBRARY_BIN, "ctx", len(blob)) + blob[:front])
        file.truncate(elfwriter.PAGE + len(blob))
    del blob
    before = resident()
    records = container.read(str(tmp_path / "large.so")).records
    assert [len(record.data or b"") for record in records] == [size]
    assert resident() - before < 16 << 20


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", ElfError, "empty"),
        (b"PK\3\4", ElfError, "not an ELF"),
        (library(BLOB)[:-1], ElfError, "cut off"),
        (library(BLOB[:40]), FormatError, "cut off"),
        (library(b"\xff" * 64), FormatError, "cut off"),
        (library(older(("a", b"")), symbol="__tvm_dev_mblob"), FormatError, "cut off"),
    ],
)
def test_broken_files_are_an_error(content: bytes, error: type, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(content)
    with pytest.raises(error, match=words):
        container.read(str(tmp_path / "m.so"))


@given(st.data())
def test_any_damage_is_an_error_or_nothing(data: st.DataObject) -> None:
    damaged = bytearray(library(tree(("root", (1,), b"about"), ("leaf", (), bytes(50)))))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, 1100) | st.integers(elfwriter.PAGE, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ElfError, FormatError):
        container.parse(bytes(damaged))
