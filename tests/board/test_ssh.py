"""The connection, with programs in the place of OpenSSH's client that misbehave as boards and networks do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rpcsys.board import ssh
from rpcsys.board.ssh import Connection
from rpcsys.errors import ConnectError, RpcsysError, UsageError

#: What each command of a connection becomes: the first holds it, a later one ends with the words it is to run.
HOLDS = """#!/bin/sh
for command; do :; done
case $command in
*rpcsys-ready*exec\\ cat*) echo welcome; echo rpcsys-ready; exec cat >/dev/null ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program; write to it. A second stands for thirty, so that nobody waits for long."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "CONNECT_S", 1)
    return program


def says(fake: Path, later: str) -> None:
    """The connection opens, and every later command does this."""
    fake.write_text(HOLDS + later + "\n")


def test_a_command_and_what_it_prints(fake: Path, tmp_path: Path) -> None:
    says(fake, 'eval "$command"')
    (tmp_path / "input").write_bytes(b"typed")
    with Connection("root@board", ["-p", "2222"]) as board, (tmp_path / "input").open("rb") as file:
        assert (board.host, board.destination) == ("board", "root@board")
        said = board.run('cat; echo "$2" >&2; exit 3', "one", "it's two; $x", stdin=file)
        assert (said.status, said.out, said.err) == (3, "typed", "it's two; $x\n")
        with board.folder(str(tmp_path)) as folder:
            assert Path(folder).parent == tmp_path
            Path(folder, "file").touch()
        assert not Path(folder).exists()


def test_flags_that_were_given_come_first(fake: Path, tmp_path: Path) -> None:
    """OpenSSH takes the first value that it meets."""
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n' + HOLDS.partition("\n")[2])
    with Connection("board", ["-o", "ConnectTimeout=99"]):
        pass
    called = (tmp_path / "called").read_text()
    assert called.index("ConnectTimeout=99") < called.index("ConnectTimeout=10")
    assert "BatchMode=yes" in called
    assert "-- board " in called


def test_nobody_answers(fake: Path) -> None:
    fake.write_text("#!/bin/sh\nexec sleep 100\n")
    started = time.monotonic()
    with pytest.raises(ConnectError, match="board does not answer"), Connection("board"):
        pass
    assert time.monotonic() - started < 60


def test_what_ssh_complains_of_is_told(fake: Path) -> None:
    fake.write_text("#!/bin/sh\necho 'root@board: Permission denied (publickey).' >&2; exit 255\n")
    with pytest.raises(ConnectError, match="type: ssh-copy-id -p 2222 root@board"):
        Connection("root@board", ["-p", "2222"]).__enter__()
    says(fake, "echo 'Timeout, server board not responding.' >&2; exit 255")
    with Connection("board") as board, pytest.raises(ConnectError, match="stopped answering"):
        board.run("true")


def test_a_command_that_never_ends(fake: Path) -> None:
    says(fake, "exec sleep 100")
    with Connection("board") as board, pytest.raises(RpcsysError, match=r"not done within 0\.3 s"):
        board.run("true", timeout_s=0.3)


@pytest.mark.parametrize("where", ["", ">&2"])
def test_a_board_that_talks_without_end(where: str, fake: Path) -> None:
    says(fake, f"exec yes {where}")
    with Connection("board") as board, pytest.raises(RpcsysError, match="talks without end"):
        board.run("true")
    fake.write_text(f"#!/bin/sh\nexec yes {where}\n")
    with pytest.raises(RpcsysError, match="talks without end"):
        Connection("board").__enter__()


def test_no_folder(fake: Path, tmp_path: Path) -> None:
    says(fake, 'eval "$command"')
    with Connection("board") as board:
        with pytest.raises(RpcsysError, match="making a folder in /no/such on board failed"), board.folder("/no/such"):
            pass
        assert board.run("echo 1").out == "1\n"


@pytest.mark.parametrize("own", ["/tmp", "/no/such", ""])
def test_nothing_is_left_here(own: str, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", own)
    says(fake, 'eval "$command"')
    with Connection("board") as board:
        work = Path(board._work)
        assert work.is_dir()
        assert len(str(work / "s")) < 60  # a socket's path has room for about a hundred
        master = board._master
    assert not work.exists()
    assert master is not None
    assert master.poll() == 0  # it was not killed: its input has ended


@pytest.mark.parametrize("destination", ["", " ", "-oProxyCommand=x"])
def test_no_destination(destination: str) -> None:
    with pytest.raises(UsageError, match="is no board"):
        Connection(destination)


def test_no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="apt-get install openssh-client"):
        Connection("board").__enter__()
