"""Operations on a board, which is this machine here; tests with real boards are in tests/live/test_ssh_board.py."""

from __future__ import annotations

import hashlib
import io
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcsys.board import lifecycle
from rpcsys.board.inventory import Entry
from rpcsys.board.lifecycle import RemoteBoard, Terminal
from rpcsys.board.package import Package
from rpcsys.board.ssh import SshConnection
from rpcsys.errors import RpcsysError
from tests.board.conftest import run_script

INSTALLER = """#!/bin/sh
for root; do :; done
echo "$@" >"$root/called"
mkdir -p "$root/opt/rpcsys" && ln -sfn versions/1-ab "$root/opt/rpcsys/current"
"""


@pytest.fixture
def board(fake: Path, tmp_path: Path) -> Iterator[RemoteBoard]:
    """This machine, with a root in which any user may install."""
    run_script(fake, 'eval "$command"')
    (tmp_path / "root").mkdir()
    entry = Entry("b1", "pi@board", root=str(tmp_path / "root"), python=sys.executable)
    with SshConnection(entry.destination) as connection:
        yield RemoteBoard(connection, entry, Terminal())


def packed(path: Path, installer: str = INSTALLER) -> Package:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("rpcsys-device/install.sh")
        member.size = len(installer)
        tar.addfile(member, io.BytesIO(installer.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    return Package(path, "1-ab", digest, "x", "x86_64", 64, "", False, size, len(installer))


def test_its_description(board: RemoteBoard) -> None:
    assert board.facts.system == "Linux"
    assert board.python().name == sys.executable
    assert not board.facts.servers


def test_the_board_must_reach_the_tracker(board: RemoteBoard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        board.reach([("127.0.0.1", 1), ("127.0.0.1", port)])
    with pytest.raises(RpcsysError, match=rf"cannot reach the tracker or proxy at 127\.0\.0\.1:{port} \(.*refused"):
        board.reach([("127.0.0.1", port)])


def test_an_archive_is_copied_checked_and_installed(board: RemoteBoard, tmp_path: Path) -> None:
    board.install(packed(tmp_path / "a.tar.gz"), ["--name", "b1"], 7.0)
    root = board.entry.root
    called = Path(root, "called").read_text().split()
    assert called == ["--drain-timeout", "7", "--name", "b1", "--root", root]
    with SshConnection("pi@board") as connection:
        assert RemoteBoard(connection, board.entry, Terminal()).facts.version == "1-ab"


def test_a_copy_with_other_bytes_is_not_installed(board: RemoteBoard, tmp_path: Path) -> None:
    package = packed(tmp_path / "a.tar.gz")
    package.path.write_bytes(package.path.read_bytes() + b"x")
    with pytest.raises(RpcsysError, match="board did not store the bytes that were sent"):
        board.install(package, [], 0.0)
    assert not Path(board.entry.root, "called").exists()


def test_the_error_has_the_installers_message(board: RemoteBoard, tmp_path: Path) -> None:
    package = packed(tmp_path / "a.tar.gz", "echo 'broken   session no memory'; exit 1\n")
    with pytest.raises(RpcsysError, match="board cannot serve: session no memory"):
        board.install(package, [], 0.0)


def test_the_installed_installer_removes_a_server(board: RemoteBoard) -> None:
    current = Path(board.entry.root, "opt/rpcsys/current")
    current.mkdir(parents=True)
    current.joinpath("install.sh").write_text(INSTALLER)
    board.uninstall()
    assert Path(board.entry.root, "called").read_text().split()[:3] == ["--uninstall", "--name", "b1"]


def test_sudo_without_a_terminal_is_an_error(board: RemoteBoard, tmp_path: Path) -> None:
    board.facts = board.facts._replace(user=1000, writable=False, sudo="asks")
    with pytest.raises(RpcsysError, match="sudo on board asks for a password"):
        board.install(packed(tmp_path / "a.tar.gz"), [], 0.0)


@pytest.mark.slow
def test_a_board_without_a_server_cannot_be_upgraded_and_has_nothing_to_remove(fake: Path, tmp_path: Path) -> None:
    run_script(fake, 'eval "$command"')
    entry = Entry("b1", "pi@board", root=str(tmp_path))
    with pytest.raises(RpcsysError, match="nothing is installed on board: rpcsys board add pi@board"):
        lifecycle.upgrade(entry, None, Terminal(), 0.0, 0.0)  # type: ignore[arg-type]
    assert lifecycle.remove(entry, Terminal()) is False
    assert lifecycle.installed(entry) == "not installed"
    fake.write_text("#!/bin/sh\nexit 255\n")
    assert lifecycle.installed(entry) == "unreachable"


# What the tracker's summary

OURS = {
    "server_info": [{"key": "server:k", "addr": ["h", 1]}],
    "servers": [
        {"name": "b1:9090", "labels": {"name": "b1"}, "free": 1, "slots": 2, "running": 1, "state": "ok"},
        {"name": "b2:9090", "labels": {"name": "b2"}, "free": 0, "slots": 2, "running": 2, "state": "ok"},
        {"name": "b3:k", "labels": {}, "free": 0, "slots": 1, "running": 0, "state": "drained", "reason": "repair"},
    ],
}
TVMS = {"queue_info": {}, "server_info": [{"key": "server:k", "addr": ["h", 1]}]}


def test_the_tracker_shows_a_server_by_name_or_by_key() -> None:
    assert lifecycle.shown(OURS, "b1", "k")
    assert lifecycle.shown(OURS, "b3", "k")
    assert not lifecycle.shown(OURS, "b", "k")
    assert lifecycle.shown(TVMS, "b1", "k")
    assert not lifecycle.shown(TVMS, "b1", "other")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b1", "serves, 1 of 2 free"),
        ("b2", "serves, 2 of 2 leased"),
        ("b3", "drained: repair"),
        ("b4", "not in the tracker"),
    ],
)
def test_state(name: str, text: str) -> None:
    assert lifecycle.state(OURS, name) == text


def test_waiting_ends_without_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle.time, "sleep", None)  # it would be called
    assert not lifecycle.wait(("127.0.0.1", 1), "b1", "k", 0.0)
