"""``rpcsys board``: a board behind a real sshd, without systemd, and a real tracker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.board.package import read
from rpcsys.pack import build
from tests.live.boards import packed
from tests.live.booted import Booted
from tests.live.daemons import Daemon, Daemons, free_port, queue, wait_free, wait_until
from tests.live.emulated import MACHINES
from tests.live.sshboard import SshBoard, SystemdBoard

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(600)]

START_S = 90.0
KEY = "lab:board"
#: A user who is not root, and whose login shell has something to say.
PI = """useradd --create-home --shell /bin/bash pi
usermod --password "*" pi
echo "echo Welcome, pi" >/home/pi/.bashrc"""


@dataclass
class Bench:
    """A desk, a tracker, and boards."""

    folder: Path
    tracker: Daemon
    archive: Path
    short: Path
    made: list[SshBoard]

    def board(self, prepare: str = "", programs: dict[str, str] | None = None, **more) -> SshBoard:
        folder = self.folder / f"board{len(self.made)}"
        folder.mkdir()
        board = SshBoard(folder, prepare, programs or {}, **more)
        self.made.append(board)
        return board.start()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "_TRACKER_" not in name}
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "XDG_RUNTIME_DIR": str(self.short)}
        return {**kept, **own, "TMPDIR": str(self.folder)}

    def start(self, *words: str, **popen) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rpcsys", "board", *words]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, text=True, **{**streams, **popen})

    def run(self, *words: str, status: int = 0) -> str:
        """What the command prints; of one that fails, its one line of complaint."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=200)
        assert process.returncode == status, out + err
        assert "Traceback" not in err
        if not status:
            return out
        complaints = [line for line in err.splitlines() if "error: " in line]
        assert len(complaints) == 1, err
        return complaints[0]

    def adding(
        self, board: SshBoard, *more: str, user: str = "root", name: str = "b1", known: bool = True
    ) -> list[str]:
        """The words that add ``board``; flags of the server come behind a ``--`` in ``more``."""
        flags, behind = list(more), []
        if "--" in flags:
            flags, behind = flags[: flags.index("--")], flags[flags.index("--") + 1 :]
        return [
            "add", f"{user}@127.0.0.1", "--key", KEY, "--tracker", self.tracker.where, "--name", name,
            "--archive", str(self.archive), *board.flags(known=known), *flags, "--", "--host", "127.0.0.1", "--port", "0", *behind,
        ]  # fmt: skip

    def listed(self, *flags: str) -> list[dict[str, str]]:
        return [
            json.loads(line) for line in self.run("list", "--json", *flags).splitlines() if line[0] == "{"
        ]

    def lease(self) -> rpcsys.Session:
        return rpcsys.connect_tracker(self.tracker.address).request(KEY, wait_timeout=START_S)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket; a desk that is killed leaves one there."""
    with tempfile.TemporaryDirectory(prefix="desk-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def bench(tmp_path: Path, daemons: Daemons, current: Path, short: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, daemons.tracker(), current, short, [])
    yield made
    for board in made.made:
        board.stop()


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of this version."""
    return build.pack("x86_64-linux-gnu", tmp_path_factory.mktemp("current") / "current.tar.gz").path


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the version to come."""
    folder = tmp_path_factory.mktemp("newer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rpcsys, "__version__", "9.9.9")
        return build.pack("x86_64-linux-gnu", folder / "newer.tar.gz").path


def packing(words: list[str]) -> list[str]:
    """The words without the archive: it is packed for the board that is found."""
    at = words.index("--archive")
    return words[:at] + words[at + 2 :]


def left(board: SshBoard) -> str:
    """Files of ours, and processes, on the board."""
    return board.shell(
        "find / -xdev ( -name '*rpcsys*' -o -path '*/etc/rpcsys/*' ) ! -path '/tmp/pytest*' "
        "! -path '/root/*' ! -path '/usr/lib/*' 2>/dev/null; ls -d /tmp/rpcsys.*; ps ax -o args | grep '[s]tart.py'; :"
        .replace("(", r"\(").replace(")", r"\)")
    )  # fmt: skip


def version_of(board: SshBoard) -> str:
    """The version in use, which is whole."""
    said = board.shell("python3 /opt/rpcsys/current/python/verify.py && readlink /opt/rpcsys/current")
    return said.partition("versions/")[2].strip()


def test_from_an_empty_board_to_a_lease_an_upgrade_and_an_empty_board(bench: Bench, newer: Path) -> None:
    # The lab's keeper has told the board's shell to greet people.
    board = bench.board("echo echo Welcome >/root/.bashrc")
    before = left(board)
    words = bench.adding(board, "--", "--label", "shelf=a b")
    assert "b1 serves lab:board with rpcsys " in bench.run(*packing(words))
    assert queue(bench.tracker, KEY)["free"] == 1
    (row,) = bench.listed()
    assert row["installed"] == row["version"] == version_of(board)
    assert row["version"].startswith(rpcsys.__version__ + "-")
    assert (row["state"], row["target"]) == ("serves, 1 of 1 free", "x86_64-linux-gnu")
    assert board.shell("/etc/init.d/rpcsys-server status").strip().endswith("rpcsys-server b1 runs")

    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
        assert "1 of 1 leased" in bench.run("list")
        upgrade = bench.start("upgrade", "b1", "--archive", str(newer))
        wait_until(lambda: version_of(board).startswith("9.9.9-"), START_S, "the new version is in its place")
        assert session.get_function("testing.echo")(2) == 2
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    with bench.lease() as session:
        assert session.get_function("testing.echo")(3) == 3
    assert board.shell("ls /opt/rpcsys/versions").split()[-1] == read(newer).name
    assert "had rpcsys 9.9.9-" in bench.run("upgrade", "--all", "--archive", str(newer))
    assert "shelf=a b" in board.shell("cat /etc/rpcsys/b1.flags")

    assert bench.run("remove", "b1") == "b1 is removed\n"
    wait_until(lambda: queue(bench.tracker, KEY)["free"] == 0, START_S, "the tracker has none")
    assert bench.listed() == []
    assert left(board) == before


#: Buildroot's ways: one program for all commands, the shell too, and nothing of Debian's.
BUSYBOX = """usermod --shell /bin/sh root
mkdir /bb
busybox --install -s /bb
ln -sf busybox /bin/sh
ln -s /usr/bin/python3 /bb/python3"""


def test_a_board_with_busybox_and_its_init(bench: Bench, newer: Path) -> None:
    board = bench.board(BUSYBOX, path="/bb")
    assert "BusyBox" in board.shell("sh --help 2>&1; :")
    before = left(board)
    bench.run(*bench.adding(board))
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    bench.run("upgrade", "b1", "--archive", str(newer))
    wait_free(bench.tracker, KEY, 1, START_S)
    # A power cut, and what BusyBox's rcS does then.
    for process in board.processes()[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_free(bench.tracker, KEY, 0, START_S)
    board.shell("for script in /etc/init.d/S??rpcsys*; do $script start; done")
    wait_free(bench.tracker, KEY, 1, START_S)
    (row,) = bench.listed()
    assert row["installed"] == read(newer).name
    bench.run("remove", "b1")
    assert left(board) == before


def test_a_board_with_systemd(
    daemons: Daemons, current: Path, newer: Path, short: Path, tmp_path: Path
) -> None:
    machine = Booted(daemons)
    try:
        with machine.entered():
            bench = Bench(tmp_path, daemons.tracker(), current, short, [])
            (tmp_path / "board").mkdir()
            _with_systemd(bench, SystemdBoard(tmp_path / "board", machine=machine).start(), machine, newer)
    finally:
        daemons.stop()
        machine.close()


def _with_systemd(bench: Bench, board: SshBoard, machine: Booted, newer: Path) -> None:
    before = left(board)
    bench.run(*bench.adding(board))
    bench.run(*bench.adding(board, name="b2"))
    assert machine.show("rpcsys-server@b1", "ActiveState") == "active"
    assert machine.run("systemctl", "is-enabled", "rpcsys-server@b1").strip() == "enabled"
    with bench.lease() as session:
        upgrade = bench.start("upgrade", "--all", "--archive", str(newer))
        wait_until(lambda: version_of(board) == read(newer).name, START_S, "the new version is in its place")
        assert session.get_function("testing.echo")(1) == 1
        assert upgrade.poll() is None, "it waits for the session"
    assert upgrade.wait(START_S) == 0
    assert {row["installed"] for row in bench.listed()} == {read(newer).name}
    bench.run("remove", "b1")
    assert machine.show("rpcsys-server@b1", "ActiveState") == "inactive"
    wait_free(bench.tracker, KEY, 1, START_S)
    # What the server says at its end is in the journal.
    said = bench.run(
        *bench.adding(board, "--wait", "3", "--", "--load-library", "/no/such.so", name="b2"), status=1
    )
    assert "/no/such.so" in said
    bench.run("remove", "b2")
    assert left(board) == before


def test_an_emulated_board_with_tvms_libraries(bench: Bench, shared: Path) -> None:
    """One for another processor, with an older glibc than this machine's: what is packed for it is what it loads."""
    machine = MACHINES["old"]
    board = bench.board(
        "rm /usr/bin/python3*",
        programs={
            "python3": machine.python.read_text(),
            "uname": "#!/bin/sh\n[ $1 = -m ] && echo aarch64 || exec /bin/uname $1\n",
        },
        folders=(machine.root,),
    )
    words = bench.adding(board, "--wait", "300")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    bench.run(*words)
    (row,) = bench.listed()
    assert (row["target"], row["state"]) == ("aarch64-linux-gnu", "serves, 1 of 1 free")
    with bench.lease() as session:
        assert session.info["machine"]["arch"] == "aarch64"
    strange = bench.board()
    words = bench.adding(strange, name="b2")
    words[words.index("--archive") + 1] = str(packed(shared, machine.triple))
    assert "is for aarch64-linux-gnu, and 127.0.0.1 is x86_64" in bench.run(*words, status=1)
    bench.run("remove", "b1")


def test_a_board_behind_a_proxy(bench: Bench, daemons: Daemons) -> None:
    proxy = daemons.proxy("--tracker", bench.tracker.where)
    board = bench.board()
    words = bench.adding(board)
    words = [*words[: words.index("--") + 1], "--through-proxy", "--host"]
    nowhere = f"127.0.0.1:{free_port()}"
    said = bench.run(*words, nowhere, status=1)
    assert f"cannot reach the tracker or proxy at {nowhere}" in said
    bench.run(*words, proxy.where)
    (row,) = bench.listed()
    assert row["state"] == "serves, 1 of 1 free"
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    bench.run("remove", "b1")


def test_two_servers_on_a_board_and_one_of_them_removed(bench: Bench) -> None:
    board = bench.board()
    bench.run(*bench.adding(board))
    bench.run(*bench.adding(board, name="b2"))
    wait_free(bench.tracker, KEY, 2, START_S)
    bench.run("remove", "b1")
    wait_free(bench.tracker, KEY, 1, START_S)
    (row,) = bench.listed()
    assert (row["name"], row["state"]) == ("b2", "serves, 1 of 1 free")
    assert board.shell("ls /etc/rpcsys").split()[-1] == "b2.flags"
    # Once more is the same again, with other flags if there are any.
    bench.run(*bench.adding(board, "--", "--slots", "2", name="b2"))
    wait_free(bench.tracker, KEY, 2, START_S)
    board.stop()
    (row,) = bench.listed()
    assert row["installed"] == "unreachable"
    assert "refuses ssh" in bench.run("remove", "b2", status=1)
    assert bench.run("remove", "b2", "--forget") == "b2 is forgotten\n"


def test_complaints(bench: Bench) -> None:
    """One line for each, before anything is on the board."""
    board = bench.board(PI + "\nrm -f /usr/bin/sudo")
    before = left(board)
    add = bench.adding(board)

    def changed(place: str, word: str) -> list[str]:
        words = list(add)
        words[words.index(place) + 1] = word
        return words

    stranger = bench.adding(board, known=False)
    assert "host key of 127.0.0.1 is unknown: type: ssh -p" in bench.run(*stranger, status=1)
    (board.folder / "nobody").write_text(
        f"[127.0.0.1]:{board.port} {(board.folder / 'user.pub').read_text()}"
    )
    assert "is not the one it had" in bench.run(*stranger, status=1)
    assert "permission denied" in bench.run(*bench.adding(board, user="nobody2"), status=1)
    assert "refuses ssh" in bench.run(*changed("-p", str(free_port())), status=1)
    assert "no host called no-such-host.invalid" in bench.run(
        *["root@no-such-host.invalid" if word == "root@127.0.0.1" else word for word in add], status=1
    )
    assert "'-oProxyCommand=x' is no board" in bench.run(
        "add", "--key", "k", "--tracker", bench.tracker.where, "--", "-oProxyCommand=x", status=2
    )
    nowhere = f"127.0.0.1:{free_port()}"
    assert "127.0.0.1" in bench.run(*changed("--tracker", nowhere), status=1)
    assert "is no name for a server" in bench.run(*changed("--name", "a/b"), status=2)
    assert "has no python4" in bench.run(*add[:2], "--python", "python4", *add[2:], status=1)
    assert "may not install on 127.0.0.1" in bench.run(*bench.adding(board, user="pi"), status=1)
    assert "unrecognized arguments: --no-such-flag" in bench.run(*add, "--no-such-flag", status=2)
    assert "cannot read nowhere" in bench.run(*changed("--archive", "nowhere"), status=2)
    assert "this desk keeps no board called b1" in bench.run("upgrade", "b1", status=2)
    assert "which board?" in bench.run("upgrade", status=2)
    assert left(board) == before
    assert bench.listed() == []


def test_a_tracker_that_only_the_desk_reaches(bench: Bench) -> None:
    # The board's Python has no way to the tracker: it stands for another network.
    board = bench.board(
        programs={
            "python3": '#!/bin/sh\ncase "$*" in *create_connection*) echo "timed out" >&2; exit 1;; esac\nexec /usr/bin/python3 "$@"\n'
        }
    )
    said = bench.run(*bench.adding(board), status=1)
    assert f"cannot reach the tracker or proxy at {bench.tracker.where} (timed out)" in said
    assert "rpcsys" not in board.shell("ls /opt /tmp")


def test_a_name_in_use(bench: Bench, daemons: Daemons) -> None:
    board = bench.board()
    daemons.server(KEY, "--name", "b1", tracker=bench.tracker)
    said = bench.run(*bench.adding(board), status=1)
    assert "the tracker has a server called b1 already" in said
    bench.run(*bench.adding(board, name="b2"))
    wait_free(bench.tracker, KEY, 2, START_S)
    other = bench.board()
    assert "this desk keeps a board called b2 already" in bench.run(*bench.adding(other, name="b2"), status=2)


OLD_PYTHON = "#!/bin/sh\necho '3.6 64 glibc-2.27'\n"


@pytest.mark.parametrize(
    ("prepare", "programs", "size", "says"),
    [
        ("rm /usr/bin/python3*", {}, {}, "has no python3: install Python 3.8"),
        ("rm /usr/bin/python3*", {"python3": OLD_PYTHON}, {}, "too old (python3 is 3.6)"),
        (
            "",
            {"uname": "#!/bin/sh\n[ $1 = -m ] && echo mips || exec /bin/uname $1\n"},
            {},
            "127.0.0.1 is mips",
        ),
        ("", {}, {"disk": "1m"}, "has no space: "),
        ("mount -t tmpfs -o size=200k little /tmp; rm -rf /var/tmp", {}, {}, "has no space: "),
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
    prepare: str, programs: dict[str, str], size: dict[str, str], says: str, bench: Bench
) -> None:
    board = bench.board(prepare, programs, **size)
    assert says in bench.run(*packing(bench.adding(board)), status=1)
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    assert bench.listed() == []


def test_an_older_python_beside_is_taken(bench: Bench) -> None:
    board = bench.board(
        "mv /usr/bin/python3.11 /usr/bin/python3.9; rm /usr/bin/python3", {"python3": OLD_PYTHON}
    )
    bench.run(*bench.adding(board))
    assert board.shell("cat /etc/rpcsys/environment").endswith("RPCSYS_PYTHON='python3.9'\n")
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    assert "is installed: b1" in board.shell("sh /opt/rpcsys/current/install.sh")  # it remembers which
    bench.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def test_where_nothing_in_tmp_may_be_executed(bench: Bench) -> None:
    board = bench.board("mount -o remount,noexec /tmp; mkdir /var/elsewhere")
    words = bench.adding(board)
    assert "cannot serve: folder /tmp is mounted noexec" in bench.run(*words, status=1)
    board.shell("mkdir /etc/rpcsys; echo TMPDIR=/var/elsewhere >/etc/rpcsys/environment")
    bench.run(*words)
    with bench.lease() as session:
        session.upload(b"x", "notes.txt")
        assert "notes.txt" in board.shell("find /var/elsewhere")


def test_in_a_folder_of_ones_own_without_root(bench: Bench) -> None:
    board = bench.board(PI)
    bench.run(*bench.adding(board, "--root", "/home/pi", user="pi"))
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    (row,) = bench.listed()
    assert row["installed"] == row["version"]
    bench.run("remove", "b1")
    assert board.shell("find /home/pi ! -type d -name '*rpcsys*'") == ""
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


SUDO = PI + '\necho "pi:raspberry" | chpasswd\necho "pi ALL=(ALL) {}ALL" >/etc/sudoers.d/pi'


def test_with_sudo(bench: Bench) -> None:
    board = bench.board(SUDO.format("NOPASSWD: "))
    bench.run(*bench.adding(board, user="pi"))
    assert "b1.flags" in board.shell("ls /etc/rpcsys")
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1
    bench.run("remove", "b1")
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")


def typing(bench: Bench, words: list[str], answer: str) -> tuple[int, str]:
    """Run a command at a terminal and type ``answer`` once it asks; its status and what the terminal shows."""
    pid, terminal = os.forkpty()
    if not pid:
        os.execve(sys.executable, [sys.executable, "-m", "rpcsys", "board", *words], bench.environment)
    shown, answered = b"", False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # the other end of a terminal is gone
            break
        if not data:
            break
        shown += data
        if b"Password for sudo" in shown and not answered:
            answered = True
            time.sleep(0.2)  # echo is turned off behind the question
            os.write(terminal, answer.encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_with_sudo_that_asks(bench: Bench) -> None:
    board = bench.board(SUDO.format(""))
    words = bench.adding(board, user="pi")
    assert "sudo on 127.0.0.1 asks for a password: type this at a terminal" in bench.run(*words, status=1)
    status, shown = typing(bench, words, "strawberry")
    assert status == 1
    assert "does not take this password" in shown
    assert "rpcsys" not in board.shell("ls /opt /tmp /etc")
    status, shown = typing(bench, words, "raspberry")
    assert status == 0, shown
    assert "raspberry" not in shown
    wait_free(bench.tracker, KEY, 1, START_S)


def test_flags_that_only_the_board_can_judge(bench: Bench) -> None:
    """The server does not come up, and people are told what it said."""
    board = bench.board()
    said = bench.run(*bench.adding(board, "--wait", "3", "--", "--load-library", "/no/such.so"), status=1)
    assert "is installed and not in the tracker" in said
    assert "no/such.so" in said or "starts again" in said
    bench.run(*bench.adding(board))
    wait_free(bench.tracker, KEY, 1, START_S)


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
    moment: str, later_s: float, how: signal.Signals, bench: Bench, newer: Path
) -> None:
    """The board has the old or the new version, nothing of the attempt, and takes the next."""
    board = bench.board()
    bench.run(*bench.adding(board))
    versions = {version_of(board), read(newer).name}
    words = ["upgrade", "b1", "--archive", str(newer)]
    with bench.start(*words, start_new_session=True) as process:
        assert process.stderr is not None
        assert any(moment in line for line in process.stderr)
        time.sleep(later_s)  # wherever that is: all moments have to be good ones
        os.killpg(process.pid, how)
        assert process.wait(START_S) == (130 if how == signal.SIGINT else -how)
    wait_until(lambda: "install.sh" not in board.shell("ps ax -o args"), START_S, "it is over")
    wait_until(
        lambda: not board.shell("ls -d /tmp/rpcsys.* 2>/dev/null; :"), START_S, "nothing is left in /tmp"
    )
    assert version_of(board) in versions
    wait_free(bench.tracker, KEY, 1, START_S)
    bench.run(*words)
    assert version_of(board) == read(newer).name
    with bench.lease() as session:
        assert session.get_function("testing.echo")(1) == 1


def test_a_board_that_stops_answering(bench: Bench) -> None:
    board = bench.board()
    bench.run(*bench.adding(board))
    listener = board.processes()[0].pid
    os.kill(listener, signal.SIGSTOP)
    try:
        started = time.monotonic()
        (row,) = bench.listed()
        assert row["installed"] == "unreachable"
        assert row["state"] == "serves, 1 of 1 free"
        assert time.monotonic() - started < 60
    finally:
        os.kill(listener, signal.SIGCONT)
