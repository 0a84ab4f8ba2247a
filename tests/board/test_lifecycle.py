"""Operations on a board, which is this machine here; tests with real boards are in tests/live/test_ssh_board.py."""

from __future__ import annotations

import hashlib
import io
import socket
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys.board import lifecycle
from rpcsys.board.inventory import Entry
from rpcsys.board.lifecycle import RemoteBoard, Terminal
from rpcsys.board.package import Package
from rpcsys.board.ssh import SshConnection
from rpcsys.errors import RpcsysError
from rpcsys.link.credential import Credential
from rpcsys.wire import tokens
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


OWN = Credential("basement", "b1", ("lab:1",), ("sha256:" + "1f" * 32,), tokens.new(tokens.HolderKind.BOARD).text)


def test_a_credential_is_for_its_owner_alone_and_not_in_a_command(board: RemoteBoard, fake: Path) -> None:
    run_script(fake, f'echo "$command" >>{fake.parent}/commands; eval "$command"')
    board.put_credential(OWN)
    path = Path(board.credential_path)
    assert path == Path(board.entry.root, "etc/rpcsys/b1.lab.json")
    assert path.read_text() == OWN.text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in path.parent.iterdir()] == ["b1.lab.json"]
    commands = (fake.parent / "commands").read_text()
    assert "b1.lab.json" in commands
    assert tokens.parse(OWN.token).secret not in commands


@pytest.mark.parametrize("reads", ["IFS= read -r typed; ", ""])
def test_sudo_gets_its_password_once_and_the_file_none_of_it(
    board: RemoteBoard, fake: Path, tmp_path: Path, reads: str
) -> None:
    """Whether sudo reads it, or remembers one."""
    sudo = fake.parent / "sudo"
    sudo.write_text(f'#!/bin/sh\n{reads}shift 3\necho "$typed" >>{tmp_path}/typed\nexec "$@"\n')
    sudo.chmod(0o755)
    asked: list[str] = []
    board.terminal = Terminal(password=lambda text: asked.append(text) or "swordfish")
    board.facts = board.facts._replace(user=1000, writable=False, sudo="asks")
    board.put_credential(OWN)
    board.install(packed(tmp_path / "a.tar.gz"), [], 0.0)
    assert Path(board.credential_path).read_text() == OWN.text()
    assert asked == ["Password for sudo on pi@board"]
    assert (tmp_path / "typed").read_text() == ("swordfish\nswordfish\n" if reads else "\n\n")


def test_a_full_disk_leaves_the_credential_as_it_was(board: RemoteBoard, fake: Path) -> None:
    board.put_credential(OWN)
    run_script(fake, 'ulimit -f 0; eval "$command"')
    with pytest.raises(RpcsysError, match="writing the credential on board failed"):
        board.put_credential(OWN._replace(member="b2"))
    assert Path(board.credential_path).read_text() == OWN.text()


def test_a_server_that_is_there_gets_a_credential_once(board: RemoteBoard, tmp_path: Path) -> None:
    settings = Path(board.entry.root, "etc/rpcsys")
    settings.mkdir(parents=True)
    (settings / "b1.flags").write_text("# flags\n--key\nk\n--tracker\n127.0.0.1:1\n--name=b1\n")
    entry = replace(board.entry, key="k", tracker="127.0.0.1:1")
    packed(tmp_path / "a.tar.gz")
    asked: list[tuple[str, str]] = []

    class Given:
        def package(self, *_: object) -> Package:
            return packed(tmp_path / "a.tar.gz")

    def enrol(name: str, key: str) -> Credential:
        asked.append((name, key))
        return OWN

    def secured(**more: bool) -> tuple[Entry, bool]:
        return lifecycle.secure(entry, Given(), Terminal(), 5.0, 0.0, enrol, **more)  # type: ignore[arg-type]

    with pytest.raises(RpcsysError, match="b1 is installed and not in the tracker"):  # there is none
        secured()
    called = Path(entry.root, "called").read_text()
    path = settings / "b1.lab.json"
    words = "--drain-timeout 5 --name b1 --key k --tracker 127.0.0.1:1 --name=b1"
    assert called == f"{words} --lab {path} --root {entry.root}\n"
    assert path.read_text() == OWN.text()
    (settings / "b1.flags").write_text(f"--key\nk\n--lab\n{path}\n--tracker\n127.0.0.1:1\n--name=b1\n")
    assert secured() == (entry, False)
    with pytest.raises(RpcsysError, match="not in the tracker"):
        secured(anew=True)
    assert Path(entry.root, "called").read_text() == called
    assert asked == [("b1", "k")] * 2
    (settings / "b1.flags").unlink()
    with pytest.raises(RpcsysError, match="b1 is not installed on board"):
        secured()


def test_a_server_that_is_added_again_keeps_its_credential(
    board: RemoteBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has other flags then, and another credential only with another key."""
    entry = replace(board.entry, key="k", tracker="127.0.0.1:1", python=sys.executable)
    monkeypatch.setattr(RemoteBoard, "reach", lambda *_: None)
    monkeypatch.setattr(lifecycle, "_check_unused", lambda *_: None)  # there is no tracker
    asked: list[tuple[str, str]] = []

    class Given:
        def package(self, *_: object) -> Package:
            return packed(tmp_path / "a.tar.gz")

    def enrol(name: str, key: str) -> Credential:
        asked.append((name, key))
        return OWN

    def added(key: str) -> None:
        with pytest.raises(RpcsysError, match="not in the tracker"):
            lifecycle.add(
                replace(entry, key=key), ["--key", key], [], Given(), Terminal(), 0.0, enrol  # type: ignore[arg-type]
            )  # fmt: skip
        path = board.credential_path
        assert f"--key {key} --lab {path} --name=b1" in Path(entry.root, "called").read_text()
        Path(path).with_name("b1.flags").write_text(f"--key\n{key}\n--lab\n{path}\n--name=b1\n")

    for key, count in (("k", 1), ("k", 1), ("other", 2)):
        added(key)
        assert len(asked) == count


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
