"""Sessions that fight what contains them: processes without end, other processes, the disks that are closed to them."""

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

UNRULY = ("--import", "tests.live.hostile", "--import", "tests.live.unruly", "--preload", "none", "--tvm", "off")


def _why_no_cgroups() -> str:
    """Why the kernel does not hold the limits of a server here."""
    found, why = cgroups.find(["memory", "cpuset"])
    cgroups.finish(found)
    return why or ("" if len(found) == 2 else "one of memory and cpuset is not there")


WHY_NO_CGROUPS = _why_no_cgroups()
kernel_holds = pytest.mark.skipif(bool(WHY_NO_CGROUPS), reason=f"no cgroups here: {WHY_NO_CGROUPS}")
own_pids = pytest.mark.skipif(bool(WHY_NO_PIDS), reason=f"no PID namespaces here: {WHY_NO_PIDS}")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path)
    yield made
    made.stop()


def call(session: rpcsys.Session, name: str, *args: object):
    return session.get_function("hostile." + name)(*args)


def connect(server: Daemon) -> rpcsys.Session:
    return rpcsys.connect(*server.address, key="k")


def nothing_forks_on(server: Daemon) -> None:
    """There are the supervisor, its zygote, and one that waits, and a while later the same."""

    def rests() -> bool:
        before = set(descendants(server.pid))
        time.sleep(0.2)
        return len(server.tree(inits=False)) == 3 and set(descendants(server.pid)) == before

    wait_until(rests, START_S, "nothing forks on")


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["", "--no-fork", "--no-isolation"])
def test_processes_that_fork_and_exit_for_ever_end_with_their_session(daemons, flag):
    server = daemons.server("k", *UNRULY, *([flag] if flag else []))
    for _ in range(6):
        with connect(server) as session:
            call(session, "storm", 2)
        began = time.monotonic()
        with connect(server) as session:  # the one slot is free again
            assert call(session, "pid")
        assert time.monotonic() - began < START_S
    assert "not clean" not in server.stderr()
    nothing_forks_on(server)


@pytest.mark.slow
def test_many_that_fork_and_exit_end_with_a_session_of_another_user_without_namespaces(daemons):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user")
    server = as_user(daemons, "nobody", (*UNRULY, "--no-isolation"))
    for _ in range(3):
        with connect(server) as session:
            call(session, "storm", 60)
        with connect(server) as session:
            assert call(session, "pid")
    assert "not clean" not in server.stderr()
    nothing_forks_on(server)


@pytest.mark.slow
def test_a_zygote_that_is_stopped_for_long_is_no_reason_to_take_the_board_back(daemons):
    server = daemons.server("k", *UNRULY, "--slots", "2")
    zygote = next(child for child in server.children() if len(descendants(child.pid)) >= 2)
    session = connect(server)
    pid = session.info["pid"]
    zygote.suspend()
    try:
        hung = session.get_function("hostile.nap").submit()
        session.close()
        wait_until(lambda: not alive(pid), 20, "the supervisor has killed it itself")
        time.sleep(8)  # it would be called unclean by now
        assert "not clean" not in server.stderr()
    finally:
        zygote.resume()
    with connect(server) as one, connect(server) as two:
        assert call(one, "pid") != call(two, "pid") or not WHY_NO_PIDS
    del hung


@own_pids
def test_a_session_can_name_and_kill_nobody_else(daemons):
    server = daemons.server("k", *UNRULY, "--slots", "2")
    with connect(server) as one, connect(server) as two:
        assert call(one, "massacre") == [1]
        assert call(one, "pid")
        assert call(two, "pid")
        assert len([pid for pid in descendants(server.pid) if is_init(pid)]) >= 3, "their inits, and the maker"
    assert server.running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to lose")
@pytest.mark.parametrize("flag", ["", "--no-fork", "--read-only"])
def test_what_a_session_of_root_keeps(daemons, flag):
    server = daemons.server("k", *UNRULY, *([flag] if flag else []))
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
def test_closed_disks_stay_closed(daemons, user, flag):
    if os.geteuid() != 0 or (user == "nobody" and not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    folder = Path(os.path.expanduser("~")) / f".rpcsys-closed-{os.getpid()}"
    folder.mkdir()
    try:
        if user == "nobody":
            os.chown(folder, 65534, 65534)
        flags = (*UNRULY, "--read-only", *([flag] if flag else []))
        server = as_user(daemons, user, flags)
        with connect(server) as session:
            ways = call(session, "escape", str(folder))
        assert not list(folder.iterdir())
        assert all(ways.values()), ways
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("how", ["memfd", "child", "thread", "tmpfs", "deleted", "system v", "sockets"])
def test_memory_that_nothing_maps_counts(daemons, user, how):
    if WHY_SHARED and how in ("tmpfs", "deleted"):
        pytest.skip(f"no mounts of a session's own here: {WHY_SHARED}")
    if user == "nobody" and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    server = as_user(daemons, user, (*UNRULY, "--session-memory", "200M"))
    with pytest.raises(MemoryLimit, match="the session's memory limit of 200 MB was hit"):
        with connect(server) as session:
            call(session, "stow", how, 2000 if how == "sockets" else 500)
    with connect(server) as session:
        assert call(session, "pid")
    assert ": memory" in server.stderr()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("flag", ["", "--no-isolation"])
def test_a_session_is_set_back_to_its_cpus(daemons, user, flag):
    if user == "nobody" and (os.geteuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root can become another user")
    cpus = sorted(os.sched_getaffinity(0))
    flags = (*UNRULY, "--cpus", str(cpus[0]), *([flag] if flag else []))
    server = without_cgroups(daemons, flags) if user == "root" else as_user(daemons, user, flags)
    with connect(server) as session:
        process = psutil.Process(session.info["pid"])
        assert process.cpu_affinity() == [cpus[0]]
        # What lost its parent is a child of an init, of which one other waits.
        inits = [psutil.Process(pid) for pid in descendants(server.pid) if is_init(pid)]
        call(session, "spread")
        wait_until(lambda: "left the CPUs of its slot" in server.stderr(), START_S, "it is said")
        wait_until(
            lambda: affinities(process, *inits) == {(cpus[0],)} == {tuple(process.cpu_affinity())},
            START_S,
            "they are set back",
        )
        call(session, "spread")
        wait_until(
            lambda: affinities(process, *inits) == {(cpus[0],)} == {tuple(process.cpu_affinity())},
            START_S,
            "they are set back again",
        )
    wait_until(lambda: "ended after" in server.stderr(), START_S, "it has ended")
    lines = server.stderr().splitlines()
    assert len([line for line in lines if "left the CPUs" in line]) == 1
    assert "had to be removed: threads from other CPUs than its slot's" in lines[-1]


@kernel_holds
@pytest.mark.parametrize("flag", ["", "--no-fork", "--no-isolation"])
def test_the_kernel_stops_what_is_taken_between_two_scans(daemons, flag):
    server = daemons.server("k", *UNRULY, "--session-memory", "100M", *([flag] if flag else []))
    assert "the kernel's cgroups hold the limits of sessions: memory" in server.stderr()
    for _ in range(4):  # one could meet a scan by chance
        with pytest.raises(MemoryLimit, match="the session's memory limit of 100 MB was hit"):
            with connect(server) as session:
                call(session, "surge", 250)
    with connect(server) as session:
        assert call(session, "surge", 50) == 50
    wait_until(lambda: "ended after" in server.stderr().splitlines()[-1], START_S, "it is told")
    assert server.stderr().count(" s: memory\n") == 4
    nothing_left_of(server)


@kernel_holds
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU here")
@pytest.mark.parametrize("flag", ["", "--no-isolation"])
def test_the_kernel_keeps_a_session_on_its_cpus(daemons, flag):
    first, second, *_ = sorted(os.sched_getaffinity(0))
    flags = ("--cpus", str(second), *([flag] if flag else []))
    server = daemons.server("k", *UNRULY, *flags)
    with connect(server) as session:
        assert call(session, "roam", 1.0, first, second) == [second]
    nothing_left_of(server)


@kernel_holds
@pytest.mark.skipif(bool(WHY_SHARED), reason=f"no mounts of a session's own here: {WHY_SHARED}")
@pytest.mark.parametrize("flag", ["", "--read-only"])
def test_a_session_cannot_leave_its_cgroup(daemons, flag):
    server = daemons.server("k", *UNRULY, "--session-memory", "100M", *([flag] if flag else []))
    with connect(server) as session:
        pid = session.info["pid"]
        mine = cgroups.own(Path(f"/proc/{pid}/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
        folder = mine.get("memory") or mine["v2"]
        assert f"rpcsys-server-{server.pid}-" in folder
        limit = "memory.max" if os.path.exists(f"{folder}/memory.max") else "memory.limit_in_bytes"
        assert call(session, "break_out", [folder], limit) == []


@kernel_holds
def test_killed_servers_leave_no_cgroup_to_the_next(daemons):
    flags = (*UNRULY, "--session-memory", "100M", "--cpus", str(min(os.sched_getaffinity(0))))
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
    """The cgroups that a server has made for itself."""
    mine = cgroups.own(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    return [one for place in mine.values() for one in Path(place).glob(f"rpcsys-server-{server.pid}-*")]


def nothing_left_of(server: Daemon) -> None:
    """Between sessions there are the cgroups of those that wait; after the server, none."""
    slots = len(folders_of(server))
    assert slots

    def of_sessions() -> int:
        return sum(one.is_dir() for folder in folders_of(server) for one in folder.glob("[0-9]*"))

    wait_until(lambda: of_sessions() == slots, START_S, "one waits")
    server.terminate()
    wait_until(lambda: not folders_of(server), START_S, "they are removed")


def affinities(*tops: psutil.Process) -> set[tuple[int, ...]]:
    """Where the threads below ``tops`` may run."""
    found = set()
    for one in [one for top in tops for one in top.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            tasks = [thread.id for thread in one.threads()]
            found |= {tuple(sorted(os.sched_getaffinity(task))) for task in tasks}
    return found


def without_cgroups(daemons: Daemons, flags: tuple[str, ...]) -> Daemon:
    """A server of this user that sees no hierarchy, so that polling holds its limits."""
    if WHY_NO_CGROUPS:
        return daemons.server("k", *flags)
    hide = 'umount -R /sys/fs/cgroup && exec "$@"'
    serve = [sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", "--key", "k", *flags]
    server = daemons.launch("without", ["unshare", "--mount", "sh", "-c", hide, "sh", *serve])
    server.await_ready_line()
    assert "polling holds the limits of sessions: no cgroups" in server.stderr()
    return server


def as_user(daemons: Daemons, user: str, flags: tuple[str, ...]) -> Daemon:
    """A server that runs as ``user``, in a folder of that user's."""
    if user == "root":
        return daemons.server("k", *flags)
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    # Root's rights go with the first program that setpriv runs: whether another can be run is asked by that.
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
