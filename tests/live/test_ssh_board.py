"""``rpcsys board`` over a real sshd: boards with systemd, BusyBox, emulated, behind a proxy; the command killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.board.package import read
from tests.live.boards import packed
from tests.live.booted import Booted
from tests.live.daemons import Daemons, free_port, queue, wait_free, wait_until
from tests.live.desk import KEY, START_S, Desk, left, packing, version_of
from tests.live.emulated import MACHINES
from tests.live.sshboard import SshBoard, SystemdBoard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_from_an_empty_board_to_a_lease_an_upgrade_and_an_empty_board(desk: Desk, newer_archive: Path) -> None:
    # The lab's keeper has told the board's shell to greet people.
    board = desk.board("echo echo Welcome >/root/.bashrc")
    before = left(board)
    words = desk.adding(board, "--", "--label", "shelf=a b")
    assert "b1 serves lab:board with rpcsys " in desk.run(*packing(words))
    assert queue(desk.tracker, KEY)["free"] == 1
    (row,) = desk.listed()
    assert row["installed"] == row["version"] == version_of(board)
    assert row["version"].startswith(rpcsys.__version__ + "-")
    assert (row["state"], row["target"]) == ("serves, 1 of 1 free", "x86_64-linux-gnu")
    assert board.shell("/etc/init.d/rpcsys-server status").strip().endswith("rpcsys-server b1 runs")

    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
        assert "1 of 1 leased" in desk.run("list")
        upgrade = desk.start("upgrade", "b1", "--archive", str(newer_archive))
        wait_until(lambda: version_of(board).startswith("9.9.9-"), START_S, "the new version is in its place")
        assert session.get_function("testing.echo")(2) == 2
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    with desk.lease() as session:
        assert session.get_function("testing.echo")(3) == 3
    assert board.shell("ls /opt/rpcsys/versions").split()[-1] == read(newer_archive).name
    assert "had rpcsys 9.9.9-" in desk.run("upgrade", "--all", "--archive", str(newer_archive))
    assert "shelf=a b" in board.shell("cat /etc/rpcsys/b1.flags")

    assert desk.run("remove", "b1") == "b1 is removed\n"
    wait_until(lambda: queue(desk.tracker, KEY)["free"] == 0, START_S, "the tracker has none")
    assert desk.listed() == []
    assert left(board) == before


#: Buildroot's ways: one program for all commands, the shell too, and nothing of Debian's.
BUSYBOX = """usermod --shell /bin/sh root
mkdir /bb
busybox --install -s /bb
ln -sf busybox /bin/sh
ln -s /usr/bin/python3 /bb/python3
for folder in /etc/python3.*; do cp /board/bin/sitecustomize.py $folder; done"""
#: What its python3 does not have, if nobody has chosen it.
NOT_CHOSEN = [
    "bz2",
    "curses",
    "_decimal",
    "_hashlib",
    "_lzma",
    "ossaudiodev",
    "pyexpat",
    "readline",
    "_sqlite3",
    "_ssl",
    "zlib",
]
WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({NOT_CHOSEN}))\n"


def test_a_board_with_busybox_and_its_init(desk: Desk, newer_archive: Path) -> None:
    board = desk.board(BUSYBOX, {"sitecustomize.py": WITHOUT}, path="/bb")
    assert "no zlib" in board.shell("python3 -c 'import zlib' 2>/dev/null || echo no zlib")
    assert "BusyBox" in board.shell("sh --help 2>&1; :")
    before = left(board)
    desk.run(*desk.adding(board))
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    desk.run("upgrade", "b1", "--archive", str(newer_archive))
    wait_free(desk.tracker, KEY, 1, START_S)
    # A power cut, and what BusyBox's rcS does then.
    for process in board.processes()[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_free(desk.tracker, KEY, 0, START_S)
    board.shell("for script in /etc/init.d/S??rpcsys*; do $script start; done")
    wait_free(desk.tracker, KEY, 1, START_S)
    (row,) = desk.listed()
    assert row["installed"] == read(newer_archive).name
    desk.run("remove", "b1")
    assert left(board) == before


def test_a_board_with_systemd(
    daemons: Daemons, current_archive: Path, newer_archive: Path, short: Path, tmp_path: Path
) -> None:
    machine = Booted(daemons)
    try:
        with machine.entered():  # until its daemons are asked what is left: they answer nobody outside
            desk = Desk(tmp_path, daemons.tracker(), current_archive, short, [])
            (tmp_path / "board").mkdir()
            try:
                _with_systemd(desk, SystemdBoard(tmp_path / "board", machine=machine).start(), machine, newer_archive)
            finally:
                daemons.stop()
    finally:
        machine.close()


def _with_systemd(desk: Desk, board: SshBoard, machine: Booted, newer_archive: Path) -> None:
    before = left(board)
    desk.run(*desk.adding(board))
    desk.run(*desk.adding(board, name="b2"))
    assert machine.show("rpcsys-server@b1", "ActiveState") == "active"
    assert machine.run("systemctl", "is-enabled", "rpcsys-server@b1").strip() == "enabled"
    with desk.lease() as session:
        upgrade = desk.start("upgrade", "--all", "--archive", str(newer_archive))
        wait_until(lambda: version_of(board) == read(newer_archive).name, START_S, "the new version is in its place")
        assert session.get_function("testing.echo")(1) == 1
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    assert {row["installed"] for row in desk.listed()} == {read(newer_archive).name}
    desk.run("remove", "b1")
    assert machine.show("rpcsys-server@b1", "ActiveState") == "inactive"
    wait_free(desk.tracker, KEY, 1, START_S)
    # What the server says at its end is in the journal.
    said = desk.run(*desk.adding(board, "--wait", "3", "--", "--load-library", "/no/such.so", name="b2"), status=1)
    assert "/no/such.so" in said
    desk.run("remove", "b2")
    assert left(board) == before


def test_an_emulated_board_with_tvms_libraries(desk: Desk, shared: Path) -> None:
    """One for another processor, with an older glibc than this machine's: what is packed for it is what it loads."""
    machine = MACHINES["old"]
    board = desk.board(
        "rm /usr/bin/python3*",
        programs={
            "python3": machine.python.read_text(),
            "uname": "#!/bin/sh\n[ $1 = -m ] && echo aarch64 || exec /bin/uname $1\n",
        },
        folders=(machine.root,),
    )
    words = desk.adding(board, "--wait", "300")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    desk.run(*words)
    (row,) = desk.listed()
    assert (row["target"], row["state"]) == ("aarch64-linux-gnu", "serves, 1 of 1 free")
    with desk.lease() as session:
        assert session.info["machine"]["arch"] == "aarch64"
    strange = desk.board()
    words = desk.adding(strange, name="b2")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    assert "is for aarch64-linux-gnu, and 127.0.0.1 is x86_64" in desk.run(*words, status=1)
    desk.run("remove", "b1")


def test_a_board_behind_a_proxy(desk: Desk, daemons: Daemons) -> None:
    proxy = daemons.proxy("--tracker", desk.tracker.where)
    board = desk.board()
    words = desk.adding(board)
    words = [*words[: words.index("--") + 1], "--through-proxy", "--host"]
    nowhere = f"127.0.0.1:{free_port()}"
    said = desk.run(*words, nowhere, status=1)
    assert f"cannot reach the tracker or proxy at {nowhere}" in said
    desk.run(*words, proxy.where)
    (row,) = desk.listed()
    assert row["state"] == "serves, 1 of 1 free"
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    desk.run("remove", "b1")


def test_two_servers_on_a_board_and_one_of_them_removed(desk: Desk) -> None:
    board = desk.board()
    desk.run(*desk.adding(board))
    desk.run(*desk.adding(board, name="b2"))
    wait_free(desk.tracker, KEY, 2, START_S)
    desk.run("remove", "b1")
    wait_free(desk.tracker, KEY, 1, START_S)
    (row,) = desk.listed()
    assert (row["name"], row["state"]) == ("b2", "serves, 1 of 1 free")
    assert board.shell("ls /etc/rpcsys").split()[-1] == "b2.flags"
    # Once more is the same again, with other flags if there are any.
    desk.run(*desk.adding(board, "--", "--slots", "2", name="b2"))
    wait_free(desk.tracker, KEY, 2, START_S)
    board.stop()
    (row,) = desk.listed()
    assert row["installed"] == "unreachable"
    assert "refuses ssh" in desk.run("remove", "b2", status=1)
    assert desk.run("remove", "b2", "--forget") == "b2 is forgotten\n"


@pytest.mark.parametrize(
    ("moment", "later_s", "how"),
    [
        ("copies", 0.0, signal.SIGKILL),
        ("installs", 0.0, signal.SIGKILL),
        ("installs", 0.7, signal.SIGKILL),
        ("installs", 0.0, signal.SIGINT),
    ],
)
def test_a_desk_that_is_killed(
    moment: str, later_s: float, how: signal.Signals, desk: Desk, newer_archive: Path
) -> None:
    """The board has the old or the new version, nothing of the attempt, and takes the next."""
    board = desk.board()
    desk.run(*desk.adding(board))
    versions = {version_of(board), read(newer_archive).name}
    words = ["upgrade", "b1", "--archive", str(newer_archive)]
    with desk.start(*words, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        time.sleep(later_s)  # wherever that is: all moments have to be good ones
        os.killpg(process.pid, how)
        assert process.wait(START_S) == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: "install.sh" not in board.shell("ps ax -o args"), START_S, "it is over")
    wait_until(lambda: not board.shell("ls -d /tmp/rpcsys.* 2>/dev/null; :"), START_S, "nothing is left in /tmp")
    assert version_of(board) in versions
    wait_free(desk.tracker, KEY, 1, START_S)
    desk.run(*words)
    assert version_of(board) == read(newer_archive).name
    with desk.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
