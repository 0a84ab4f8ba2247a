"""Export: from a tree of modules to a library, with and without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fuzz.runner import resident
from rpcsys.errors import UsageError
from rpcsys.module import container, elfwriter, export, registry
from rpcsys.module.export import export_library
from rpcsys.module.kinds.group import group
from rpcsys.module.kinds.library import library
from rpcsys.module.kinds.params import params
from rpcsys.module.layout import LIBRARY
from rpcsys.module.loading import load_module
from rpcsys.module.module import Module
from rpcsys.module.sources import Sources
from tests.device_files import ROOT
from tests.module import trees
from tests.module.trees import Holder

CODE = "int __tvm_ffi_{name}(void *self, const void *args, int count, void *result) {{ return 0; }}\n"
FOREIGN = ("aarch64-linux-gnu", "arm-linux-gnueabihf", "riscv64-linux-gnu")
MACHINES = {
    "aarch64-linux-gnu": ("aarch64", 64),
    "arm-linux-gnueabihf": ("arm", 32),
    "riscv64-linux-gnu": ("riscv", 64),
}


@pytest.fixture(autouse=True)
def _kind() -> Iterator[None]:
    registry.register(trees.KIND, trees.BytesKind())
    yield
    registry._registered.pop(trees.KIND)


def source(folder: Path, name: str = "f") -> Path:
    path = folder / f"{name}.c"
    path.write_text(CODE.format(name=name))
    return path


def read_back(path: Path) -> Module:
    return trees.loaded_records(container.read(str(path)).records)


# ---------------------------------------------------------------- without a compiler


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees.shapes)
def test_any_tree_is_written_and_read(tmp_path: Path, shape) -> None:
    root = trees.of_shape(shape)
    export_library(root, tmp_path / "m.so")
    again = read_back(tmp_path / "m.so")
    assert trees.outline(again) == trees.outline(root)
    first = (tmp_path / "m.so").read_bytes()
    export_library(again, tmp_path / "m.so")
    assert (tmp_path / "m.so").read_bytes() == first
    assert os.listdir(tmp_path) == ["m.so"]


@pytest.mark.parametrize("target", FOREIGN)
def test_for_another_target_no_compiler_is_needed(target: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    export_library(Holder(b"x" * 5000), tmp_path / "m.so", toolchain=target)
    read = container.read(str(tmp_path / "m.so"))
    assert (read.elf.machine, read.elf.bits) == MACHINES[target]


def test_blobs_begin_on_a_page(tmp_path: Path) -> None:
    export_library(Holder(b"x"), tmp_path / "m.so")
    place = container.read(str(tmp_path / "m.so")).elf.place("__tvm_ffi__library_bin")
    assert place is not None
    assert place.start % 4096 == 0


def test_a_process_that_mapped_the_older_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    export_library(Holder(b"old" * 5000), path)
    held = container.read(str(path)).records[0].data
    export_library(Holder(held, [Holder(b"new")]), path)  # replaces the file that its own bytes are mapped from
    assert held == b"old" * 5000
    assert [record.data for record in container.read(str(path)).records] == [b"old" * 5000, b"new"]


# ---------------------------------------------------------------- with one


def test_code_and_modules_in_one_library(tmp_path: Path) -> None:
    native = Sources([source(tmp_path, "f"), source(tmp_path, "g")])
    export_library(group([Holder(b"weights" * 1000), native]), tmp_path / "m.so")
    read = container.read(str(tmp_path / "m.so"))
    assert [record.kind for record in read.records] == ["rpcsys.group", trees.KIND, LIBRARY]
    assert read.records[1].data == b"weights" * 1000
    assert {"__tvm_ffi_f", "__tvm_ffi_g", "__tvm_ffi__library_ctx"} <= set(read.elf.symbols)
    place = read.elf.place("__tvm_ffi__library_bin")
    assert place is not None
    assert place.start % 4096 == 0


@pytest.mark.parametrize("target", FOREIGN)
def test_code_for_another_target(target: str, tmp_path: Path) -> None:
    try:
        export.toolchains.find(target)
    except UsageError as missing:
        pytest.skip(str(missing))
    export_library(group([Sources([source(tmp_path)])]), tmp_path / "m.so", toolchain=target)
    read = container.read(str(tmp_path / "m.so"))
    assert (read.elf.machine, read.elf.bits) == MACHINES[target]
    assert "__tvm_ffi_f" in read.elf.symbols


def test_c_plus_plus_objects_and_archives(tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text(
        '#include <string>\nnamespace { std::string s("x"); }\nextern "C" ' + CODE.format(name="a")
    )
    for name in "bc":
        subprocess.run(["cc", "-fPIC", "-c", "-o", tmp_path / f"{name}.o", source(tmp_path, name)], check=True)
    subprocess.run(["ar", "rc", tmp_path / "c.a", tmp_path / "c.o"], check=True)
    files = [tmp_path / "a.cc", tmp_path / "b.o", tmp_path / "c.a"]
    export_library(Sources(files, ["-Wl,-u,__tvm_ffi_c"]), tmp_path / "m.so")
    assert {f"__tvm_ffi_{name}" for name in "abc"} <= set(container.read(str(tmp_path / "m.so")).elf.symbols)


def test_code_of_tvm_defines_its_own_context(tmp_path: Path) -> None:
    path = source(tmp_path)
    path.write_text(path.read_text() + "void *__tvm_ffi__library_ctx = 0;")
    export_library(Sources([path]), tmp_path / "m.so")
    assert "__tvm_ffi__library_ctx" in container.read(str(tmp_path / "m.so")).elf.symbols


def test_the_same_source_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for number, folder in enumerate((tmp_path / "here", tmp_path / "somewhere" / "else")):
        folder.mkdir(parents=True)
        path = folder / "f.cc"
        path.write_text(
            f'#include <cstdio>\nnamespace {{ int hidden; }}\nextern "C" {CODE.format(name="f")}\n'
            "const char *where(void) { std::puts(__FILE__); return __FILE__; }"
        )
        os.utime(path, (number, number))
        target = folder / "m.so"
        command = "import sys; from rpcsys.module import export, sources\n"
        command += "export.export_library(sources.Sources([sys.argv[1]]), sys.argv[2])"
        subprocess.run([sys.executable, "-c", command, path, target], check=True, cwd=ROOT)
        made.append(target.read_bytes())
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


# ---------------------------------------------------------------- what goes wrong


def test_the_error_for_a_missing_compiler_names_its_package(tmp_path: Path, monkeypatch) -> None:
    native = Sources([source(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"no C compiler here.*apt-get install gcc$"):
        export_library(native, tmp_path / "m.so")
    with pytest.raises(UsageError, match=r"apt-get install gcc-aarch64-linux-gnu"):
        export_library(native, tmp_path / "m.so", toolchain="aarch64-linux-gnu")
    assert os.listdir(tmp_path) == ["f.c"]


def test_the_compiler_that_cc_names(tmp_path: Path, monkeypatch) -> None:
    native = Sources([source(tmp_path)])
    monkeypatch.setenv("CC", "cc -DNOTHING")
    export_library(native, tmp_path / "m.so")
    monkeypatch.setenv("CC", "cc --no-such-flag")
    with pytest.raises(UsageError, match=r"could not compile f\.c: .*no-such-flag"):
        export_library(native, tmp_path / "m.so")


def test_two_threads_may_write_to_one_path(tmp_path: Path) -> None:
    tree = Holder(b"x" * (4 << 20))
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(export_library, tree, tmp_path / "m.so") for _ in range(20)]:
            done.result()
    assert container.read(str(tmp_path / "m.so")).records[0].data == tree.data
    assert os.listdir(tmp_path) == ["m.so"]


def test_code_that_does_not_compile_is_an_error_of_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.c"
    bad.write_text("int f(void) { return undeclared; }\n")
    with pytest.raises(UsageError, match=r"could not compile bad\.c: .*undeclared") as error:
        export_library(Sources([bad]), tmp_path / "m.so")
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["bad.c"]


def test_code_that_does_not_link_is_an_error_of_one_line(tmp_path: Path) -> None:
    twice = [source(tmp_path, "f"), tmp_path / "again.c"]
    twice[1].write_text(twice[0].read_text())
    with pytest.raises(UsageError, match=r"could not link f\.c: .*multiple definition"):
        export_library(Sources(twice), tmp_path / "m.so")
    assert sorted(os.listdir(tmp_path)) == ["again.c", "f.c"]


def test_linked_code_is_carried_as_a_library(tmp_path: Path) -> None:
    export_library(Sources([source(tmp_path)]), tmp_path / "code.so")
    with pytest.raises(UsageError, match=r"linked already .* as a module of kind rpcsys\.library"):
        export_library(group([load_module(tmp_path / "code.so")]), tmp_path / "m.so")
    export_library(group([library(tmp_path / "code.so")]), tmp_path / "m.so")
    assert load_module(tmp_path / "m.so").functions == ["f"]


def test_an_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no toolchain file for pdp11"):
        export_library(Holder(b""), tmp_path / "m.so", toolchain="pdp11")
    (tmp_path / "mips.cmake").write_text("set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR mips)\n")
    with pytest.raises(UsageError, match=r"no libraries are written for mips with .* known are x86_64"):
        export_library(Holder(b""), tmp_path / "m.so", toolchain=tmp_path / "mips.cmake")


@pytest.mark.parametrize(("path", "words"), [("none/m.so", "No such file"), ("folder", "directory")])
def test_a_path_that_cannot_be_written_is_refused(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=words):
        export_library(Holder(b"x"), tmp_path / path)
    assert os.listdir(tmp_path) == ["folder"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("m.so")
    with pytest.raises(UsageError, match="pipe cannot be written: it is no file; give another name"):
        export_library(Holder(b"x"), tmp_path / "pipe")
    export_library(Holder(b"x"), tmp_path / "link")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "m.so", "pipe"]


def test_more_than_the_target_addresses(tmp_path: Path, monkeypatch) -> None:
    small = elfwriter.Machine(40, 16, 0, 0x1000)
    monkeypatch.setitem(elfwriter.MACHINES, ("arm", 32), small)
    with pytest.raises(UsageError, match=r"too large: .* do not fit"):
        export_library(Holder(bytes(1 << 16)), tmp_path / "m.so", toolchain="arm-linux-gnueabihf")


# ---------------------------------------------------------------- time


def best(act, times: int = 3) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return min(taken)


def copy_anew(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


@pytest.mark.slow
def test_loading_takes_constant_time_and_only_the_memory_that_is_read(tmp_path: Path) -> None:
    large, small = tmp_path / "large.so", tmp_path / "small.so"
    for path, size in ((large, 500 << 20), (small, 5 << 20)):
        export_library(params({"w": np.ones(size, "u1")}), path)
    seconds = [best(lambda path=path: load_module(path), 20) for path in (large, small)]
    assert seconds[0] - seconds[1] < 0.1  # measured: 0.00002
    before = resident()
    with load_module(large) as model:
        weights = model["get_param"]("w")
        assert resident() - before < 8 << 20
        assert int(weights[: 64 << 20].sum(dtype="u8")) == 64 << 20
        assert resident() - before < 128 << 20


@pytest.mark.slow
def test_writing_is_about_as_fast_as_copying(tmp_path: Path) -> None:
    """The measured ratios are 1.7 and 6 (`docs/benchmarks.md`); the bounds here are for a busy machine."""
    weights = os.urandom(64 << 20) * 4
    plain, native = Holder(weights), group([Holder(weights), Sources([source(tmp_path)])])
    direct = best(lambda: export_library(plain, tmp_path / "m.so"))
    copied = best(lambda: copy_anew(tmp_path / "m.so", tmp_path / "copy"))
    linked = best(lambda: export_library(native, tmp_path / "m.so"))
    assert direct < 5 * copied
    assert linked < 20 * copied
