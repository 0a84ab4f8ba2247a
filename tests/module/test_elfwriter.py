"""The ELF writer: rpcsys's reader, binutils, linkers and the dynamic linker read its files."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import elf, elfwriter
from rpcsys.module.elfwriter import MACHINES, PAGE

DATA, CELL = "__tvm_ffi__library_bin", "__tvm_ffi__library_ctx"
CONTENT = bytes(range(256)) * 40
#: Machines with a compiler and an emulator in Debian: Debian's name of the target, and qemu's.
TRIPLES = {
    ("x86_64", 64): ("x86_64-linux-gnu", ""),
    ("aarch64", 64): ("aarch64-linux-gnu", "qemu-aarch64-static"),
    ("arm", 32): ("arm-linux-gnueabihf", "qemu-arm-static"),
    ("riscv", 64): ("riscv64-linux-gnu", "qemu-riscv64-static"),
}
#: Opens a library, finds the two symbols, writes to the word, and prints the data and its alignment.
OPENER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>
int main(int count, char **args) {
    void *library = dlopen(args[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 1; }
    unsigned char *data = dlsym(library, "__tvm_ffi__library_bin");
    void **cell = dlsym(library, "__tvm_ffi__library_ctx");
    if (!data || !cell || *cell) return 2;
    *cell = library;
    printf("%d %d %d\n", data[0], data[10239], (int)((uintptr_t)data % 4096));
    return dlclose(library);
}
"""
each_machine = pytest.mark.parametrize("name", MACHINES, ids=lambda name: name[0])


def write(path: Path, head: bytes, content: bytes = CONTENT) -> Path:
    path.write_bytes(head + content)
    return path


@pytest.fixture
def library(name: tuple[str, int], tmp_path: Path) -> Path:
    head = elfwriter.shared_library(MACHINES[name], DATA, CELL, len(CONTENT))
    return write(tmp_path / "data.so", head)


@each_machine
def test_our_reader_reads_it(name: tuple[str, int], library: Path) -> None:
    file = elf.read(str(library))
    assert (file.machine, file.bits, file.order) == (*name, "<")
    assert file.place(DATA) == range(PAGE, PAGE + len(CONTENT))
    assert file.symbols[DATA].size == len(CONTENT)
    assert file.symbols[CELL].size == name[1] // 8
    assert (file.needed, file.undefined(), file.jump_slots) == ([], [], {})


@each_machine
def test_a_word_outside_the_file_has_no_offset(name: tuple[str, int], library: Path) -> None:
    with pytest.raises(elf.ElfError, match=CELL):
        elf.read(str(library)).place(CELL)
    assert elf.read(str(library)).place("another") is None


@each_machine
def test_binutils_find_nothing_wrong(name: tuple[str, int], library: Path) -> None:
    done = subprocess.run(["readelf", "-aW", "--lint", str(library)], capture_output=True, text=True)
    assert done.stderr == ""
    assert f"{len(CONTENT)} OBJECT  GLOBAL DEFAULT    6 {DATA}" in done.stdout
    assert "Error" not in done.stdout


@each_machine
def test_segments_can_be_mapped(name: tuple[str, int], library: Path) -> None:
    """As the dynamic linkers check: an address and its offset in the file agree modulo the largest page size."""
    segments = elf.read(str(library)).segments
    page = MACHINES[name].page
    assert [(segment.address - segment.offset) % page for segment in segments] == [0, 0, 0]
    for before, after in itertools.pairwise(segments):
        assert before.address + before.size <= after.address // page * page


@each_machine
def test_the_targets_dynamic_linker_opens_it(name: tuple[str, int], library: Path, tmp_path: Path) -> None:
    if name not in TRIPLES:
        pytest.skip("Debian has no emulated system for it")
    triple, emulator = TRIPLES[name]
    compiler = shutil.which(f"{triple}-gcc")
    if compiler is None or (emulator and shutil.which(emulator) is None):
        pytest.skip(f"there is no {triple}-gcc, or no {emulator}")
    (tmp_path / "open.c").write_text(OPENER)
    opener = tmp_path / "open"
    subprocess.run([compiler, "-o", opener, tmp_path / "open.c", "-ldl"], check=True)
    start = [emulator, "-L", f"/usr/{triple}"] if emulator else []
    done = subprocess.run([*start, opener, library], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{CONTENT[0]} {CONTENT[10239]} 0\n")


@each_machine
def test_an_object_file_is_linked_with_code(name: tuple[str, int], tmp_path: Path) -> None:
    if name not in TRIPLES:
        pytest.skip("there is no compiler for it")
    compiler = shutil.which(f"{TRIPLES[name][0]}-gcc")
    if compiler is None:
        pytest.skip(f"there is no {TRIPLES[name][0]}-gcc")
    head = elfwriter.object_file(MACHINES[name], DATA, CELL, len(CONTENT))
    data = write(tmp_path / "data.o", head)
    (tmp_path / "code.c").write_text(
        f"extern char {DATA}[]; extern void *{CELL}; int __tvm_ffi_main(void) {{ return {DATA}[1] && {CELL}; }}"
    )
    target = tmp_path / "both.so"
    command = [compiler, "-shared", "-fPIC", "-Wl,--fatal-warnings", "-o", target, tmp_path / "code.c", data]
    subprocess.run(command, check=True)
    file = elf.read(str(target))
    place = file.place(DATA)
    assert place is not None
    assert place.start % PAGE == 0
    assert target.read_bytes()[place.start : place.start + len(CONTENT)] == CONTENT
    assert "__tvm_ffi_main" in file.symbols
    stack = subprocess.run(["readelf", "-lW", target], capture_output=True, text=True, check=True).stdout
    assert " RW " in next(line for line in stack.splitlines() if "GNU_STACK" in line)


def test_this_process_opens_it_and_the_data_is_mapped(tmp_path: Path) -> None:
    head = elfwriter.shared_library(MACHINES["x86_64", 64], DATA, CELL, len(CONTENT))
    library = ctypes.CDLL(str(write(tmp_path / "data.so", head)))
    data = (ctypes.c_char * len(CONTENT)).in_dll(library, DATA)
    assert bytes(data) == CONTENT
    cell = ctypes.c_void_p.in_dll(library, CELL)
    assert cell.value is None
    cell.value = 5
    assert ctypes.c_void_p.in_dll(library, CELL).value == 5
    rights = [line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert not any("x" in right for right in rights)


@pytest.mark.parametrize("count", [0, 1, 300])
def test_functions_of_this_process_as_a_library(count: int, tmp_path: Path) -> None:
    called: list[int] = []
    made = [ctypes.CFUNCTYPE(None)(lambda number=number: called.append(number)) for number in range(count)]
    addresses = {f"f{number}": ctypes.cast(code, ctypes.c_void_p).value or 0 for number, code in enumerate(made)}
    data = elfwriter.function_library(MACHINES[elf.here()], addresses)
    path = write(tmp_path / "functions.so", data, b"")
    assert set(elf.read(str(path)).symbols) == set(addresses)
    library = ctypes.CDLL(str(path))
    for name in addresses:
        library[name]()
    assert called == list(range(count))


@pytest.mark.parametrize("make", [elfwriter.shared_library, elfwriter.object_file])
def test_more_than_the_machine_can_address_is_refused(make) -> None:
    with pytest.raises(ValueError, match="32-bit addresses"):
        make(MACHINES["arm", 32], DATA, CELL, 1 << 31)
    make(MACHINES["aarch64", 64], DATA, CELL, 1 << 40)


@given(st.sampled_from(list(MACHINES)), st.text("abc_XYZ", min_size=1, max_size=200), st.integers(1, 1 << 30))
def test_any_name_and_size(name: tuple[str, int], symbol: str, size: int) -> None:
    head = elfwriter.shared_library(MACHINES[name], "__" + symbol, CELL, size)
    assert len(head) == PAGE
    assert head == elfwriter.shared_library(MACHINES[name], "__" + symbol, CELL, size)
    with pytest.raises(elf.ElfError, match="cut off"):
        elf.parse(head)
    small = elfwriter.shared_library(MACHINES[name], "__" + symbol, CELL, 8)
    assert elf.parse(small + bytes(8)).place("__" + symbol) == range(PAGE, PAGE + 8)
