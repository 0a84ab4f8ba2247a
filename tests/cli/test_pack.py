"""``rpcsys pack``: what it writes, and what it says where it cannot."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_writes_an_archive_and_says_what_it_needs(rpcsys: Command, tmp_path: Path) -> None:
    output = tmp_path / "device.tar.gz"
    done = rpcsys("pack", "--target", "arm-linux-gnueabihf", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert "for arm-linux-gnueabihf" in done.stdout
    assert "needs Python  3.8 or later" in done.stdout
    assert "none of TVM's" in done.stdout
    with tarfile.open(output) as tar:
        assert "rpcsys-device/install.sh" in tar.getnames()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "Missing option '--target'"),
        (["--target", "z80"], "no toolchain file for z80"),
        (["--target", "riscv64-linux-gnu", "--from-wheels"], "build TVM's target runtime"),
        (["--target", "aarch64-linux-gnu", "--libraries", "nowhere"], "there is no such folder"),
        (["--target", "aarch64-linux-gnu", "--with-libraries", "a.so:b.so"], "a.so: there is no such file"),
        (["--target", "aarch64-linux-gnu", "--glibc", "old"], "a version looks like 2.27"),
    ],
)
def test_what_cannot_be_packed(args: list[str], says: str, rpcsys: Command) -> None:
    done = rpcsys("pack", *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
