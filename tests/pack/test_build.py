"""The contents of the device runtime."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

import pytest

from rpcsys.errors import RpcsysError, UsageError
from rpcsys.pack import build as packing
from rpcsys.pack.source import device_files
from tests.pack.conftest import Build

TARGET = "aarch64-linux-gnu"
FILES = {"bin/run": b"#!/bin/sh\n", "python/a.py": b"x = 1\n", "python/b.py": b"x = 2\n"}
PROGRAMS = frozenset(["bin/run"])


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name.removeprefix("rpcsys-device/"): tar.extractfile(entry).read() for entry in tar}


@pytest.mark.slow
def test_the_archive_holds_the_device_tier_and_nothing_else(tmp_path: Path, record_property) -> None:
    packed = packing.pack(TARGET, tmp_path / "a.tar.gz", speedups=False)
    files = contents(packed.path)
    ours = {name.removeprefix("python/") for name in files if name.startswith("python/rpcsys/")}
    assert ours == set(device_files())
    folders = {name.split("/")[1] for name in files if name.startswith("python/")}
    assert folders == {"rpcsys", "cloudpickle", "numpy_stub", "start.py", "verify.py"}
    assert {"bin/rpcsys-server", "manifest.json", "licenses/rpcsys/LICENSE", "licenses/cloudpickle/LICENSE"} <= set(
        files
    )
    python = {name: content for name, content in files.items() if name.startswith("python/")}
    for form, most in (("xz", 241_000), ("gz", 290_000)):
        packing.write_archive(tmp_path / f"python.tar.{form}", python, frozenset())
        size = (tmp_path / f"python.tar.{form}").stat().st_size
        record_property(f"Python part, {form}, kB", round(size / 1000, 1))
        assert size <= most


@pytest.mark.slow
def test_the_manifest(tmp_path: Path, build: Build) -> None:
    folder = build("libtvm_ffi.so").parent
    driver = build("driver.so")
    packed = packing.pack(TARGET, tmp_path / "a.tar.gz", folder=folder, drivers=[driver])
    files = contents(packed.path)
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest == packed.manifest
    assert manifest["files"] == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert (manifest["target"], manifest["machine"], manifest["bits"]) == (TARGET, "aarch64", 64)
    assert set(manifest["libraries"]) == {"libtvm_ffi.so", "driver.so"}
    assert {"python/lib/libtvm_ffi.so", "drivers/driver.so"} <= set(files)
    assert manifest["glibc"] == manifest["libraries"]["libtvm_ffi.so"]["glibc"] != ""
    assert any("no TVM clients" in remark for remark in packed.remarks)
    assert any("no licence" in remark for remark in packed.remarks)


@pytest.mark.slow
def test_the_same_bytes_each_time(tmp_path: Path, build: Build) -> None:
    folder = build("libtvm_ffi.so", TARGET, "-Wl,-rpath,/somewhere").parent
    first, second = (packing.pack(TARGET, tmp_path / name, folder=folder).path for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_invalid_arguments_of_pack_are_refused(tmp_path: Path, build: Build) -> None:
    output = tmp_path / "a.tar.gz"
    driver = build("driver.so", "riscv64-linux-gnu")
    with pytest.raises(UsageError, match=r"driver\.so is for riscv"):
        packing.pack(TARGET, output, drivers=[driver])
    with pytest.raises(UsageError, match=r"two libraries called driver\.so"):
        packing.pack("riscv64-linux-gnu", output, drivers=[driver, driver])
    with pytest.raises(UsageError, match="from one of them"):
        packing.pack(TARGET, output, folder=tmp_path, from_wheels=True)
    with pytest.raises(UsageError, match="no wheels of TVM for riscv64-linux-gnu"):
        packing.pack("riscv64-linux-gnu", output, from_wheels=True)
    with pytest.raises(UsageError, match="no toolchain file for z80"):
        packing.pack("z80", output)
    assert not output.exists()


# The archive's bytes depend only on its contents


@pytest.mark.parametrize("form", ["gz", "xz"])
def test_bytes_do_not_depend_on_order_and_file_name(tmp_path: Path, form: str) -> None:
    first, second = tmp_path / f"a.tar.{form}", tmp_path / f"b.tar.{form}"
    packing.write_archive(first, FILES, PROGRAMS)
    packing.write_archive(second, dict(reversed(FILES.items())), PROGRAMS)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(tmp_path.iterdir()) == [first, second]


@pytest.mark.parametrize("form", ["gz", "xz"])
def test_tar_reads_the_archive(tmp_path: Path, form: str) -> None:
    packing.write_archive(tmp_path / f"a.tar.{form}", FILES, PROGRAMS)
    with tarfile.open(tmp_path / f"a.tar.{form}", f"r:{form}") as tar:
        entries = {entry.name: entry for entry in tar}
        assert tar.extractfile("rpcsys-device/python/a.py").read() == FILES["python/a.py"]
    assert {name: entry.mode for name, entry in entries.items()} == {
        "rpcsys-device/bin/run": 0o755,
        "rpcsys-device/python/a.py": 0o644,
        "rpcsys-device/python/b.py": 0o644,
    }
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries.values()} == {(0, 0, "")}
    (time,) = {entry.mtime for entry in entries.values()}
    assert 946684800 <= time < 1300000000


def test_other_contents_have_another_time(tmp_path: Path) -> None:
    """Otherwise Python would use an older version's compiled code for this one."""
    times = set()
    for content in (b"x = 1\n", b"x = 2\n"):
        packing.write_archive(tmp_path / "a.tar.gz", {**FILES, "python/a.py": content}, PROGRAMS)
        with tarfile.open(tmp_path / "a.tar.gz") as tar:
            times.add(tar.getmember("rpcsys-device/python/b.py").mtime)
    assert len(times) == 2


def test_an_archive_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RpcsysError, match="cannot write"):
        packing.write_archive(tmp_path / "nowhere" / "a.tar.gz", FILES, PROGRAMS)


@pytest.mark.parametrize(("name", "words"), [("no/a.tar.gz", "there is no folder"), ("pipe", "it is no file; give")])
def test_a_place_for_no_archive_is_refused_before_the_work(name: str, words: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=f"cannot write .*{name}: {words}"):
        packing.pack("x86_64-linux-gnu", tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
