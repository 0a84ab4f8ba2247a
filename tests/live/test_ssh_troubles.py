"""``rpcsys board`` where something is wrong, missing or unusual: one line for each, and nothing half done."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.live.daemons import Daemons, free_port, wait_free
from tests.live.desk import KEY, PI, START_S, Desk, left, packing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_complaints(desk: Desk) -> None:
    """One line for each, before anything is on the board."""
    board = desk.board(PI + "\nrm -f /usr/bin/sudo")
    before = left(board)
    add = desk.adding(board)

    def changed(place: str, word: str) -> list[str]:
        words = list(add)
        words[words.index(place) + 1] = word
        return words

    stranger = desk.adding(board, known=False)
    assert "host key of 127.0.0.1 is unknown: type: ssh -p" in desk.run(*stranger, status=1)
    (board.folder / "nobody").write_text(f"[127.0.0.1]:{board.port} {(board.folder / 'user.pub').read_text()}")
    assert "is not the one it had" in desk.run(*stranger, status=1)
    assert "permission denied" in desk.run(*desk.adding(board, user="nobody2"), status=1)
    assert "refuses ssh" in desk.run(*changed("-p", str(free_port())), status=1)
    assert "no host called no-such-host.invalid" in desk.run(
        *["root@no-such-host.invalid" if word == "root@127.0.0.1" else word for word in add], status=1
    )
    assert "'-oProxyCommand=x' is no board" in desk.run(
        "add", "--key", "k", "--tracker", desk.tracker.where, "--", "-oProxyCommand=x", status=2
    )
    nowhere = f"127.0.0.1:{free_port()}"
    assert nowhere in desk.run(*changed("--tracker", nowhere), status=1)
    assert "is no name for a server" in desk.run(*changed("--name", "a/b"), status=2)
    assert "has no python4" in desk.run(*add[:2], "--python", "python4", *add[2:], status=1)
    assert "may not install on 127.0.0.1" in desk.run(*desk.adding(board, user="pi"), status=1)
    assert "unrecognized arguments: --no-such-flag" in desk.run(*add, "--no-such-flag", status=2)
    assert "cannot read nowhere" in desk.run(*changed("--archive", "nowhere"), status=2)
    assert "this desk keeps no board called b1" in desk.run("upgrade", "b1", status=2)
    assert "which board?" in desk.run("upgrade", status=2)
    assert left(board) == before
    assert desk.listed() == []


def test_a_tracker_that_only_the_desk_reaches(desk: Desk) -> None:
    # The board's Python has no way to the tracker: it stands for another network.
    refusal = 'case "$*" in *create_connection*) echo "timed out" >&2; exit 1;; esac'
    board = desk.board(programs={"python3": f'#!/bin/sh\n{refusal}\nexec /usr/bin/python3 "$@"\n'})
    said = desk.run(*desk.adding(board), status=1)
    assert f"cannot reach the tracker or proxy at {desk.tracker.where} (timed out)" in said
    assert "rpcsys" not in board.shell("ls /opt /tmp")


def test_a_name_in_use(desk: Desk, daemons: Daemons) -> None:
    board = desk.board()
    daemons.server(KEY, "--name", "b1", tracker=desk.tracker)
    said = desk.run(*desk.adding(board), status=1)
    assert "the tracker has a server called b1 already" in said
    desk.run(*desk.adding(board, name="b2"))
    wait_free(desk.tracker, KEY, 2, START_S)
    other = desk.board()
    assert "this desk keeps a board called b2 already" in desk.run(*desk.adding(other, name="b2"), status=2)


OLD_PYTHON = "#!/bin/sh\necho '3.6 64 glibc-2.27'\n"


@pytest.mark.parametrize(
    ("prepare", "programs", "size", "says"),
    [
        ("rm /usr/bin/python3*", {}, {}, "has no python3: install Python 3.8"),
        ("rm /usr/bin/python3*", {"python3": OLD_PYTHON}, {}, "too old (python3 is 3.6)"),
        ("", {"uname": "#!/bin/sh\n[ $1 = -m ] && echo mips || exec /bin/uname $1\n"}, {}, "127.0.0.1 is mips"),
        ("", {}, {"disk": "1m"}, "has no space: "),
        ("for each in /tmp /var/tmp; do mount -t tmpfs -o size=200k little $each; done", {}, {}, "has no space: "),
        # What df says is not always so.
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
def test_boards_that_will_not_do(
    prepare: str, programs: dict[str, str], size: dict[str, str], says: str, desk: Desk
) -> None:
    board = desk.board(prepare, programs, **size)
    assert says in desk.run(*packing(desk.adding(board)), status=1)
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    assert desk.listed() == []


def test_an_older_python_beside_is_taken(desk: Desk) -> None:
    board = desk.board("mv /usr/bin/python3.11 /usr/bin/python3.9; rm /usr/bin/python3", {"python3": OLD_PYTHON})
    desk.run(*desk.adding(board))
    assert board.shell("cat /etc/rpcsys/environment").endswith("RPCSYS_PYTHON='python3.9'\n")
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    assert "is installed: b1" in board.shell("sh /opt/rpcsys/current/install.sh")  # it remembers which
    desk.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def test_where_nothing_in_tmp_may_be_executed(desk: Desk) -> None:
    board = desk.board("mount -o remount,noexec /tmp; mkdir /var/elsewhere")
    words = desk.adding(board)
    assert "cannot serve: folder /tmp is mounted noexec" in desk.run(*words, status=1)
    board.shell("mkdir /etc/rpcsys; echo TMPDIR=/var/elsewhere >/etc/rpcsys/environment")
    desk.run(*words)
    with desk.lease() as session:
        session.upload(b"x", "notes.txt")
        assert "notes.txt" in board.shell("find /var/elsewhere")


def test_in_a_folder_of_ones_own_without_root(desk: Desk) -> None:
    board = desk.board(PI)
    desk.run(*desk.adding(board, "--root", "/home/pi", user="pi"))
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    (row,) = desk.listed()
    assert row["installed"] == row["version"]
    desk.run("remove", "b1")
    assert board.shell("find /home/pi ! -type d -name '*rpcsys*'") == ""
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


SUDO = PI + '\necho "pi:raspberry" | chpasswd\necho "pi ALL=(ALL) {}ALL" >/etc/sudoers.d/pi'


def test_with_sudo(desk: Desk) -> None:
    board = desk.board(SUDO.format("NOPASSWD: "))
    desk.run(*desk.adding(board, user="pi"))
    assert "b1.flags" in board.shell("ls /etc/rpcsys")
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    desk.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def typing(desk: Desk, words: list[str], answer: str) -> tuple[int, str]:
    """Run a command at a terminal and type ``answer`` once it asks; its status and what the terminal shows."""
    pid, terminal = os.forkpty()
    if not pid:
        os.execve(sys.executable, [sys.executable, "-m", "rpcsys", "board", *words], desk.environment)
    shown, answered = b"", False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the other end of a terminal is gone
            break
        if not data:
            break
        shown += data
        # The blank behind the question comes once what is typed is not shown; what was typed before is lost.
        if b": " in shown.partition(b"Password for sudo")[2] and not answered:
            answered = True
            os.write(terminal, answer.encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_with_sudo_that_asks(desk: Desk) -> None:
    board = desk.board(SUDO.format(""))
    words = desk.adding(board, user="pi")
    assert "sudo on 127.0.0.1 asks for a password: type this at a terminal" in desk.run(*words, status=1)
    status, shown = typing(desk, words, "strawberry")
    assert status == 1
    assert "does not take this password" in shown
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    status, shown = typing(desk, words, "raspberry")
    assert status == 0, shown
    assert "raspberry" not in shown
    wait_free(desk.tracker, KEY, 1, START_S)


def test_flags_that_only_the_board_can_judge(desk: Desk) -> None:
    """The server does not come up, and people are told what it said."""
    board = desk.board()
    said = desk.run(*desk.adding(board, "--wait", "15", "--", "--load-library", "/no/such.so"), status=1)
    assert "is installed and not in the tracker" in said
    assert "no/such.so" in said or "starts again" in said
    desk.run(*desk.adding(board))
    wait_free(desk.tracker, KEY, 1, START_S)


def test_a_board_that_stops_answering(desk: Desk) -> None:
    board = desk.board()
    desk.run(*desk.adding(board))
    listener = board.processes()[0].pid
    os.kill(listener, signal.SIGSTOP)
    try:
        started = time.monotonic()
        (row,) = desk.listed()
        assert row["installed"] == "unreachable"
        assert row["state"] == "serves, 1 of 1 free"
        assert time.monotonic() - started < 60
    finally:
        os.kill(listener, signal.SIGCONT)
