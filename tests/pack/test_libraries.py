"""Libraries that a board could not load are refused by name; others find each other."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, RpcsysError, UsageError
from rpcsys.pack import libraries
from rpcsys.pack.libraries import PackTarget, Source
from tests.pack.conftest import Build

ARM = PackTarget("aarch64-linux-gnu", "aarch64", 64)


def test_a_library_is_stripped_and_finds_others_beside_itself(build: Build, tmp_path: Path) -> None:
    other = build("libother.so", code="x + 1")
    path = build(
        "a.so", "aarch64-linux-gnu", "-Wl,-rpath,/build/tree", "-Wl,--no-as-needed", str(other), code="elsewhere(x)"
    )
    ready = libraries.prepare(Source(path, "here"), ARM, ["libother.so", "a.so"], tmp_path)
    assert len(ready.content) < path.stat().st_size
    assert not ready.needs.symbols
    assert ready.needs.runpath == "$ORIGIN"
    assert b"/build/tree" not in ready.content
    assert libraries.read_needs(path).runpath == "/build/tree", "the original is left alone"


def test_a_library_without_needs_gets_no_runpath(build: Build, tmp_path: Path) -> None:
    ready = libraries.prepare(Source(build("a.so"), "here"), ARM, ["b.so"], tmp_path)
    assert ready.needs.runpath == ""


def test_a_library_of_another_machine_is_refused(build: Build, tmp_path: Path) -> None:
    path = build("a.so", "arm-linux-gnueabihf")
    with pytest.raises(UsageError, match=r"a\.so is for arm \(32 bits\), and aarch64-linux-gnu is aarch64 \(64 bits\)"):
        libraries.prepare(Source(path, "here"), ARM, [], tmp_path)


def test_a_library_with_a_newer_glibc_is_refused(build: Build, tmp_path: Path) -> None:
    source = Source(build("a.so"), "here")
    needs = libraries.read_needs(source.path).glibc
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


def test_a_build_folder_with_two_versions_of_one_library(build: Build) -> None:
    folder = build("libtvm_ffi.so").parent
    (folder / "old").mkdir()
    (folder / "old" / "libtvm_ffi.so").write_bytes(b"another")
    with pytest.raises(UsageError, match="differ"):
        libraries.from_folder(folder)


def test_an_invalid_build_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no libtvm_ffi\.so in it"):
        libraries.from_folder(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        libraries.from_folder(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"nowhere\.so: there is no such file"):
        libraries.drivers([tmp_path / "nowhere.so"])


def test_a_missing_tool_is_an_error(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build("a.so", "aarch64-linux-gnu", "-s", "-Wl,-rpath,/build")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[pack\]'"):
        libraries.prepare(Source(path, "here"), ARM, [], tmp_path)


# From wheels

WHEELS = {
    "apache_tvm_ffi-0.1.0-py3-none-manylinux_2_28_aarch64.whl": "tvm_ffi/lib/libtvm_ffi.so",
    "apache_tvm-0.20.0-py3-none-manylinux_2_28_aarch64.whl": "tvm/lib/libtvm_runtime.so",
}


def test_libraries_and_licences_from_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network: the tests make the files that pip downloads."""
    asked: list[str] = []

    def download(arguments: list[str]) -> None:
        asked.extend(arguments)
        (tmp_path / "wheels").mkdir()
        for name, library in WHEELS.items():
            with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as wheel:
                wheel.writestr(library, b"library")
                wheel.writestr("x.dist-info/licenses/LICENSE", b"theirs")
                wheel.writestr("tvm/other.py", b"")

    monkeypatch.setattr(libraries, "_pip", download)
    found = libraries.from_wheels(ARM, tmp_path)
    assert [(source.path.name, source.origin) for source in found] == [
        (library.rpartition("/")[2], name) for name, library in WHEELS.items()
    ]
    assert [source.path.read_bytes() for source in found] == [b"library"] * 2
    assert [[file.read_bytes() for file in source.licences] for source in found] == [[b"theirs"]] * 2
    assert "manylinux_2_28_aarch64" in asked
    assert "manylinux2014_aarch64" in asked


def test_a_target_without_wheels_and_a_pip_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no wheels of TVM for riscv64-linux-gnu"):
        libraries.from_wheels(PackTarget("riscv64-linux-gnu", "riscv", 64), tmp_path)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RpcsysError, match="pip could not download TVM's wheels: ERROR: No matching distribution"):
        libraries.from_wheels(ARM, tmp_path)


# Read

MACHINES = {
    "aarch64-linux-gnu": ("aarch64", 64),
    "arm-linux-gnueabihf": ("arm", 32),
    "riscv64-linux-gnu": ("riscv", 64),
    "x86_64-linux-gnu": ("x86_64", 64),
}


@pytest.mark.parametrize("target", MACHINES)
def test_agrees_with_readelf(target: str, build: Build) -> None:
    path = build("a.so", target, "-Wl,-rpath,/build/here")
    listed = subprocess.run(["readelf", "-VW", path], capture_output=True, text=True, check=True).stdout
    numbers = [tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([\d.]+)", listed)]
    needs = libraries.read_needs(path)
    assert (needs.machine, needs.bits) == MACHINES[target]
    assert needs.glibc == max(numbers)
    assert needs.glibcxx == ()
    assert needs.needed[0] == "libm.so.6"
    assert needs.runpath == "/build/here"
    assert needs.symbols


def test_an_rpath_is_read_like_a_runpath(build: Build) -> None:
    assert (
        libraries.read_needs(build("a.so", "aarch64-linux-gnu", "-Wl,--disable-new-dtags,-rpath,/old")).runpath
        == "/old"
    )


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", b"\x7fELF\2\1\1" + b"\0" * 60])
def test_a_file_that_is_no_library_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.so"):
        libraries.read_needs(tmp_path / "a.so")


def test_a_truncated_library_is_refused(build: Build) -> None:
    path = build("a.so")
    whole = path.read_bytes()
    for share in range(1, 20):
        path.write_bytes(whole[: len(whole) * share // 20])
        with pytest.raises(UsageError, match=r"a\.so"):
            libraries.read_needs(path)


def test_a_missing_library_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        libraries.read_needs(tmp_path / "a.so")


@pytest.mark.parametrize("text", ["2", "2.x", "", "2.27.1.1", "-2.27", " 2.27"])
def test_invalid_versions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"looks like 2\.27"):
        libraries.parse_version(text)


def test_versions_are_numbers() -> None:
    assert libraries.parse_version("2.4") < libraries.parse_version("2.27")
    assert libraries.version_text(libraries.parse_version("2.27")) == "2.27"
