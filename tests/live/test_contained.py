"""Sessions that try to leave their limits: endless forks, other processes, read-only disks, memory, CPUs, cgroups."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rpcsys
from rpcsys.errors import MemoryLimit
from rpcsys.server.sandbox import cgroups, mount_namespace
from tests.live.daemons import ROOT, START_S, Daemon, Daemons, alive, descendants, wait_until
from tests.live.processes import is_init

WHY_SHARED = mount_namespace.probe("/tmp/rpcsys-probe")
WHY_NO_PIDS = mount_namespace.probe("/tmp/rpcsys-probe", own_pids=True)
WHY_NOT_CLOSED = mount_namespace.probe("/tmp/rpcsys-probe", read_only=True)

IMPORTS = ("--import", "tests.live.session_faults", "--import", "tests.live.resource_abuse")
FAULTS = (*IMPORTS, "--preload", "none", "--tvm", "off")


def _why_no_cgroups() -> str:
    """Why cgroups do not enforce a server's limits here; "" if they do."""
    found, why = cgroups.find(["memory", "cpuset"])
    cgroups.finish(found)
    return why or ("" if len(found) == 2 else "memory or cpuset is missing")


WHY_NO_CGROUPS = _why_no_cgroups()
needs_cgroups = pytest.mark.skipif(bool(WHY_NO_CGROUPS), reason=f"no cgroups here: {WHY_NO_CGROUPS}")
own_pids = pytest.mark.skipif(bool(WHY_NO_PIDS), reason=f"no PID namespaces here: {WHY_NO_PIDS}")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path)
    yield made
    made.stop()


def call(session: rpcsys.Session, name: str, *args: object):
    return session.get_function("fault." + name)(*args)


def connect(server: Daemon) -> rpcsys.Session:
    return rpcsys.connect(*server.address, key="k")


def no_process_forks(server: Daemon) -> None:
    """Wait until only the supervisor, its zygote and one waiting child are left, and stay the same."""

    def rests() -> bool:
        before = set(descendants(server.pid))
        time.sleep(0.2)
        return len(server.tree(inits=False)) == 3 and set(descendants(server.pid)) == before

    wait_until(rests, START_S, "no process forks")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["", "--no-fork", "--no-isolation"])
def test_processes_that_fork_and_exit_without_end_end_with_their_session(daemons, flag):
    server = daemons.server("k", *FAULTS, *([flag] if flag else []))
    for _ in range(6):
        with connect(server) as session:
            call(session, "fork_and_exit", 2)
        began = time.monotonic()
        with connect(server) as session:  # the one slot is free again
            assert call(session, "pid")
        assert time.monotonic() - began < START_S
    assert "not clean" not in server.stderr()
    no_process_forks(server)


@pytest.mark.slow
def test_endless_forks_of_another_user_end_with_their_session_without_namespaces(daemons):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user")
    server = as_user(daemons, "nobody", (*FAULTS, "--no-isolation"))
    for _ in range(3):
        with connect(server) as session:
            call(session, "fork_and_exit", 60)
        with connect(server) as session:
            assert call(session, "pid")
    assert "not clean" not in server.stderr()
    no_process_forks(server)


@pytest.mark.slow
def test_a_board_stays_offered_while_its_zygote_is_stopped(daemons):
    server = daemons.server("k", *FAULTS, "--slots", "2")
    zygote = next(child for child in server.children() if len(descendants(child.pid)) >= 2)
    session = connect(server)
    pid = session.info["pid"]
    zygote.suspend()
    try:
        hung = session.get_function("fault.nap").submit()
        session.close()
        wait_until(lambda: not alive(pid), 20, "the supervisor has killed the session")
        time.sleep(8)  # after this time the board would be reported unclean
        assert "not clean" not in server.stderr()
    finally:
        zygote.resume()
    with connect(server) as one, connect(server) as two:
        assert call(one, "pid") != call(two, "pid") or not WHY_NO_PIDS
    del hung


@own_pids
def test_a_session_sees_and_kills_only_its_own_processes(daemons):
    server = daemons.server("k", *FAULTS, "--slots", "2")
    with connect(server) as one, connect(server) as two:
        assert call(one, "kill_all") == [1]
        assert call(one, "pid")
        assert call(two, "pid")
        assert len([pid for pid in descendants(server.pid) if is_init(pid)]) >= 3, "the inits and their parent"
    assert server.running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to lose")
@pytest.mark.parametrize("flag", ["", "--no-fork", "--read-only"])
def test_the_capabilities_of_a_session_of_root(daemons, flag):
    server = daemons.server("k", *FAULTS, *([flag] if flag else []))
    with connect(server) as session:
        status = Path(f"/proc/{session.info['pid']}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    expected = 0x40000064FB | (0 if flag == "--read-only" else 1 << 17 | 1 << 27)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(fields[name], 16) & ~expected == 0, name
    assert (int(fields["CapInh"], 16), int(fields["CapAmb"], 16), fields["NoNewPrivs"]) == (0, 0, "1")


@pytest.mark.skipif(bool(WHY_NOT_CLOSED), reason=f"no mounts of a session's own here: {WHY_NOT_CLOSED}")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("flag", ["", "--no-fork"])
def test_read_only_disks_stay_read_only(daemons, user, flag):
    if os.geteuid() != 0 or (user == "nobody" and not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    folder = Path(os.path.expanduser("~")) / f".rpcsys-closed-{os.getpid()}"
    folder.mkdir()
    try:
        if user == "nobody":
            os.chown(folder, 65534, 65534)
        flags = (*FAULTS, "--read-only", *([flag] if flag else []))
        server = as_user(daemons, user, flags)
        with connect(server) as session:
            ways = call(session, "escape", str(folder))
        assert not list(folder.iterdir())
        assert all(ways.values()), ways
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("how", ["memfd", "child", "thread", "tmpfs", "deleted", "system v", "sockets"])
def test_unmapped_memory_counts_to_the_limit(daemons, user, how):
    if WHY_SHARED and how in ("tmpfs", "deleted"):
        pytest.skip(f"no mounts of a session's own here: {WHY_SHARED}")
    if user == "nobody" and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    server = as_user(daemons, user, (*FAULTS, "--session-memory", "200M"))
    with pytest.raises(MemoryLimit, match="the session's memory limit of 200 MB was hit"):
        with connect(server) as session:
            call(session, "fill_unmapped", how, 2000 if how == "sockets" else 500)
    with connect(server) as session:
        assert call(session, "pid")
    assert ": memory" in server.stderr()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("flag", ["", "--no-isolation"])
def test_polling_sets_a_session_back_to_its_cpus(daemons, user, flag):
    if user == "nobody" and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    cpus = sorted(os.sched_getaffinity(0))
    flags = (*FAULTS, "--cpus", str(cpus[0]), *([flag] if flag else []))
    server = without_cgroups(daemons, flags) if user == "root" else as_user(daemons, user, flags)
    with connect(server) as session:
        process = psutil.Process(session.info["pid"])
        assert process.cpu_affinity() == [cpus[0]]
        # A process without its parent is a child of an init; one more init waits.
        inits = [psutil.Process(pid) for pid in descendants(server.pid) if is_init(pid)]
        call(session, "leave_cpus")
        wait_until(lambda: "left the CPUs of its slot" in server.stderr(), START_S, "it is logged")
        wait_until(
            lambda: affinities(process, *inits) == {(cpus[0],)} == {tuple(process.cpu_affinity())},
            START_S,
            "they are set back",
        )
        call(session, "leave_cpus")
        wait_until(
            lambda: affinities(process, *inits) == {(cpus[0],)} == {tuple(process.cpu_affinity())},
            START_S,
            "they are set back again",
        )
    wait_until(lambda: "ended after" in server.stderr(), START_S, "it has ended")
    lines = server.stderr().splitlines()
    assert len([line for line in lines if "left the CPUs" in line]) == 1
    assert "had to be removed: threads from other CPUs than its slot's" in lines[-1]


@needs_cgroups
@pytest.mark.parametrize("flag", ["", "--no-fork", "--no-isolation"])
def test_the_kernel_stops_an_allocation_between_two_polls(daemons, flag):
    server = daemons.server("k", *FAULTS, "--session-memory", "100M", *([flag] if flag else []))
    assert "the kernel's cgroups hold the limits of sessions: memory" in server.stderr()
    for _ in range(4):  # a single one could coincide with a poll
        with pytest.raises(MemoryLimit, match="the session's memory limit of 100 MB was hit"):
            with connect(server) as session:
                call(session, "map_shared", 250)
    with connect(server) as session:
        assert call(session, "map_shared", 50) == 50
    wait_until(lambda: "ended after" in server.stderr().splitlines()[-1], START_S, "the end is logged")
    assert server.stderr().count(" s: memory\n") == 4
    nothing_left_of(server)


@needs_cgroups
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
@pytest.mark.parametrize("flag", ["", "--no-isolation"])
def test_the_kernel_keeps_a_session_on_its_cpus(daemons, flag):
    first, second, *_ = sorted(os.sched_getaffinity(0))
    flags = ("--cpus", str(second), *([flag] if flag else []))
    server = daemons.server("k", *FAULTS, *flags)
    with connect(server) as session:
        assert call(session, "change_cpus", 1.0, first, second) == [second]
    nothing_left_of(server)


@needs_cgroups
@pytest.mark.skipif(bool(WHY_SHARED), reason=f"no mounts of a session's own here: {WHY_SHARED}")
@pytest.mark.parametrize("flag", ["", "--read-only"])
def test_a_session_cannot_leave_its_cgroup(daemons, flag):
    server = daemons.server("k", *FAULTS, "--session-memory", "100M", *([flag] if flag else []))
    with connect(server) as session:
        pid = session.info["pid"]
        mine = cgroups.own(Path(f"/proc/{pid}/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        folder = mine.get("memory") or mine["v2"]
        assert f"rpcsys-server-{server.pid}-" in folder
        limit = "memory.max" if os.path.exists(f"{folder}/memory.max") else "memory.limit_in_bytes"
        assert call(session, "leave_cgroup", [folder], limit) == []


@needs_cgroups
def test_the_next_server_removes_the_cgroups_of_a_killed_one(daemons):
    flags = (*FAULTS, "--session-memory", "100M", "--cpus", str(min(os.sched_getaffinity(0))))
    server = daemons.server("k", *flags)
    session = connect(server)
    assert call(session, "pid")
    zygote = next(child for child in server.children() if len(descendants(child.pid)) >= 2)
    os.kill(server.pid, signal.SIGSTOP)
    zygote.kill()
    server.kill()
    with contextlib.suppress(rpcsys.errors.RpcsysError):
        session.close()
    assert folders_of(server)
    following = daemons.server("k", *flags)
    wait_until(lambda: not folders_of(server), START_S, "the next server removes them")
    with connect(following) as session:
        assert call(session, "pid")
    nothing_left_of(following)


def folders_of(server: Daemon) -> list[Path]:
    """The cgroups that a server has created."""
    mine = cgroups.own(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    return [one for place in mine.values() for one in Path(place).glob(f"rpcsys-server-{server.pid}-*")]


def nothing_left_of(server: Daemon) -> None:
    """Wait until only waiting children have cgroups; stop the server; wait until it has none."""
    slots = len(folders_of(server))
    assert slots

    def of_sessions() -> int:
        return sum(one.is_dir() for folder in folders_of(server) for one in folder.glob("[0-9]*"))

    wait_until(lambda: of_sessions() == slots, START_S, "one cgroup per slot")
    server.terminate()
    wait_until(lambda: not folders_of(server), START_S, "they are removed")


def affinities(*tops: psutil.Process) -> set[tuple[int, ...]]:
    """The CPU affinities of all threads of the descendants of ``tops``."""
    found = set()
    for one in [one for top in tops for one in top.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            tasks = [thread.id for thread in one.threads()]
            found |= {tuple(sorted(os.sched_getaffinity(task))) for task in tasks}
    return found


def without_cgroups(daemons: Daemons, flags: tuple[str, ...]) -> Daemon:
    """A server that sees no cgroup hierarchy: polling enforces its limits."""
    if WHY_NO_CGROUPS:
        return daemons.server("k", *flags)
    hide = 'umount -R /sys/fs/cgroup && exec "$@"'
    serve = [sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", "--key", "k", *flags]
    server = daemons.launch("without", ["unshare", "--mount", "sh", "-c", hide, "sh", *serve])
    server.await_ready_line()
    assert "polling holds the limits of sessions: no cgroups" in server.stderr()
    return server


def as_user(daemons: Daemons, user: str, flags: tuple[str, ...]) -> Daemon:
    """A server that runs as ``user``, in that user's folder."""
    if user == "root":
        return daemons.server("k", *flags)
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    # The first program that setpriv runs still has root's rights: it checks that the user can run a second one.
    again = f"import os; os.execv({sys.executable!r}, [{sys.executable!r}, '-c', 'import rpcsys'])"
    if (
        "--no-fork" in flags
        and subprocess.run([*become, sys.executable, "-c", again], cwd=ROOT, capture_output=True).returncode
    ):
        pytest.skip("another user cannot read this checkout")
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    os.chown(folder, 65534, 65534)
    command = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        sys.executable,
        "-m",
        "rpcsys.server",
    ]
    command += ["--host", "127.0.0.1", "--key", "k", *flags]
    server = daemons.launch("nobody", command, env={"TMPDIR": str(folder), "HOME": str(folder)})
    server.await_ready_line()
    return server
