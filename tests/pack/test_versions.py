"""What libraries need, against what binutils says of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError, UsageError
from rpcsys.pack import versions
from tests.pack.conftest import Build

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
    needs = versions.read(path)
    assert (needs.machine, needs.bits) == MACHINES[target]
    assert needs.glibc == max(numbers)
    assert needs.glibcxx == ()
    assert needs.needed[0] == "libm.so.6"
    assert needs.runpath == "/build/here"
    assert needs.symbols


def test_the_older_kind_of_path_is_seen_too(build: Build) -> None:
    assert versions.read(build("a.so", "aarch64-linux-gnu", "-Wl,--disable-new-dtags,-rpath,/old")).runpath == "/old"


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF", b"\x7fELF\2\1\1" + b"\0" * 60])
def test_what_is_no_library(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.so"):
        versions.read(tmp_path / "a.so")


def test_one_that_is_cut_off(build: Build) -> None:
    path = build("a.so")
    whole = path.read_bytes()
    for share in range(1, 20):
        path.write_bytes(whole[: len(whole) * share // 20])
        with pytest.raises(UsageError, match=r"a\.so"):
            versions.read(path)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        versions.read(tmp_path / "a.so")


@pytest.mark.parametrize("text", ["2", "2.x", "", "2.27.1.1", "-2.27", " 2.27"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ConfigError, match=r"looks like 2\.27"):
        versions.parse(text)


def test_versions_are_numbers() -> None:
    assert versions.parse("2.4") < versions.parse("2.27")
    assert versions.show(versions.parse("2.27")) == "2.27"
