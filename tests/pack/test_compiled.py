"""The speedups for other machines: compiled, or from a file, and checked like all libraries."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.module import toolchain
from rpcsys.pack import build as packing
from rpcsys.pack import compiled, libraries
from rpcsys.pack.libraries import PackTarget
from tests.pack.conftest import Build

ARM = "aarch64-linux-gnu"
#: Targets and the oldest C library of their boards: 2.27 is the first for RISC-V.
GLIBC = {
    "aarch64-linux-gnu": "2.17",
    "arm-linux-gnueabihf": "2.17",
    "riscv64-linux-gnu": "2.27",
    "x86_64-linux-gnu": "2.17",
}


def board(name: str, glibc: str = "") -> PackTarget:
    return PackTarget(*toolchain.target(name), libraries.parse_version(glibc) if glibc else ())


@pytest.mark.parametrize("target", GLIBC)
def test_it_is_small_and_runs_with_old_c_libraries(target: str, tmp_path: Path, record_property) -> None:
    (ready,), remark = compiled.speedups(True, board(target, GLIBC[target]), target, tmp_path / "work")
    assert remark == ""
    assert (ready.name, ready.needs.machine) == ("speedups.abi3.so", toolchain.target(target).machine)
    assert set(ready.needs.needed) <= {"libc.so.6"}
    assert not ready.needs.symbols
    record_property(f"speedups for {target}, kB", len(ready.content) // 1000)
    assert 10_000 < len(ready.content) < 80_000


def test_a_file_is_checked_and_has_its_name_in_the_archive(build: Build, tmp_path: Path) -> None:
    file = build("other.so")
    (ready,), remark = compiled.speedups(file, board(ARM), ARM, tmp_path / "work")
    assert (ready.name, remark) == ("speedups.abi3.so", "")
    with pytest.raises(UsageError, match=r"other\.so is for aarch64"):
        compiled.speedups(file, board("riscv64-linux-gnu"), "riscv64-linux-gnu", tmp_path / "again")


def test_none_are_wanted(tmp_path: Path) -> None:
    assert compiled.speedups(False, board(ARM), ARM, tmp_path / "work") == ([], "")


def test_a_missing_compiler_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found, remark = compiled.speedups(True, board(ARM), ARM, tmp_path / "work")
    assert found == []
    assert remark.startswith(f"this board goes without the speedups: there is no {ARM}-gcc and -g++ here; type: ")


def test_a_c_library_that_is_too_old_is_a_remark(tmp_path: Path) -> None:
    found, remark = compiled.speedups(True, board(ARM, "2.10"), ARM, tmp_path / "work")
    assert found == []
    assert remark == (
        "this board goes without the speedups: speedups.abi3.so needs glibc 2.17, newer than --glibc 2.10: "
        "build it with a toolchain or sysroot as old as the board"
    )


def test_missing_headers_are_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    _, remark = compiled.speedups(True, board(ARM), ARM, tmp_path / "work")
    assert remark.endswith("they need the headers of Python 3.11 or later; type: sudo apt-get install python3-dev")


def test_a_compiler_that_fails_is_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("gcc", "g++", "strip"):
        (tmp_path / f"{ARM}-{tool}").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiled.speedups(True, board(ARM), ARM, tmp_path / "work")[1].endswith(
        "cannot compile them: it does not say why"
    )


@pytest.mark.slow
def test_the_archive_says_what_it_needs(tmp_path: Path) -> None:
    packed = packing.pack(ARM, tmp_path / "a.tar.gz", glibc="2.17")
    assert packed.remarks == ()
    assert packed.manifest["speedups"]["speedups.abi3.so"]["glibc"] == "2.17"
    assert packed.manifest["libraries"] == {}, "the archive installs on boards that cannot load it"
    with tarfile.open(packed.path) as tar:
        member = tar.extractfile("rpcsys-device/python/rpcsys/speedups.abi3.so")
        assert member is not None
        assert member.read(4) == b"\x7fELF"
