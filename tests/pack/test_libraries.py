"""Libraries are refused by name when the board could not load them, and find each other when it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.pack import libraries, versions
from rpcsys.pack.libraries import Source, Target
from tests.pack.conftest import Build

ARM = Target("aarch64-linux-gnu", "aarch64", 64)


def test_is_stripped_and_looks_beside_itself(build: Build, tmp_path: Path) -> None:
    other = build("libother.so", code="x + 1")
    path = build(
        "a.so", "aarch64-linux-gnu", "-Wl,-rpath,/build/tree", "-Wl,--no-as-needed", str(other), code="elsewhere(x)"
    )
    ready = libraries.prepare(Source(path, "here"), ARM, ["libother.so", "a.so"], tmp_path)
    assert len(ready.content) < path.stat().st_size
    assert not ready.needs.symbols
    assert ready.needs.runpath == "$ORIGIN"
    assert b"/build/tree" not in ready.content
    assert versions.read(path).runpath == "/build/tree", "the original is left alone"


def test_one_that_needs_none_gets_no_path(build: Build, tmp_path: Path) -> None:
    ready = libraries.prepare(Source(build("a.so"), "here"), ARM, ["b.so"], tmp_path)
    assert ready.needs.runpath == ""


def test_of_another_machine(build: Build, tmp_path: Path) -> None:
    path = build("a.so", "arm-linux-gnueabihf")
    with pytest.raises(UsageError, match=r"a\.so is for arm \(32 bits\), and aarch64-linux-gnu is aarch64 \(64 bits\)"):
        libraries.prepare(Source(path, "here"), ARM, [], tmp_path)


def test_of_a_newer_c_library(build: Build, tmp_path: Path) -> None:
    source = Source(build("a.so"), "here")
    needs = versions.read(source.path).glibc
    older = (needs[0], needs[1] - 1)
    with pytest.raises(UsageError, match=r"a\.so needs glibc 2\.\d+, newer than --glibc 2\.\d+"):
        libraries.prepare(source, ARM._replace(glibc=older), [], tmp_path)
    assert libraries.prepare(source, ARM._replace(glibc=needs), [], tmp_path).needs.glibc == needs


def test_a_build_folder(build: Build, tmp_path: Path) -> None:
    folder = build("libtvm_ffi.so").parent
    (folder / "LICENSE").write_text("theirs")
    found = libraries.from_folder(folder)
    assert [(source.path.name, source.licences) for source in found] == [("libtvm_ffi.so", (folder / "LICENSE",))]
    build("libtvm_runtime.so")
    (tmp_path / "build" / "lib").mkdir()
    (tmp_path / "build" / "lib" / "libtvm_runtime.so").symlink_to("../libtvm_runtime.so")
    assert [source.path.name for source in libraries.from_folder(folder)] == ["libtvm_ffi.so", "libtvm_runtime.so"]


def test_a_build_folder_with_two_of_one(build: Build) -> None:
    folder = build("libtvm_ffi.so").parent
    (folder / "old").mkdir()
    (folder / "old" / "libtvm_ffi.so").write_bytes(b"another")
    with pytest.raises(UsageError, match="differ"):
        libraries.from_folder(folder)


def test_a_build_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no libtvm_ffi\.so in it"):
        libraries.from_folder(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        libraries.from_folder(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"nowhere\.so: there is no such file"):
        libraries.drivers([tmp_path / "nowhere.so"])


def test_a_tool_that_is_missing(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build("a.so", "aarch64-linux-gnu", "-s", "-Wl,-rpath,/build")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[pack\]'"):
        libraries.prepare(Source(path, "here"), ARM, [], tmp_path)
