"""The invariant finds each kind of object that a test may leave; the tests here plant them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rpcsys
from rpcsys.lab import Lab
from rpcsys.server.sandbox.processes import LIBC
from tests.live import invariant
from tests.live.daemons import ROOT, Daemon, Daemons, wait_until
from tests.live.probe import REQUEST, TrackerProbe

KEY = "board"
FLAGS = ("--preload", "none", "--import", "tests.live.session_faults")
FOUND_S = 60.0


def found_at(*daemons: Daemon) -> list[str]:
    return [*invariant.running.left(daemon.pid for daemon in daemons)]


def clean(*daemons: Daemon) -> bool:
    return not invariant.settled(lambda: found_at(*daemons))


def is_found(pattern: str, *daemons: Daemon) -> bool:
    """Wait until ``pattern`` is found: some objects appear after a moment."""
    return wait_until(
        lambda: any(re.search(pattern, what) for what in found_at(*daemons)), FOUND_S, f"{pattern!r} is found"
    )


@pytest.fixture
def tracker(daemons: Daemons) -> Daemon:
    return daemons.tracker()


@pytest.fixture
def server(daemons: Daemons, tracker: Daemon) -> Daemon:
    return daemons.server(KEY, *FLAGS, tracker=tracker)


def test_idle_daemons_have_nothing_left_after_sessions(tracker: Daemon, server: Daemon):
    assert clean(tracker, server)
    for _ in range(3):
        with rpcsys.connect_tracker(tracker.where) as client, client.request(KEY) as session:
            session.upload(__file__)
    assert clean(tracker, server)


def test_a_running_session_is_found(tracker: Daemon, server: Daemon):
    with rpcsys.connect_tracker(tracker.where) as client, client.request(KEY) as session:
        session.get_function("fault.spawn")()
        assert is_found(r"lease \S+ of \S+ at \S+", tracker)
        assert is_found("descriptors: {'socket': 1} more", tracker)
        assert is_found("the folder session-1", server)
        assert is_found(r"process \d+ .* below one that waits", server)
        assert is_found("at the server .* descriptors: {.*} more", server)
    assert clean(tracker, server)


def test_a_waiting_request_is_found(tracker: Daemon):
    with TrackerProbe(tracker.address) as probe:
        probe.send([REQUEST, "nothing", "", 1])
        assert is_found("1 requests for 'nothing'", tracker)
    assert clean(tracker)


@pytest.mark.parametrize("kind", ["tracker", "server", "proxy"])
def test_a_silent_connection_is_found(daemons: Daemons, kind: str):
    daemon = {"tracker": daemons.tracker, "proxy": daemons.proxy}.get(kind, lambda: daemons.server(KEY))()
    with socket.create_connection(daemon.address):
        assert is_found("descriptors: {'socket': 1} more", daemon)
    assert clean(daemon)


def test_links_between_daemons_do_not_count(daemons: Daemons):
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    server = daemons.behind(proxy, KEY, *FLAGS, flavour="ours")
    server.await_ready_line()
    assert clean(tracker, proxy, server)
    with rpcsys.connect_tracker(tracker.where) as client, client.request(KEY, wait_timeout=60) as session:
        session.upload(__file__)
    assert clean(tracker, proxy, server)


def test_an_object_left_in_a_lab_fails_its_close(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(invariant, "SETTLE_S", 1.0)
    with Lab({KEY: 1}) as lab, lab.connect() as client, client.request(KEY) as session:
        session.upload(__file__)
    lab = Lab({KEY: 1}).start()
    client = lab.connect()
    session = client.request(KEY)
    with pytest.raises(AssertionError, match=r"left behind in a lab: at the tracker .*: lease .*at the server"):
        lab.close()
    assert not lab.daemons
    client.close()
    session.close()


def test_an_extra_process_is_found(daemons: Daemons):
    folder = daemons.folder
    (folder / "planted.py").write_text("import os, time\nif os.fork() == 0:\n    time.sleep(600)\n")
    server = daemons.server(KEY, "--preload", "none", "--import", "planted", env={"PYTHONPATH": f"{folder}:{ROOT}"})
    assert is_found("2 processes where 1 slots and 0 modules need one each", server)
    server.destroy()  # the process is left on purpose


def test_a_left_folder_is_found(server: Daemon):
    (folder,) = invariant.running.watched[server.pid].folders()
    (folder / "session-77").mkdir()
    assert is_found("the folder session-77", server)
    (folder / "session-77").rmdir()


def test_a_descriptor_of_the_zygote_is_found(server: Daemon):
    invariant.running.watched[server.pid].zygote_idle["socket"] -= 1
    assert is_found("the zygote's descriptors: {'socket': 1}", server)
    invariant.running.idle(server.pid)


def test_a_stopped_daemon_is_not_checked(tracker: Daemon):
    probe = TrackerProbe(tracker.address)
    tracker.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not found_at(tracker), FOUND_S, "it is not checked")
    tracker.process.send_signal(signal.SIGCONT)
    assert is_found("descriptors", tracker)
    probe.close()


def test_a_killed_daemon_is_not_taken_for_a_later_one_with_its_pid(tracker: Daemon, daemons: Daemons):
    later = daemons.tracker()
    tracker.kill()
    tracker.process.pid = later.pid  # the kernel gives a PID again after some ten thousands of processes
    daemons.stop()
    assert later.process.returncode == 0


def test_a_folder_of_an_ended_server_is_found(daemons: Daemons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = daemons.server(KEY, *FLAGS)
    planted = tmp_path / f"rpcsys-server-{server.pid}-planted"
    planted.mkdir()
    monkeypatch.setattr(invariant, "END_S", 1.0)
    with pytest.raises(AssertionError, match=f"{planted} of an ended"):
        daemons.stop()
    assert [*invariant._of_ended([], [os.getpid()])] == [f"process {os.getpid()} of an ended server"]


@pytest.mark.slow
def test_a_daemon_that_ends_with_an_error_is_found(daemons: Daemons):
    says = 'import os, time; print(f\'{{"ready": "proxy", "port": null, "pid": {os.getpid()}}}\', flush=True)'
    daemons.launch("odd", [sys.executable, "-c", f"{says}; time.sleep(600)"]).await_ready_line()
    with pytest.raises(AssertionError, match="ended with status -15"):
        daemons.stop()


NEW_IPC = 0x0800_0000  # CLONE_NEWIPC
LEAVES = """
import ctypes
libc = ctypes.CDLL(None)
print(libc.shmget(0, 4096, 0o600), libc.semget(0, 1, 0o600), libc.msgget(0, 0o600))
"""


def test_left_shared_memory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Apart from this machine's: servers without namespaces, of tests beside this one, remove what is new there."""
    monkeypatch.setattr(invariant, "SHM", tmp_path)
    left = tmp_path / "planted"
    with left.open("w") as file:
        assert str(left) not in invariant.shared_memory()  # it is in use
        file.write("here")
    with ThreadPoolExecutor(1, initializer=LIBC.unshare, initargs=(NEW_IPC,)) as apart:  # a thread; root alone may
        leave = [sys.executable, "-c", LEAVES]
        made = apart.submit(subprocess.check_output, leave, text=True).result().split()
        try:
            names = {f"System V {kind} {number}" for kind, number in zip(("shm", "sem", "msg"), made, strict=True)}
            assert {str(left), *names} <= apart.submit(invariant.shared_memory).result()
        finally:
            apart.submit(subprocess.check_call, ["ipcrm", "-m", made[0], "-s", made[1], "-q", made[2]]).result()


TESTS = """
import pytest
from pathlib import Path
from tests.live import invariant
from tests.live.probe import REQUEST, TrackerProbe

invariant.SETTLE_S = 1.0
KEPT = []
FILE = Path("/dev/shm/planted-by-a-test-of-the-invariant")

@pytest.fixture(scope="module")
def common(module_daemons):
    return module_daemons().tracker()

def ask(tracker):
    KEPT.append(TrackerProbe(tracker.address))
    KEPT[-1].send([REQUEST, "nothing", "", 1])

def test_leaves_nothing(common, daemons): TrackerProbe(daemons.tracker().address).close()
def test_leaves_at_common(common): ask(common)
def test_goes_on(common): pass
def test_leaves_at_its_own(daemons): ask(daemons.tracker())
def test_leaves_shared_memory(): FILE.write_text("here")
def test_removes_it(): FILE.unlink()
def test_fails(daemons): ask(daemons.tracker()), pytest.fail()
def test_after_it(common): KEPT.clear()
"""


def test_a_test_that_leaves_something_fails(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("from tests.live.conftest import *\n")
    (tmp_path / "test_planted.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, "-c", os.devnull, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^(?:ERROR|FAILED) \S+::test_(\w+)", done.stdout, re.MULTILINE)
    assert sorted(failed) == ["fails", "leaves_at_common", "leaves_at_its_own", "leaves_shared_memory"], done.stdout
