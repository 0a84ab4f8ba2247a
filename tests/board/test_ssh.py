"""The connection, with programs instead of OpenSSH's client that fail as boards and networks do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rpcsys.board.ssh import SshConnection, board_error, ssh_error
from rpcsys.errors import ConnectError, RpcsysError, UsageError
from tests.board.conftest import HOLDS, run_script


def test_a_command_returns_its_output_and_status(fake: Path, tmp_path: Path) -> None:
    run_script(fake, 'eval "$command"')
    (tmp_path / "input").write_bytes(b"typed")
    with SshConnection("root@board", ["-p", "2222"]) as board, (tmp_path / "input").open("rb") as file:
        assert (board.host, board.destination) == ("board", "root@board")
        output = board.run('cat; echo "$2" >&2; exit 3', "one", "it's two; $x", stdin=file)
        assert (output.status, output.out, output.err) == (3, "typed", "it's two; $x\n")
        with board.folder(str(tmp_path)) as folder:
            assert Path(folder).parent == tmp_path
            Path(folder, "file").touch()
        assert not Path(folder).exists()


def test_the_users_options_come_first(fake: Path, tmp_path: Path) -> None:
    """OpenSSH uses the first value of each option."""
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n' + HOLDS.partition("\n")[2])
    with SshConnection("board", ["-o", "ConnectTimeout=99"]):
        pass
    called = (tmp_path / "called").read_text()
    assert called.index("ConnectTimeout=99") < called.index("ConnectTimeout=10")
    assert "BatchMode=yes" in called
    assert "-- board " in called


@pytest.mark.slow
def test_a_silent_host_is_an_error(fake: Path) -> None:
    fake.write_text("#!/bin/sh\nexec sleep 100\n")
    started = time.monotonic()
    with pytest.raises(ConnectError, match="board does not answer"), SshConnection("board"):
        pass
    assert time.monotonic() - started < 60


def test_the_error_has_sshs_message(fake: Path) -> None:
    fake.write_text("#!/bin/sh\necho 'root@board: Permission denied (publickey).' >&2; exit 255\n")
    with pytest.raises(ConnectError, match="type: ssh-copy-id -p 2222 root@board"):
        SshConnection("root@board", ["-p", "2222"]).__enter__()
    run_script(fake, "echo 'Timeout, server board not responding.' >&2; exit 255")
    with SshConnection("board") as board, pytest.raises(ConnectError, match="stopped answering"):
        board.run("true")


def test_a_command_times_out(fake: Path) -> None:
    run_script(fake, "exec sleep 100")
    with SshConnection("board") as board, pytest.raises(RpcsysError, match=r"not done within 0\.3 s"):
        board.run("true", timeout_s=0.3)


@pytest.mark.parametrize("where", ["", ">&2"])
def test_endless_output_is_an_error(where: str, fake: Path) -> None:
    run_script(fake, f"exec yes {where}")
    with SshConnection("board") as board, pytest.raises(RpcsysError, match="board's output does not end"):
        board.run("true")
    fake.write_text(f"#!/bin/sh\nexec yes {where}\n")
    with pytest.raises(RpcsysError, match="board's output does not end"):
        SshConnection("board").__enter__()


def test_a_folder_that_cannot_be_made_is_an_error(fake: Path, tmp_path: Path) -> None:
    run_script(fake, 'eval "$command"')
    with SshConnection("board") as board:
        with pytest.raises(RpcsysError, match="making a folder in /no/such on board failed"), board.folder("/no/such"):
            pass
        assert board.run("echo 1").out == "1\n"


@pytest.mark.parametrize("own", ["/tmp", "/no/such", ""])
def test_closing_removes_the_work_folder(own: str, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", own)
    run_script(fake, 'eval "$command"')
    with SshConnection("board") as board:
        work = Path(board._work)
        assert work.is_dir()
        assert len(str(work / "s")) < 60  # a socket's path is limited to about a hundred
        master = board._master
    assert not work.exists()
    assert master is not None
    assert master.poll() == 0  # it was not killed: its input was closed


@pytest.mark.parametrize("destination", ["", " ", "-oProxyCommand=x"])
def test_invalid_destinations_are_refused(destination: str) -> None:
    with pytest.raises(UsageError, match="is no board"):
        SshConnection(destination)


def test_a_missing_ssh_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="apt-get install openssh-client"):
        SshConnection("board").__enter__()


# Messages of OpenSSH 9.2.
SAID = {
    "@@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n…\nHost key verification failed.": (
        "is not the one it had", "ssh-keygen -R '[pi]:22'",
    ),
    "No ED25519 host key is known for pi and you have requested strict checking.\nHost key verification failed.": (
        "is unknown", "type: ssh -p 22 root@pi",
    ),
    "root@pi: Permission denied (publickey,password).": ("permission denied", "ssh-copy-id -p 22 root@pi"),
    "ssh: Could not resolve hostname pi: Name or service not known": ("no host called pi",),
    "ssh: connect to host pi port 22: Connection refused": ("refuses ssh",),
    "ssh: connect to host pi port 22: Connection timed out": ("does not answer",),
    "ssh: connect to host pi port 22: No route to host": ("does not answer",),
    "Timeout, server pi not responding.": ("stopped answering",),
    "kex_exchange_identification: Connection closed by remote host": ("broke: kex_exchange",),
    "": ("ssh printed nothing",),
}  # fmt: skip


@pytest.mark.parametrize("output", SAID)
def test_what_ssh_prints_becomes_an_error(output: str) -> None:
    error = ssh_error(output, "-p 22 root@pi", "pi", "'[pi]:22'")
    assert isinstance(error, ConnectError)
    assert all(words in str(error) for words in SAID[output])
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("cat: write error: No space left on device\n", "pi has no space left (copying)"),
        (
            "error: this board cannot serve:\nok       board  x\nbroken   folder /tmp is small\nbroken   session no\n",
            "pi cannot serve: folder /tmp is small; session no",
        ),
        ("Sorry, try again.\nsudo: no password was provided\nsudo: 1 incorrect password attempt\n", "this password"),
        ("pi is not in the sudoers file.\n", "may not use sudo on pi"),
        ("x\ninstall.sh: error: the copy is not whole\n", "copying on pi failed: the copy is not whole"),
        ("", "copying on pi failed: it printed nothing"),
    ],
)
def test_what_a_board_prints_becomes_an_error(output: str, words: str) -> None:
    error = board_error(output, "pi", "copying")
    assert isinstance(error, RpcsysError)
    assert words in str(error)
    assert "\n" not in str(error)
