"""What is in the device runtime, and what is not."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.pack import archive
from rpcsys.pack import build as packing
from rpcsys.pack.source import device_files
from tests.pack.conftest import Build

TARGET = "aarch64-linux-gnu"


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name.removeprefix("rpcsys-device/"): tar.extractfile(entry).read() for entry in tar}


def test_the_tier_and_nothing_else(tmp_path: Path, record_property) -> None:
    packed = packing.pack(TARGET, tmp_path / "a.tar.gz")
    files = contents(packed.path)
    ours = {name.removeprefix("python/") for name in files if name.startswith("python/rpcsys/")}
    assert ours == set(device_files())
    folders = {name.split("/")[1] for name in files if name.startswith("python/")}
    assert folders == {"rpcsys", "cloudpickle", "numpy_stub", "start.py", "verify.py"}
    assert {"bin/rpcsys-server", "manifest.json", "licenses/rpcsys/LICENSE", "licenses/cloudpickle/LICENSE"} <= set(
        files
    )
    python = {name: content for name, content in files.items() if name.startswith("python/")}
    for form, most in (("xz", 150_000), ("gz", 180_000)):
        archive.write(tmp_path / f"python.tar.{form}", python, frozenset())
        size = (tmp_path / f"python.tar.{form}").stat().st_size
        record_property(f"Python part, {form}, kB", round(size / 1000, 1))
        assert size <= most


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


def test_what_is_refused(tmp_path: Path, build: Build) -> None:
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
