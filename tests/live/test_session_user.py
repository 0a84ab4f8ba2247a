"""A server with --session-user: sessions and model hosts of other users than its own, and what they share."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import rpcsys
import rpcsys.lab
from rpcsys.client.deploying import Deployment
from rpcsys.errors import RemoteError
from rpcsys.link import credential
from rpcsys.server.sandbox import mount_namespace
from rpcsys.server.sandbox.session_user import BLOCK, BLOCKS, FIRST, MODELS
from tests.live import deployed
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, alive, wait_until
from tests.live.fault_lab import FaultLab
from tests.live.probe import KEEPERS
from tests.live.test_clean_board import ENDINGS, LIMIT_S, TIMED_OUT, used_board
from tests.live.test_security import python

WHY_SHARED = mount_namespace.probe("/tmp/rpcsys-probe")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(bool(WHY_SHARED), reason=f"no namespaces here: {WHY_SHARED}"),
]

AUTO = ("--session-user", "auto")
SLOTS = range(FIRST, FIRST + BLOCK * BLOCKS)
BARE = ("--slots", "2", "--preload", "none", "--tvm", "off", "--import", "tests.live.user_functions")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users may enter, and that no session's own mounts hide."""
    with tempfile.TemporaryDirectory(prefix="rpcsys-test-", dir="/var/lib") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture
def serve(place: Path) -> Iterator[Callable[..., Daemon]]:
    """Starts servers with a Python that every user may read, as --no-isolation wants."""
    daemons = Daemons(place)

    def start(*flags: str) -> Daemon:
        command = [python(), "-m", "rpcsys.server", "--host", "127.0.0.1", "--port", "0", "--key", "k", *BARE, *flags]
        server = daemons.launch("server", command, env={"HOME": "/root"})
        server.await_ready_line()
        return server

    yield start
    daemons.stop()


def connect(server: Daemon) -> rpcsys.Session:
    return rpcsys.connect(*server.address, key="k")


def call(session: rpcsys.Session, name: str):
    return session.get_function("user." + name)()


def users(server: Daemon) -> set[int]:
    """The users of a server's processes, but for inits."""
    found = set()
    for pid in server.tree(inits=False):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found.add(psutil.Process(pid).uids().real)
    return found


@pytest.mark.parametrize(
    "flags", [(), ("--no-fork",), ("--no-isolation",), ("--read-only",), ("--cpus", "0,1")], ids=str
)
def test_each_slot_has_a_user_of_its_own(serve: Callable[..., Daemon], flags: tuple[str, ...]):
    cpus = ("--cpus", "0,1") if os.sched_getaffinity(0) >= {0, 1} else ()
    server = serve(*AUTO, "--session-memory", "300M", *cpus, *flags)
    with connect(server) as one, connect(server) as other:
        found = [call(session, "about") for session in (one, other)]
        assert users(server) == {0, *(about["ids"][0] for about in found)}
    uids = [about["ids"][0] for about in found]
    assert uids[1] == uids[0] + 1
    for uid, about in zip(uids, found, strict=True):
        assert uid in SLOTS
        assert about["ids"] == [uid] * 6
        assert about["owners"] == [uid] * 4
        assert (about["files"], about["descriptors"], about["printed"]) == ([], True, 0)
        assert about["dies_with_parent"] == (signal.SIGKILL if "--no-isolation" in flags else 0)
    with connect(server) as again:
        about = call(again, "about")
        assert about["ids"][0] in uids
        assert set(about["owners"]) == {about["ids"][0]}


@pytest.mark.parametrize("flag", ["", "--no-fork", "--no-isolation"])
def test_the_next_session_of_a_slot_finds_nothing(serve: Callable[..., Daemon], flag: str):
    server = serve(*AUTO, "--slots", "1", *([flag] if flag else []))
    for _ in range(2):
        with connect(server) as session:
            uid = call(session, "about")["ids"][0]
            assert call(session, "left") == []
            call(session, "leave")
        with connect(server) as session:
            assert call(session, "about")["ids"][0] == uid
            assert call(session, "left") == []
    ended = [line for line in server.stderr().splitlines() if "had to be removed" in line]
    removed = "/tmp/left-" if flag == "--no-isolation" else "/run/lock/left-"
    assert not os.path.isdir(os.path.dirname(removed)) or any(removed in line for line in ended)
    assert "not clean" not in server.stderr()
    wait_until(lambda: users(server) == {0}, START_S, "no process of a session is left")


def test_directories_go_from_slot_to_slot(serve: Callable[..., Daemon]):
    server = serve(*AUTO)
    for _ in range(3):
        with connect(server) as one, connect(server) as other:
            for session in (one, other):
                about = call(session, "about")
                assert set(about["owners"]) == {about["ids"][0]}
        one, other = connect(server), connect(server)
        one.close()
        other.close()


def test_a_killed_zygote_takes_its_sessions_along(serve: Callable[..., Daemon]):
    server = serve(*AUTO, "--no-isolation")
    session = connect(server)
    pid = session.info["pid"]
    left = call(session, "leave")
    psutil.Process(psutil.Process(pid).ppid()).kill()
    wait_until(lambda: not alive(pid) and not alive(left), START_S, "they end")
    session.close()
    with connect(server) as session:
        assert call(session, "left") == []


@pytest.mark.parametrize("flag", ["", "--no-isolation"])
def test_a_killed_server_leaves_nothing(serve: Callable[..., Daemon], place: Path, flag: str):
    server = serve(*AUTO, *([flag] if flag else []))
    session = connect(server)
    pid = session.info["pid"]
    call(session, "about")
    server.kill()
    wait_until(lambda: not alive(pid), START_S, "its session ends")
    wait_until(lambda: not list(place.glob("rpcsys-server-*")), START_S, "its folder is removed")
    session.close()


def test_two_servers_share_no_user(serve: Callable[..., Daemon]):
    with connect(serve(*AUTO)) as one, connect(serve(*AUTO)) as other:
        first, second = (call(session, "about")["ids"][0] for session in (one, other))
    assert abs(first - second) >= BLOCK


def test_one_user_for_all_sessions(serve: Callable[..., Daemon]):
    server = serve("--session-user", "nobody", "--session-groups", "daemon")
    with connect(server) as one, connect(server) as other:
        found = [call(session, "about") for session in (one, other)]
    assert [about["ids"][0] for about in found] == [65534, 65534]
    assert all(1 in about["groups"] for about in found)


def test_a_file_of_the_cache_is_sent_once_for_all_users(serve: Callable[..., Daemon], place: Path):
    (place / "model").write_bytes(os.urandom(100_000))
    server = serve(*AUTO, "--cache", str(place / "cache"))
    with connect(server) as one, connect(server) as other:
        one.upload(place / "model")
        (stored,) = place.glob("cache/objects/*")
        stored.chmod(0o660)
        before = stored.stat().st_mtime_ns
        os.utime(stored, ns=(0, 0))
        other.upload(place / "model")
        assert stored.stat().st_mtime_ns >= before - 10**9  # its use was noted
        assert other.download("model") == (place / "model").read_bytes()
    assert len(list(place.glob("cache/*/*"))) == 1


@pytest.mark.parametrize("ending", ["closed", "session crashed"])
def test_sessions_of_each_kind_leave_a_clean_board(fault_lab: FaultLab, ending: str):
    board = used_board(fault_lab.start(2, "ours", *AUTO))
    assert psutil.Process(board.client.session_pid).uids().real in SLOTS
    ENDINGS[ending](board.client)
    board.is_clean()


def test_a_client_of_each_kind_is_told_of_its_limit(fault_lab: FaultLab):
    board = used_board(fault_lab.start(2, "ours", *AUTO), LIMIT_S)
    answer = board.client.call("nap", deadline_s=LIMIT_S + START_S)
    assert TIMED_OUT[fault_lab.kind] in answer["error"]
    board.is_clean()


@pytest.mark.parametrize("flavour", ["ours", "ctypes"])
def test_tvms_client_is_served(daemons: Daemons, tmp_path: Path, flavour: str):
    rpc = pytest.importorskip("tvm.rpc")
    (tmp_path / "file").write_bytes(b"content")
    server = daemons.server("k", *AUTO, flavour=flavour)
    session = rpc.connect(*server.address, key="k")
    session.upload(str(tmp_path / "file"))
    assert session.download("file") == b"content"
    assert any(uid in SLOTS for uid in users(server))
    del session


def test_a_deployed_version_has_a_user_of_its_own(daemons: Daemons, tmp_path: Path):
    flags = (*AUTO, *deployed.WITH_NUMPY, "--deploy", str(tmp_path / "deploy"), "--slots", "2")
    server = daemons.server("k", *flags)
    host, port = server.address

    def served(name: str) -> int:
        with rpcsys.connect(host, port, serve=name) as client:
            assert (client(np.ones(3, "float32")) == 2).all()
            return psutil.Process(client["pid"]()).uids().real

    with Deployment((host, port)) as deployment:
        for name in ("one", "two"):
            deployment.put(deployed.library(tmp_path / f"{name}.so", 2.0))
    one, two = served("one"), served("two")
    assert one in MODELS
    assert two in MODELS
    assert one != two
    folders = {folder.stat().st_gid: folder for folder in tmp_path.glob("deploy/*/0001-*")}
    assert set(folders) == {one, two}
    with rpcsys.connect(host, port, key="k") as session:
        for folder in folders.values():
            with pytest.raises(RemoteError, match="Permission denied"):
                session.run(os.listdir, str(folder))
    with Deployment((host, port)) as deployment:
        deployment.put(deployed.library(tmp_path / "one.so", 2.0))
    assert served("two") == two
    server.terminate()
    daemons.server("k", *flags, port=port)
    assert served("two") == two


def tokens_here() -> tuple[int, list[bytes]]:
    """The user of this process, and the beginnings of all tokens in its memory."""
    found = []
    with open("/proc/self/maps") as lines, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in lines:
            bounds, rights = line.split()[:2]
            if rights.startswith("rw") and "[v" not in line:
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                memory.seek(start)
                found += re.findall(rb"rpcsys_[bp]_[A-Za-z0-9]{8}_", memory.read(end - start) or b"")
    return os.getuid(), found


def test_in_a_closed_lab_no_session_has_a_token_in_its_memory():
    with rpcsys.lab.Lab({"edge": 1}, secure=True, server_args=["--allow-pickle"]) as lab:
        KEEPERS[lab.tracker_address[1]] = credential.read(lab.environment["RPCSYS_LAB"]).token
        with lab.connect() as tracker, tracker.request("edge", wait_timeout=START_S) as session:
            uid, found = session.run(tokens_here)
    assert uid in SLOTS
    assert found == []
    assert tokens_here()[1] != []  # this process is a member: what is searched for can be found


def test_without_root_sessions_have_the_servers_user(daemons: Daemons):
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, 65534, 65534)
        flags = ["-m", "rpcsys.server", "--host", "127.0.0.1", "--port", "0", "--key", "k", *BARE, *AUTO]
        server = daemons.launch("nobody", [*become, *flags], env={"TMPDIR": folder, "HOME": folder})
        server.await_ready_line()
        assert server.stderr().count("--session-user auto needs root: sessions run as this server's user") == 1
        with connect(server) as session:
            assert call(session, "about")["ids"][0] == 65534
        server.terminate()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--session-user", "no-such"), "--session-user no-such: there is no such user here"),
        (("--session-user", "root"), "a session of root reaches all of its server"),
        ((*AUTO, "--session-groups", "no-such"), "--session-groups no-such: there is no such group here"),
        (("--session-groups", "video"), "--session-groups are of the users that --session-user gives"),
        ((*AUTO, "--no-isolation", "--load-library", "CLOSED"), "closed to them); --session-user none does without"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, flags: tuple[str, ...], words: str):
    (tmp_path / "lib.so").touch()
    tmp_path.chmod(0o700)
    flags = tuple(str(tmp_path / "lib.so") if flag == "CLOSED" else flag for flag in flags)
    refused([sys.executable], flags, words)


def test_another_user_needs_root():
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python()]
    refused(become, ("--session-user", "nobody"), "--session-user nobody needs root")


def test_rights_that_are_missing_are_named():
    without = [shutil.which("setpriv") or "setpriv", "--bounding-set", "-setuid", sys.executable]
    refused(without, AUTO, "sessions cannot have users of their own here (Operation not permitted)")


def refused(python: list[str], flags: tuple[str, ...], words: str) -> None:
    command = [*python, "-m", "rpcsys.server", "--host", "127.0.0.1", "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
