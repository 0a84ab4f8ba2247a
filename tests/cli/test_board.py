"""``rpcsys pack``, and ``rpcsys board`` without a connection; the rest is in tests/live/test_ssh_board.py."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from rpcsys.board import inventory
from rpcsys.board.inventory import Entry
from rpcsys.cli.board import _split_port
from rpcsys.errors import UsageError
from rpcsys.pack import compiled
from tests.cli.conftest import Command

PI = Entry("pi", "pi@10.0.0.7", key="rpi4", tracker="127.0.0.1:1", target="aarch64-linux-gnu", version="0.1.0-12")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def kept() -> None:
    with inventory.changing() as boards:
        boards["pi"] = PI


def test_list_without_boards(rpcsys: Command) -> None:
    assert "no boards yet" in rpcsys("board", "list").stdout
    assert rpcsys("board", "list", "--json").stdout == ""


@pytest.mark.usefixtures("kept")
def test_list_shows_the_inventory(rpcsys: Command) -> None:
    head, row = rpcsys("board", "list", "--offline").stdout.splitlines()
    assert head.split() == ["name", "key", "destination", "target", "installed", "state"]
    assert row.split() == ["pi", "rpi4", "pi@10.0.0.7", "aarch64-linux-gnu", "0.1.0-12"]
    assert json.loads(rpcsys("board", "list", "--offline", "--json").stdout)["tracker"] == "127.0.0.1:1"
    assert rpcsys("board", "remove", "pi", "--forget").stdout == "pi is forgotten\n"
    assert inventory.load() == {}


@pytest.mark.parametrize(
    ("destination", "ports", "split"),
    [
        ("pi@board", (), ("pi@board", ())),
        ("pi@board", ("22",), ("pi@board", ("22",))),
        ("pi@board:2222", (), ("pi@board", ("2222",))),
        ("board:2222", ("2222",), ("board", ("2222",))),
        ("pi@[fe80::1]:22", (), ("pi@fe80::1", ("22",))),
        ("pi@fe80::1", (), ("pi@fe80::1", ())),
    ],
)
def test_a_destination_may_have_sshs_port(destination: str, ports: tuple[str, ...], split: object) -> None:
    assert _split_port(destination, ports) == split


@pytest.mark.parametrize(("destination", "ports"), [("pi@board:ssh", ()), ("pi@board:22", ("23",)), ("pi@board:", ())])
def test_a_destination_has_one_port(destination: str, ports: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="write USER@HOST:PORT"):
        _split_port(destination, ports)


ADD = ("add", "--key", "k", "--tracker", "h:1")


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["add", "pi@pi"], "Missing option '--key'"),
        (["add", "--key", "k", "--tracker", "h:x", "pi@pi"], "is no address"),
        ([*ADD, "--name", "a/b", "pi@pi"], "'a/b' is no name for a server"),
        ([*ADD, "--name", "pi", "pi@elsewhere"], "keeps a board called pi already, pi@10.0.0.7"),
        ([*ADD, "--root", "data", "pi@pi"], "--root data: write the whole path"),
        ([*ADD, "--from-wheels", "--libraries", ".", "pi@pi"], "TVM's libraries come from one of them"),
        ([*ADD, "--libraries", "nowhere", "pi@pi"], "nowhere"),
        ([*ADD, "pi@pi", "--", "--slots", "none"], "'none' is no number of slots"),
        ([*ADD, "pi@pi", "--", "--name", "x"], "--name belongs before the --"),
        ([*ADD, "--", "-oProxyCommand=x"], "'-oProxyCommand=x' is no board"),
        (["upgrade"], "which board? Name it, or say --all"),
        (["upgrade", "rv"], "no board called rv: there is pi"),
        (["remove", "rv"], "no board called rv: there is pi"),
    ],
)
def test_invalid_arguments_are_one_line(args: list[str], message: str, rpcsys: Command) -> None:
    done = rpcsys("board", *args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert inventory.load() == {"pi": PI}


@pytest.mark.slow
def test_pack_writes_an_archive_and_prints_its_requirements(rpcsys: Command, tmp_path: Path) -> None:
    output = tmp_path / "device.tar.gz"
    done = rpcsys("pack", "--target", "arm-linux-gnueabihf", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert "for arm-linux-gnueabihf" in done.stdout
    assert "needs Python  3.8 or later" in done.stdout
    assert "none of TVM's" in done.stdout
    assert "speedups  speedups.abi3.so" in done.stdout
    with tarfile.open(output) as tar:
        assert {"rpcsys-device/install.sh", "rpcsys-device/python/rpcsys/speedups.abi3.so"} <= set(tar.getnames())


@pytest.mark.slow
def test_pack_takes_the_speedups_of_a_file_or_none(rpcsys: Command, tmp_path: Path) -> None:
    command = ("pack", "--target", "arm-linux-gnueabihf", "-o", str(tmp_path / "a.tar.gz"), "--speedups")
    assert "speedups  none" in rpcsys(*command, "none").stdout
    compiled.library("arm-linux-gnueabihf", tmp_path)
    assert "speedups  speedups.abi3.so" in rpcsys(*command, str(tmp_path / compiled.NAME)).stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing option '--target'"),
        (["--target", "z80"], "no toolchain file for z80"),
        (["--target", "riscv64-linux-gnu", "--from-wheels"], "build TVM's target runtime"),
        (["--target", "aarch64-linux-gnu", "--libraries", "nowhere"], "there is no such folder"),
        (["--target", "aarch64-linux-gnu", "--with-libraries", "a.so:b.so"], "a.so: there is no such file"),
        (["--target", "aarch64-linux-gnu", "--glibc", "old"], "a version looks like 2.27"),
    ],
)
def test_pack_refuses_invalid_arguments(args: list[str], message: str, rpcsys: Command) -> None:
    done = rpcsys("pack", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
