"""Sessions that abuse a board's resources: two seconds after their end the board is clean and offered."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.errors import SessionLost
from rpcsys.server.sandbox import mount_namespace
from tests.live.daemons import alive, queue, wait_until
from tests.live.fault_lab import KEY, FaultLab

CLEAN_S = 2.0  # the documented limit
SLOTS = 2
MEMORY = "256M"
WHY_SHARED = mount_namespace.probe("/tmp/rpcsys-probe")
apart = pytest.mark.skipif(bool(WHY_SHARED), reason=f"no namespaces here: {WHY_SHARED}")


class LimitedLab(FaultLab):
    """A lab with a memory limit for sessions, and with the functions of `tests.live.resource_abuse`."""

    more: tuple[str, ...] = ()
    folder: Path | None = None

    def server_flags(self, slots: int) -> tuple[str, ...]:
        return (
            *super().server_flags(slots),
            *("--import", "tests.live.resource_abuse", "--session-memory", MEMORY),
            *self.more,
        )

    def start_in(self, folder: Path, *more: str, slots: int = SLOTS) -> LimitedLab:
        """Start both, with sessions' directories below ``folder``."""
        self.folder, self.more = folder, more
        self.tracker = self.daemons.tracker()
        self.server = self.daemons.server(
            KEY, *self.server_flags(slots), tracker=self.tracker, offers=slots, env={"TMPDIR": str(folder)}
        )
        return self


@pytest.fixture
def lab(daemons, artefacts, tmp_path) -> Iterator[LimitedLab]:
    made = LimitedLab(daemons, artefacts, "rpcsys")
    (tmp_path / "sessions").mkdir()
    yield made
    made.stop()


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 96 MB; without the right to mount, an ordinary folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96M,nr_inodes=2000", "tmpfs", str(folder)], capture_output=True
    ).returncode
    yield folder
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Board:
    """The state of a board between two sessions."""

    def __init__(self, lab: LimitedLab) -> None:
        self._lab = lab
        self.before = self._look()

    def is_clean(self, since: float, record=None) -> None:
        """Check that within ``CLEAN_S`` of ``since`` every slot is free and the state is as before."""
        wait_until(lambda: queue(self._lab.tracker, KEY)["free"] == SLOTS, CLEAN_S, "every slot is free", 0.01)
        took = time.monotonic() - since
        assert self._look() == self.before
        if record:
            record("clean again after", f"{took:.2f} s")
        assert took <= CLEAN_S

    def _look(self) -> dict[str, object]:
        server = psutil.Process(self._lab.server.pid)
        wait_until(
            lambda: len(self._lab.server.tree(inits=False)) == SLOTS + 2, CLEAN_S, "a child waits for every slot"
        )
        return {
            "processes": len(self._lab.server.tree(inits=False)),
            # Directories for future sessions have new names.
            "files": sorted(str(path) for path in self._lab.folder.rglob("*") if "/ready-" not in str(path)),
            # Another test may plant files at the same time (test_invariant.py).
            "shm": [] if WHY_SHARED else sorted(one for one in os.listdir("/dev/shm") if "planted-" not in one),
            "ports": len([c for c in server.net_connections("inet") if c.status == psutil.CONN_LISTEN]),
        }


def log_of_last_session(lab: LimitedLab) -> str:
    return [line for line in lab.server.stderr().splitlines() if " ended after " in line][-1]


ABUSES = [("spawn", []), ("daemonise", []), ("spawn_many", [8]), ("listen", []), ("share", []), ("write_tmp", [])]


@pytest.mark.parametrize("ending", ["close", "kill"])
@pytest.mark.parametrize(("abuse", "arguments"), ABUSES, ids=[name for name, _ in ABUSES])
def test_an_abusive_session_leaves_nothing(lab, tmp_path, abuse, arguments, ending, record_property):
    if abuse in ("share", "write_tmp") and WHY_SHARED:
        pytest.skip(f"no namespaces here: {WHY_SHARED}")
    lab.start_in(tmp_path / "sessions")
    board = Board(lab)
    client = lab.client().leased()
    answer = client.call(abuse, *arguments)["value"]
    processes = psutil.Process(client.session_pid).children(recursive=True)
    began = time.monotonic()
    getattr(client, ending)()
    board.is_clean(began, record_property)
    assert not any(alive(process.pid) for process in processes)
    if abuse == "listen":
        for port in answer:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=5)
    if abuse == "write_tmp":
        assert not os.path.exists(answer)
    if abuse in ("spawn_many", "listen"):
        assert "had to be killed: python" in log_of_last_session(lab)
    if abuse == "share" and ending == "close":
        assert "/dev/shm/left-by-a-session" in log_of_last_session(lab)
        assert "System V semaphores" in log_of_last_session(lab)


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_a_session_that_fills_the_disk_leaves_nothing(lab, small_disk, ending, record_property):
    lab.start_in(small_disk)
    board = Board(lab)
    client = lab.client().leased()
    assert client.call("fill", 96)["value"] > 1000
    began = time.monotonic()
    getattr(client, ending)()
    board.is_clean(began, record_property)


@pytest.mark.parametrize("doing", ["spin", "hold_gil"])
def test_a_session_in_an_endless_loop_leaves_nothing(lab, tmp_path, doing, record_property):
    lab.start_in(tmp_path / "sessions")
    board = Board(lab)
    client = lab.client().leased()
    client.send(doing)
    process = psutil.Process(client.session_pid)
    wait_until(lambda: process.cpu_times().user > 0.3, 20, "it loops")
    client.kill()
    board.is_clean(time.monotonic(), record_property)


def test_a_session_that_allocates_without_end_is_ended(lab, tmp_path, record_property):
    lab.start_in(tmp_path / "sessions")
    board = Board(lab)
    other = lab.client().leased()
    client = lab.client().leased()
    answer = client.call("allocate")
    began = time.monotonic()
    assert answer["error"][0] == "MemoryLimit"
    assert "256 MB" in answer["message"]
    assert other.call("pid")["value"] == other.session_pid
    other.close()
    client.kill()
    board.is_clean(began, record_property)
    assert ": memory" in lab.server.stderr()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_refuses_a_session_until_there_is_space(lab, small_disk):
    lab.start_in(small_disk, slots=1)
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (small_disk / f"entry-{number}").mkdir()
    with rpcsys.connect_tracker(lab.tracker.where) as tracker:
        with pytest.raises(SessionLost, match=r"could not start: No space left on device"):
            tracker.request(KEY)
        for entry in small_disk.glob("entry-*"):
            entry.rmdir()
        lab.free(1)
        with tracker.request(KEY) as session:
            assert session.get_function("testing.echo")(1) == 1


def test_a_call_over_the_memory_limit_fails_and_the_session_goes_on(lab, tmp_path):
    lab.start_in(tmp_path / "sessions")
    client = lab.client().leased()
    answer = client.call("allocate_in_python")
    assert "MemoryError: the session's memory limit of 256 MB was hit" in answer["message"]
    assert client.call("pid")["value"] == client.session_pid
    client.close()


def test_a_tvm_session_that_allocates_without_end_is_ended(daemons, artefacts, tmp_path):
    lab = LimitedLab(daemons, artefacts, "tvm")
    (tmp_path / "sessions").mkdir(exist_ok=True)
    try:
        lab.start_in(tmp_path / "sessions", slots=1)
        client = lab.client().leased()
        answer = client.call("allocate")
        assert "the session's memory limit of 256 MB was hit" in answer["message"]
        lab.free(1)
        assert "ended after" in log_of_last_session(lab)
        assert ": memory" in log_of_last_session(lab)
    finally:
        lab.stop()


@apart
def test_sessions_do_not_see_each_other(lab, tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    more = ("--cpus", f"{cpus[0]},{cpus[1]}") if len(cpus) > 1 else ()
    lab.start_in(tmp_path / "sessions", *more)
    one, two = lab.client().leased(), lab.client().leased()
    for name in ("share", "write_tmp"):
        one.call(name)
    seen = two.call("seen")["value"]
    assert (seen["shm"], seen["system_v"], seen["tmp"]) == ([], [0, 0, 0], [])
    assert {*seen["homes"]} <= {os.path.basename(os.path.dirname(two.workdir))}
    if more:
        both = [client.call("seen")["value"]["cpus"] for client in (one, two)]
        assert sorted(both) == [[cpus[0]], [cpus[1]]]
    for client in (one, two):
        client.close()


def test_without_namespaces_left_shared_memory_is_removed(lab, tmp_path):
    """The server removes the files and IPC objects that the session has left."""
    if WHY_SHARED:
        pytest.skip(f"no namespaces here: {WHY_SHARED}")
    lab.start_in(tmp_path / "sessions", "--no-isolation")
    client = lab.client().leased()
    client.call("share")
    client.close()
    lab.free(SLOTS)
    last = log_of_last_session(lab)
    assert "/dev/shm/left-by-a-session" in last
    assert not os.path.exists("/dev/shm/left-by-a-session")
    assert "System V shared memory" in last


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that nobody can remove")
def test_a_board_that_cannot_be_cleaned_is_not_offered(lab, tmp_path):
    lab.start_in(tmp_path / "sessions")
    client = lab.client().leased()
    kept = os.path.join(client.workdir, "kept")
    Path(kept).touch()
    if subprocess.run(["chattr", "+i", kept], capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        client.close()
        wait_until(lambda: queue(lab.tracker, KEY)["free"] == 0, 10, "nothing is offered")
        wait_until(lambda: "is not offered any more" in lab.server.stderr(), 10, "it is logged")
        (line,) = [line for line in lab.server.stderr().splitlines() if "is not offered any more" in line]
        assert "Operation not permitted" in line or "not empty" in line
        time.sleep(1)  # it registers again and still offers nothing
        assert queue(lab.tracker, KEY)["free"] == 0
    finally:
        # The server has moved the file; an immutable file would stay after the test run.
        subprocess.run(["chattr", "-R", "-i", tmp_path / "sessions"], check=True)
        lab.server.destroy()  # it cannot remove the folder
