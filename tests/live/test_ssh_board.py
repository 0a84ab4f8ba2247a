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
from tests.live.board_cli import KEY, START_S, BoardCli, left, packing, version_of
from tests.live.boards import packed
from tests.live.booted import Booted
from tests.live.daemons import Daemons, free_port, queue, wait_free, wait_until
from tests.live.emulated import MACHINES
from tests.live.sshboard import SshBoard, SystemdBoard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_from_an_empty_board_to_a_lease_an_upgrade_and_an_empty_board(cli: BoardCli, newer_archive: Path) -> None:
    # The board's login shell prints a line.
    board = cli.board("echo echo Welcome >/root/.bashrc")
    before = left(board)
    words = cli.adding(board, "--", "--label", "shelf=a b")
    assert "b1 serves lab:board with rpcsys " in cli.run(*packing(words))
    assert queue(cli.tracker, KEY)["free"] == 1
    (row,) = cli.listed()
    assert row["installed"] == row["version"] == version_of(board)
    assert row["version"].startswith(rpcsys.__version__ + "-")
    assert (row["state"], row["target"]) == ("serves, 1 of 1 free", "x86_64-linux-gnu")
    assert board.shell("/etc/init.d/rpcsys-server status").strip().endswith("rpcsys-server b1 runs")

    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
        assert "1 of 1 leased" in cli.run("list")
        upgrade = cli.start("upgrade", "b1", "--archive", str(newer_archive))
        wait_until(lambda: version_of(board).startswith("9.9.9-"), START_S, "the new version is in use")
        assert session.get_function("testing.echo")(2) == 2
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    with cli.lease() as session:
        assert session.get_function("testing.echo")(3) == 3
    assert board.shell("ls /opt/rpcsys/versions").split()[-1] == read(newer_archive).name
    assert "had rpcsys 9.9.9-" in cli.run("upgrade", "--all", "--archive", str(newer_archive))
    assert "shelf=a b" in board.shell("cat /etc/rpcsys/b1.flags")

    assert cli.run("remove", "b1") == "b1 is removed\n"
    wait_until(lambda: queue(cli.tracker, KEY)["free"] == 0, START_S, "the tracker has none")
    assert cli.listed() == []
    assert left(board) == before


#: As with Buildroot: BusyBox is the shell and all commands; Debian's commands are not in the PATH.
BUSYBOX = """usermod --shell /bin/sh root
mkdir /bb
busybox --install -s /bb
ln -sf busybox /bin/sh
ln -s /usr/bin/python3 /bb/python3
for folder in /etc/python3.*; do cp /board/bin/sitecustomize.py $folder; done"""
#: The modules that Buildroot's python3 does not have by default.
MISSING = [
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
WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({MISSING}))\n"


def test_a_board_with_busybox_and_its_init(cli: BoardCli, newer_archive: Path) -> None:
    board = cli.board(BUSYBOX, {"sitecustomize.py": WITHOUT}, path="/bb")
    assert "no zlib" in board.shell("python3 -c 'import zlib' 2>/dev/null || echo no zlib")
    assert "BusyBox" in board.shell("sh --help 2>&1; :")
    before = left(board)
    cli.run(*cli.adding(board))
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    cli.run("upgrade", "b1", "--archive", str(newer_archive))
    wait_free(cli.tracker, KEY, 1, START_S)
    # A power cut; then BusyBox's rcS starts the services.
    for process in board.processes()[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_free(cli.tracker, KEY, 0, START_S)
    board.shell("for script in /etc/init.d/S??rpcsys*; do $script start; done")
    wait_free(cli.tracker, KEY, 1, START_S)
    (row,) = cli.listed()
    assert row["installed"] == read(newer_archive).name
    cli.run("remove", "b1")
    assert left(board) == before


def test_a_board_with_systemd(
    daemons: Daemons, current_archive: Path, newer_archive: Path, short_folder: Path, tmp_path: Path
) -> None:
    machine = Booted(daemons)
    try:
        with machine.entered():  # also for the check of its daemons: they listen in the machine's network
            cli = BoardCli(tmp_path, daemons.tracker(), current_archive, short_folder, [])
            (tmp_path / "board").mkdir()
            try:
                _with_systemd(cli, SystemdBoard(tmp_path / "board", machine=machine).start(), machine, newer_archive)
            finally:
                daemons.stop()
    finally:
        machine.close()


def _with_systemd(cli: BoardCli, board: SshBoard, machine: Booted, newer_archive: Path) -> None:
    before = left(board)
    cli.run(*cli.adding(board))
    cli.run(*cli.adding(board, name="b2"))
    assert machine.show("rpcsys-server@b1", "ActiveState") == "active"
    assert machine.run("systemctl", "is-enabled", "rpcsys-server@b1").strip() == "enabled"
    with cli.lease() as session:
        upgrade = cli.start("upgrade", "--all", "--archive", str(newer_archive))
        wait_until(lambda: version_of(board) == read(newer_archive).name, START_S, "the new version is in use")
        assert session.get_function("testing.echo")(1) == 1
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    assert {row["installed"] for row in cli.listed()} == {read(newer_archive).name}
    cli.run("remove", "b1")
    assert machine.show("rpcsys-server@b1", "ActiveState") == "inactive"
    wait_free(cli.tracker, KEY, 1, START_S)
    # The server's last message is in the journal.
    said = cli.run(*cli.adding(board, "--wait", "3", "--", "--load-library", "/no/such.so", name="b2"), status=1)
    assert "/no/such.so" in said
    cli.run("remove", "b2")
    assert left(board) == before


def test_an_emulated_board_with_tvms_libraries(cli: BoardCli, shared: Path) -> None:
    """The board has another processor and an older glibc; its archive is packed for both."""
    machine = MACHINES["old"]
    board = cli.board(
        "rm /usr/bin/python3*",
        programs={
            "python3": machine.python.read_text(),
            "uname": "#!/bin/sh\n[ $1 = -m ] && echo aarch64 || exec /bin/uname $1\n",
        },
        folders=(machine.root,),
    )
    words = cli.adding(board, "--wait", "300")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    cli.run(*words)
    (row,) = cli.listed()
    assert (row["target"], row["state"]) == ("aarch64-linux-gnu", "serves, 1 of 1 free")
    with cli.lease() as session:
        assert session.info["machine"]["arch"] == "aarch64"
    other = cli.board()
    words = cli.adding(other, name="b2")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    assert "is for aarch64-linux-gnu, and 127.0.0.1 is x86_64" in cli.run(*words, status=1)
    cli.run("remove", "b1")


def test_a_board_behind_a_proxy(cli: BoardCli, daemons: Daemons) -> None:
    proxy = daemons.proxy("--tracker", cli.tracker.where)
    board = cli.board()
    words = cli.adding(board)
    words = [*words[: words.index("--") + 1], "--through-proxy", "--host"]
    nowhere = f"127.0.0.1:{free_port()}"
    said = cli.run(*words, nowhere, status=1)
    assert f"cannot reach the tracker or proxy at {nowhere}" in said
    cli.run(*words, proxy.where)
    (row,) = cli.listed()
    assert row["state"] == "serves, 1 of 1 free"
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    cli.run("remove", "b1")


def test_two_servers_on_a_board_and_one_of_them_removed(cli: BoardCli) -> None:
    board = cli.board()
    cli.run(*cli.adding(board))
    cli.run(*cli.adding(board, name="b2"))
    wait_free(cli.tracker, KEY, 2, START_S)
    cli.run("remove", "b1")
    wait_free(cli.tracker, KEY, 1, START_S)
    (row,) = cli.listed()
    assert (row["name"], row["state"]) == ("b2", "serves, 1 of 1 free")
    assert board.shell("ls /etc/rpcsys").split()[-1] == "b2.flags"
    # Adding a server again updates its flags.
    cli.run(*cli.adding(board, "--", "--slots", "2", name="b2"))
    wait_free(cli.tracker, KEY, 2, START_S)
    board.stop()
    (row,) = cli.listed()
    assert row["installed"] == "unreachable"
    assert "refuses ssh" in cli.run("remove", "b2", status=1)
    assert cli.run("remove", "b2", "--forget") == "b2 is forgotten\n"


@pytest.mark.parametrize(
    ("moment", "later_s", "how"),
    [
        ("copies", 0.0, signal.SIGKILL),
        ("installs", 0.0, signal.SIGKILL),
        ("installs", 0.7, signal.SIGKILL),
        ("installs", 0.0, signal.SIGINT),
    ],
)
def test_a_killed_command_leaves_the_old_or_the_new_version(
    moment: str, later_s: float, how: signal.Signals, cli: BoardCli, newer_archive: Path
) -> None:
    """The board has the old or the new version and no other files; the next upgrade succeeds."""
    board = cli.board()
    cli.run(*cli.adding(board))
    versions = {version_of(board), read(newer_archive).name}
    words = ["upgrade", "b1", "--archive", str(newer_archive)]
    with cli.start(*words, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        time.sleep(later_s)  # at any time of the upgrade
        os.killpg(process.pid, how)
        assert process.wait(START_S) == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: "install.sh" not in board.shell("ps ax -o args"), START_S, "it is over")
    wait_until(lambda: not board.shell("ls -d /tmp/rpcsys.* 2>/dev/null; :"), START_S, "nothing is left in /tmp")
    assert version_of(board) in versions
    wait_free(cli.tracker, KEY, 1, START_S)
    cli.run(*words)
    assert version_of(board) == read(newer_archive).name
    with cli.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
