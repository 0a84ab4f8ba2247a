"""A real CMake project, apache-tvm-ffi, built from source with each toolchain file; the result runs on the board."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rpcsys import data
from rpcsys.module import elf, toolchain
from tests.device_files import ROOT
from tests.live import sdist
from tests.live.emulated import MACHINES
from tests.native import FUNCTIONS, compiled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

#: Machines whose C library is at least as new as the compilers' of Debian 12.
BOARDS = {"aarch64-linux-gnu": "aarch64", "arm-linux-gnueabihf": "armhf", "riscv64-linux-gnu": "riscv64"}
#: Loads the library globally, calls functions of another library that raise errors through it, and prints one.
CALL = """
import sys, array
sys.path.insert(0, sys.argv[1])
from rpcsys.errors import NativeError
from rpcsys.ffi import library
from rpcsys.ffi.module import Library
library.use(sys.argv[2])
library.api()
functions = Library(sys.argv[3])
print(functions.function("add")(40, 2), functions.function("type")(array.array("f", [1.0])))
try:
    functions.function("add")(1, 2.0)
except NativeError as error:
    print(error.kind, error)
"""


@pytest.mark.parametrize("triple", BOARDS)
def test_a_real_project_runs_on_the_board(triple: str, tmp_path: Path) -> None:
    (path,) = sdist.built(triple).rglob("libtvm_ffi.so")
    chain = toolchain.find(triple)
    library = elf.read(str(path))
    assert (library.machine, library.bits) == (chain.machine, chain.bits)
    functions = compiled(FUNCTIONS, tmp_path / "functions.so", compiler=chain.command())
    said = MACHINES[BOARDS[triple]].run("-I", "-S", "-c", CALL, ROOT, path.parent, functions)
    assert said.splitlines() == ["42 70", "ValueError add takes two numbers of one type"]


def test_a_real_project_is_built_for_this_machine() -> None:
    (path,) = sdist.built("x86_64-linux-gnu").rglob("libtvm_ffi.so")
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).TVMFFIObjectIncRef is not None)"
    done = subprocess.run(["python3", "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


VENDORS = """
cmake_minimum_required(VERSION 3.18)
project(vendors C CXX)
find_package(Threads REQUIRED)
find_path(VENDOR_INCLUDE vendor.h REQUIRED)
add_executable(program program.cc)
target_include_directories(program PRIVATE ${VENDOR_INCLUDE})
target_link_libraries(program Threads::Threads)
"""
PROGRAM = """
#include <vendor.h>
#include <cstdio>
#include <string>
#include <thread>
int main() {
  std::string said;
  std::thread([&] { said = VENDOR; }).join();
  std::puts(said.c_str());
}
"""


def vendors(root: Path, triple: str, prefix: str) -> Path:
    """A vendor's toolchain: compilers under other names, and a sysroot with the C library and a header."""
    (root / "bin").mkdir(parents=True)
    for tool in ("gcc", "g++", "ar", "ranlib", "strip", "ld", "nm"):
        (root / "bin" / f"{prefix}-{tool}").symlink_to(shutil.which(f"{triple}-{tool}"))
    sysroot = root / "sysroot"
    # Debian's compilers search these paths below a sysroot.
    shutil.copytree(f"/usr/{triple}", sysroot / "usr" / triple, symlinks=True)
    (sysroot / "lib").symlink_to(f"usr/{triple}/lib")
    (sysroot / "usr" / "include").symlink_to(f"{triple}/include")
    (sysroot / "usr" / "lib").symlink_to(f"{triple}/lib")
    (sysroot / "usr" / triple / "include" / "vendor.h").write_text('#define VENDOR "a vendor"\n')
    return sysroot


@pytest.mark.parametrize(
    ("triple", "prefix"),
    [("aarch64-linux-gnu", "aarch64-none-linux-gnu"), ("arm-linux-gnueabihf", "arm-none-linux-gnueabihf")],
)
def test_a_project_is_built_with_a_vendors_toolchain_and_sysroot(triple: str, prefix: str, tmp_path: Path) -> None:
    sysroot = vendors(tmp_path / "vendor", triple, prefix)
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(VENDORS)
    (project / "program.cc").write_text(PROGRAM)
    file = data.folder("toolchains") / f"{triple}.cmake"
    build = tmp_path / "build"
    two = [f"-DRPCSYS_TOOLCHAIN_ROOT={tmp_path / 'vendor'}", f"-DRPCSYS_SYSROOT={sysroot}"]
    sdist.run([str(sdist.CMAKE), "-S", str(project), "-B", str(build), "--toolchain", str(file), *two])
    sdist.run([str(sdist.CMAKE), "--build", str(build), "--verbose"])
    cache = (build / "CMakeCache.txt").read_text()
    assert f"VENDOR_INCLUDE:PATH={sysroot}" in cache
    assert f"{prefix}-g++" in "".join(path.read_text() for path in build.rglob("flags.make")) + cache + "".join(
        path.read_text() for path in build.rglob("link.txt")
    )
    machine = MACHINES[BOARDS[triple]]
    done = subprocess.run(machine.command(build / "program"), capture_output=True, text=True, check=True)
    assert done.stdout == "a vendor\n"
