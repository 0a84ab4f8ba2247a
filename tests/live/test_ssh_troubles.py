"""``rpcsys board`` with wrong, missing or unusual things: each gives one line and leaves the board unchanged."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.live.board_cli import KEY, PI, START_S, BoardCli, left, packing
from tests.live.daemons import Daemons, free_port, wait_free

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_mistake_gives_one_line_and_leaves_the_board_unchanged(cli: BoardCli) -> None:
    board = cli.board(PI + "\nrm -f /usr/bin/sudo")
    before = left(board)
    add = cli.adding(board)

    def changed(flag: str, word: str) -> list[str]:
        words = list(add)
        words[words.index(flag) + 1] = word
        return words

    unknown = cli.adding(board, known=False)
    assert "host key of 127.0.0.1 is unknown: type: ssh -p" in cli.run(*unknown, status=1)
    (board.folder / "nobody").write_text(f"[127.0.0.1]:{board.port} {(board.folder / 'user.pub').read_text()}")
    assert "is not the one it had" in cli.run(*unknown, status=1)
    assert "permission denied" in cli.run(*cli.adding(board, user="nobody2"), status=1)
    assert "refuses ssh" in cli.run(*changed("-p", str(free_port())), status=1)
    assert "no host called no-such-host.invalid" in cli.run(
        *["root@no-such-host.invalid" if word == "root@127.0.0.1" else word for word in add], status=1
    )
    assert "'-oProxyCommand=x' is no board" in cli.run(
        "add", "--key", "k", "--tracker", cli.tracker.where, "--", "-oProxyCommand=x", status=2
    )
    nowhere = f"127.0.0.1:{free_port()}"
    assert nowhere in cli.run(*changed("--tracker", nowhere), status=1)
    assert "is no name for a server" in cli.run(*changed("--name", "a/b"), status=2)
    assert "has no python4" in cli.run(*add[:2], "--python", "python4", *add[2:], status=1)
    assert "may not install on 127.0.0.1" in cli.run(*cli.adding(board, user="pi"), status=1)
    assert "unrecognized arguments: --no-such-flag" in cli.run(*add, "--no-such-flag", status=2)
    assert "File 'nowhere' does not exist" in cli.run(*changed("--archive", "nowhere"), status=2)
    assert "this desk keeps no board called b1" in cli.run("upgrade", "b1", status=2)
    assert "which board?" in cli.run("upgrade", status=2)
    assert left(board) == before
    assert cli.listed() == []


def test_a_tracker_that_the_board_cannot_reach_is_reported(cli: BoardCli) -> None:
    # The board's Python cannot connect to the tracker, as from another network.
    refusal = 'case "$*" in *create_connection*) echo "timed out" >&2; exit 1;; esac'
    board = cli.board(programs={"python3": f'#!/bin/sh\n{refusal}\nexec /usr/bin/python3 "$@"\n'})
    said = cli.run(*cli.adding(board), status=1)
    assert f"cannot reach the tracker or proxy at {cli.tracker.where} (timed out)" in said
    assert "rpcsys" not in board.shell("ls /opt /tmp")


def test_a_name_in_use_is_refused(cli: BoardCli, daemons: Daemons) -> None:
    board = cli.board()
    daemons.server(KEY, "--name", "b1", tracker=cli.tracker)
    said = cli.run(*cli.adding(board), status=1)
    assert "the tracker has a server called b1 already" in said
    cli.run(*cli.adding(board, name="b2"))
    wait_free(cli.tracker, KEY, 2, START_S)
    other = cli.board()
    assert "this desk keeps a board called b2 already" in cli.run(*cli.adding(other, name="b2"), status=2)


OLD_PYTHON = "#!/bin/sh\necho '3.6 64 glibc-2.27'\n"


@pytest.mark.parametrize(
    ("prepare", "programs", "size", "says"),
    [
        ("rm /usr/bin/python3*", {}, {}, "has no python3: install Python 3.8"),
        ("rm /usr/bin/python3*", {"python3": OLD_PYTHON}, {}, "too old (python3 is 3.6)"),
        ("", {"uname": "#!/bin/sh\n[ $1 = -m ] && echo mips || exec /bin/uname $1\n"}, {}, "127.0.0.1 is mips"),
        ("", {}, {"disk": "1m"}, "has no space: "),
        ("for each in /tmp /var/tmp; do mount -t tmpfs -o size=200k little $each; done", {}, {}, "has no space: "),
        # df may report wrong numbers.
        (
            "mount -t tmpfs -o size=200k little /tmp",
            {"df": "#!/bin/sh\necho disk 9000000 0 9000000 0% /\n"},
            {},
            "has no space left",
        ),
        ("", {"sha": "", "gzip": "#!/bin/sh\necho 'gzip: corrupt' >&2; exit 1\n"}, {}, "failed"),
    ],
    ids=["no-python", "old-python", "mips", "small-disk", "small-tmp", "full", "no-gzip"],
)
def test_an_unsuitable_board_is_reported_and_unchanged(
    prepare: str, programs: dict[str, str], size: dict[str, str], says: str, cli: BoardCli
) -> None:
    board = cli.board(prepare, programs, **size)
    assert says in cli.run(*packing(cli.adding(board)), status=1)
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    assert cli.listed() == []


def test_a_versioned_python_is_used(cli: BoardCli) -> None:
    board = cli.board("mv /usr/bin/python3.11 /usr/bin/python3.9; rm /usr/bin/python3", {"python3": OLD_PYTHON})
    cli.run(*cli.adding(board))
    assert board.shell("cat /etc/rpcsys/environment").endswith("RPCSYS_PYTHON='python3.9'\n")
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    assert "is installed: b1" in board.shell("sh /opt/rpcsys/current/install.sh")  # with the same Python
    cli.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def test_a_board_with_noexec_tmp_serves_with_another_tmpdir(cli: BoardCli) -> None:
    board = cli.board("mount -o remount,noexec /tmp; mkdir /var/elsewhere")
    words = cli.adding(board)
    assert "cannot serve: folder /tmp is mounted noexec" in cli.run(*words, status=1)
    board.shell("mkdir /etc/rpcsys; echo TMPDIR=/var/elsewhere >/etc/rpcsys/environment")
    cli.run(*words)
    with cli.lease() as session:
        session.upload(b"x", "notes.txt")
        assert "notes.txt" in board.shell("find /var/elsewhere")


def test_a_user_without_root_installs_into_a_home_folder(cli: BoardCli) -> None:
    board = cli.board(PI)
    cli.run(*cli.adding(board, "--root", "/home/pi", user="pi"))
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    (row,) = cli.listed()
    assert row["installed"] == row["version"]
    cli.run("remove", "b1")
    assert board.shell("find /home/pi ! -type d -name '*rpcsys*'") == ""
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


SUDO = PI + '\necho "pi:raspberry" | chpasswd\necho "pi ALL=(ALL) {}ALL" >/etc/sudoers.d/pi'


def test_a_user_installs_with_sudo(cli: BoardCli) -> None:
    board = cli.board(SUDO.format("NOPASSWD: "))
    cli.run(*cli.adding(board, user="pi"))
    assert "b1.flags" in board.shell("ls /etc/rpcsys")
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    cli.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def typing(cli: BoardCli, words: list[str], answer: str) -> tuple[int, str]:
    """Run a command at a terminal and type ``answer`` at its question; its status and the terminal's text."""
    pid, terminal = os.forkpty()
    if not pid:
        os.execve(sys.executable, [sys.executable, "-m", "rpcsys", "board", *words], cli.environment)
    shown, answered = b"", False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the command has closed the terminal
            break
        if not data:
            break
        shown += data
        # The blank after the question is printed when echo is off; input before that is lost.
        if b": " in shown.partition(b"Password for sudo")[2] and not answered:
            answered = True
            os.write(terminal, answer.encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_a_user_types_the_password_of_sudo(cli: BoardCli) -> None:
    board = cli.board(SUDO.format(""))
    words = cli.adding(board, user="pi")
    assert "sudo on 127.0.0.1 asks for a password: type this at a terminal" in cli.run(*words, status=1)
    status, shown = typing(cli, words, "strawberry")
    assert status == 1
    assert "does not take this password" in shown
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    status, shown = typing(cli, words, "raspberry")
    assert status == 0, shown
    assert "raspberry" not in shown
    wait_free(cli.tracker, KEY, 1, START_S)


def test_an_error_of_the_server_on_the_board_is_shown(cli: BoardCli) -> None:
    """The server does not start; the command prints its message."""
    board = cli.board()
    said = cli.run(*cli.adding(board, "--wait", "15", "--", "--load-library", "/no/such.so"), status=1)
    assert "is installed and not in the tracker" in said
    assert "no/such.so" in said or "starts again" in said
    cli.run(*cli.adding(board))
    wait_free(cli.tracker, KEY, 1, START_S)


def test_a_board_that_does_not_answer_is_listed_as_unreachable(cli: BoardCli) -> None:
    board = cli.board()
    cli.run(*cli.adding(board))
    listener = board.processes()[0].pid
    os.kill(listener, signal.SIGSTOP)
    try:
        started = time.monotonic()
        (row,) = cli.listed()
        assert row["installed"] == "unreachable"
        assert row["state"] == "serves, 1 of 1 free"
        assert time.monotonic() - started < 60
    finally:
        os.kill(listener, signal.SIGCONT)
