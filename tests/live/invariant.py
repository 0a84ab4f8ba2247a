"""The invariant after every test: a test leaves nothing at the daemons that it used and that still run.

`Daemons.stop` checks its daemons before it stops them, and the machine afterwards; a fixture checks the daemons that
outlive a test. Clean-up under way has `SETTLE_S` to end. TVM's daemons, daemons in networks of their own, and daemons
that a test has killed or stopped on purpose are not checked.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import psutil

from tests.live.leftovers import Watched, sockets
from tests.live.processes import alive, descendants

SETTLE_S = 15.0  # an unused match key is replaced after 8 s; the machine may be busy
END_S = 15.0
FIRST_S, LAST_S = 0.005, 0.2  # pauses between two checks: most tests pass the first one
SHM = Path("/dev/shm")
TIME_WAIT = "06"  # in the kernel's tables of connections: no process's any more, and there are thousands


class Running:
    """The daemons that tests have started in this process: ``watched`` are ours, ``others`` are not checked."""

    def __init__(self) -> None:
        self.watched: dict[int, Watched] = {}
        self.others: set[int] = set()
        self.excused = False
        """The current test has failed: what it left is not reported."""

    def watch(self, one: Watched) -> None:
        """Check this daemon from now on; it is idle."""
        self.others.discard(one.pid)
        self.watched[one.pid] = one
        settled(lambda: () if one.begun() else ("it still starts",))
        self.idle(one.pid)

    def idle(self, pid: int) -> None:
        """Take what the daemon holds now as its idle state."""
        if pid in self.watched:
            with contextlib.suppress(psutil.NoSuchProcess):  # a test has ended it
                self.watched[pid].note_idle(self.links())

    def forget(self, pid: int) -> None:
        """Stop checking a daemon: it has ended, or a test leaves something there on purpose."""
        self.others.discard(pid)
        self.watched.pop(pid, None)

    def links(self) -> Callable[[int], int]:
        """A function of a pid: the number of its connections to another of these daemons."""
        pids = [pid for one in [*self.watched, *self.others] for pid in (one, *descendants(one))]
        ends = [*_connections(dict.fromkeys(pids))]
        known = {pair for pair, _ in ends}
        counts = collections.Counter(pid for (near, far), pid in ends if (far, near) in known)
        return counts.__getitem__

    def left(self, pids: Iterable[int]) -> Iterator[str]:
        """Describe what is left at those daemons that run."""
        links = self.links()
        for one in [self.watched[pid] for pid in pids if pid in self.watched]:
            if one.answers():
                try:
                    for what in one.left(links):
                        yield f"at the {one.role} ({one.pid}): {what}"
                except (psutil.Error, OSError, EOFError) as error:
                    if one.answers():
                        yield f"the {one.role} ({one.pid}) does not answer: {error!r}"


running = Running()


def settled(look: Callable[[], Iterable[str]], within_s: float | None = None) -> list[str]:
    """Call ``look`` until it finds nothing, for at most ``within_s`` (default `SETTLE_S`); its last result."""
    end, pause = time.monotonic() + (SETTLE_S if within_s is None else within_s), FIRST_S
    while (found := [*look()]) and time.monotonic() < end:
        gc.collect()  # objects that the test has dropped close their connections
        time.sleep(pause)
        pause = min(2 * pause, LAST_S)
    return found


def stopped(processes: Sequence[subprocess.Popen]) -> list[str]:
    """Describe what is left at these daemons; if nothing is, end them and describe what they leave."""
    if running.excused:
        return []
    # A daemon that a test has killed may have had the PID that a later one has now.
    ours = [process for process in processes if process.pid in running.watched and process.poll() is None]
    left = settled(lambda: running.left(process.pid for process in ours))
    return left or [*_ended([process for process in ours if running.watched[process.pid].answers()])]


def _ended(processes: Sequence[subprocess.Popen]) -> Iterator[str]:
    """End daemons with SIGTERM, as a service manager does; describe what went wrong."""
    watched = {process.pid: running.watched[process.pid] for process in processes}
    below = [pid for process in processes for pid in descendants(process.pid)]
    for process in processes:
        process.terminate()
    for process in processes:
        role = watched[process.pid].role
        try:
            if process.wait(END_S) != 0:
                yield f"the {role} ({process.pid}) ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            yield f"the {role} ({process.pid}) did not end"
            return
    yield from settled(lambda: _of_ended(watched.values(), below), END_S)


def _of_ended(watched: Iterable[Watched], below: Iterable[int]) -> Iterator[str]:
    yield from (f"process {pid} of an ended server" for pid in below if alive(pid))
    yield from (f"{folder} of an ended server" for one in watched for folder in one.folders())


def _connections(pids: Iterable[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """The local and the remote port of each TCP connection of these processes, in any network namespace, and whose."""
    tables: dict[str, list[tuple[str, tuple[int, int]]]] = {}  # reading one takes long on a busy machine
    for pid in pids:
        try:
            network = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            continue  # it ended meanwhile
        if network not in tables:
            tables[network] = [*_tcp_table(pid)]
        own = sockets(pid)
        yield from ((pair, pid) for inode, pair in tables[network] if inode in own)


def _tcp_table(pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The inode and the ports of each connection in the network namespace of a process."""
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue  # it ended meanwhile, or has no IPv6
        for _, near, far, state, rest in (row.split(maxsplit=4) for row in rows):
            if state != TIME_WAIT and _port(far):
                yield rest.split(maxsplit=6)[5], (_port(near), _port(far))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


# --- shared memory -----------------------------------------------------------------------------


def shared_memory() -> set[str]:
    """This user's shared memory that no process holds: files in /dev/shm, and System V objects."""
    return _files() | {row for kind in ("shm", "sem", "msg") for row in _system_v(kind)}


def _files() -> set[str]:
    paths = {str(path) for path in SHM.glob("*") if _owner(path) == os.geteuid()}
    for process in psutil.process_iter() if paths else ():
        try:
            paths -= {one.path for one in [*process.memory_maps(), *process.open_files()]}
        except (psutil.Error, OSError):
            pass  # it ended meanwhile
    return paths


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:
        return -1  # it is gone meanwhile


def _system_v(kind: str) -> Iterator[str]:
    names, *rows = (line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines())
    for row in (dict(zip(names, row, strict=False)) for row in rows):
        held = row.get("nattch", "0") != "0" or alive(int(row.get("cpid", 0)))
        if int(row["cuid"]) == os.geteuid() and not held:
            yield f"System V {kind} {row['msqid' if kind == 'msg' else kind + 'id']}"
