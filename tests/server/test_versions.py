"""Versions of a board: of packages, from any way of installing them, of the C library, the kernel and the driver."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server import versions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, the only one in which packages are found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in versions.PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delitem(sys.modules, name.partition(".")[0], raising=False)
    versions.of_package.cache_clear()
    yield tmp_path
    versions.of_package.cache_clear()


def package(folder: Path, name: str, **sources: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    for source, text in sources.items():
        (folder / name / f"{source}.py").write_text(text)


def test_versions_of_this_machine() -> None:
    assert versions.of_package("numpy") == metadata.version("numpy")
    assert versions.of_package("onnxruntime") == metadata.version("onnxruntime")
    found = versions.of_board()
    assert found["python"] == platform.python_version()
    assert found["kernel"] == os.uname().release
    assert bool(found["driver"]) == os.path.exists("/proc/driver/nvidia/version")
    if platform.libc_ver()[0] == "glibc":
        assert found["libc"] == platform.libc_ver()[1]


@pytest.mark.parametrize(
    ("name", "distribution", "version"),
    [
        ("onnxruntime", "onnxruntime-1.22.0.dist-info", "1.22.0"),
        ("onnxruntime", "onnxruntime_extensions-0.13.0.dist-info", ""),
        ("tvm", "apache_tvm-0.27.0.post1.dist-info", "0.27.0.post1"),
        ("tvm", "apache_tvm_ffi-0.1.14.dist-info", ""),
        ("tvm_ffi", "apache_tvm_ffi-0.1.14.post1.dist-info", "0.1.14.post1"),
        ("numpy", "numpy-1.24.2.egg-info", "1.24.2"),
        ("numpy", "numpy-1.19.5-py3.8.egg-info", "1.19.5"),
        ("numpy", "numpy-2.0.0+local.dist-info", "2.0.0+local"),
        ("numpy", "numpy-.dist-info", ""),
    ],
)
def test_a_distribution_tells_its_packages_version(folder: Path, name: str, distribution: str, version: str) -> None:
    package(folder, name)
    (folder / distribution).mkdir()
    assert versions.of_package(name) == version


@pytest.mark.parametrize(
    ("name", "source", "text", "version"),
    [
        ("onnxruntime", "__init__", '"""ORT"""\n__version__ = "1.22.0"\n', "1.22.0"),
        ("numpy", "version", 'version = "2.4.6"\n__version__ = version\n', "2.4.6"),
        ("numpy", "_version", ' "dirty": false,\n "version": "1.24.2"\n', "1.24.2"),
        ("tvm_ffi", "_version", "__version__: str\n__version__ = version = '0.1.14.post1'\n", "0.1.14.post1"),
        ("tvm", "libinfo", 'try:\n    x\nexcept ImportError:\n    __version__ = "0.27.dev0"\n', "0.27.dev0"),
        ("tvm", "libinfo", "__version__ = read()\n", ""),
        ("numpy", "__init__", '__version__ = "1 or 2"\n', ""),
    ],
)
def test_a_package_without_a_distribution_tells_it_in_its_source(
    folder: Path, name: str, source: str, text: str, version: str
) -> None:
    package(folder, name, **{source: text})
    assert versions.of_package(name) == version


def test_the_package_that_is_imported_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first on the path, as in a checkout before an installed one, or an environment before the system's."""
    for place, version in (("first", "1.0"), ("second", "2.0")):
        package(folder / place, "numpy")
        (folder / place / f"numpy-{version}.dist-info").mkdir()
    package(folder / "source", "tvm", libinfo='__version__ = "3.0"')
    (folder / "second" / "apache_tvm-0.9.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(folder / place) for place in ("source", "first", "second")])
    assert versions.of_package("numpy") == "1.0"
    assert versions.of_package("tvm") == "3.0"


def test_nothing_is_found_where_nothing_is(folder: Path) -> None:
    assert {name: versions.of_package(name) for name in versions.PACKAGES} == dict.fromkeys(versions.PACKAGES, "")


NVRM = "NVRM version: NVIDIA UNIX {}  {}  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc version 12.2.0 (Debian)\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (NVRM.format("x86_64 Kernel Module", "535.129.03"), "535.129.03"),
        (NVRM.format("Open Kernel Module for x86_64", "550.54.15  Release Build  (builder@host)"), "550.54.15"),
        (NVRM.format("Open Kernel Module for aarch64", "540.2.0"), "540.2.0"),
        ("GCC version:  gcc version 12.2.0\n", ""),
        ("NVRM version: something else\n", ""),
        ("", ""),
    ],
)
def test_the_version_of_nvidias_driver(
    text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_DRIVER", str(tmp_path / "version"))
    assert versions.of_board()["driver"] == ""
    (tmp_path / "version").write_text(text)
    assert versions.of_board()["driver"] == version


@given(st.binary())
def test_any_bytes_of_the_drivers_file_are_a_version_or_none(data: bytes) -> None:
    match = versions._NVRM.search(data.decode("utf-8", "replace"))
    assert match is None or match.group(1)[0].isdigit()


def no_glibc(name: str) -> str:
    raise ValueError(f"unrecognized configuration name {name}")


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo 'musl libc (x86_64)' >&2; echo 'Version 1.2.3' >&2; exit 1", "musl-1.2.3"),
        ("echo 'Version 1.2.3_git20220808' >&2", "musl-1.2.3_git20220808"),
        ("exit 1", ""),
    ],
)
def test_the_version_of_musl(script: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", no_glibc)
    monkeypatch.setattr(versions, "_LOADER", str(tmp_path / "ld-musl-*.so.1"))
    assert versions.of_board()["libc"] == ""
    (tmp_path / "ld-musl-none.so.1").mkdir()
    loader = tmp_path / "ld-musl-x86_64.so.1"
    loader.write_text(f"#!/bin/sh\n{script}\n")
    loader.chmod(0o755)
    assert versions.of_board()["libc"] == version


def test_another_c_library_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: "newlib 4.1")
    assert versions.of_board()["libc"] == ""
