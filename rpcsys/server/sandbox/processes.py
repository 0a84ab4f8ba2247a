"""Processes of this server: forked, bound to their parents, found, and ended. Linux only, through the C library.

Only unreaped descendants are killed, whose numbers cannot be others'. Known weakness: without ``/proc`` descendants are
hidden; without subreapers (Linux before 3.4, qemu's user emulation) what daemonises outlives its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from typing import AbstractSet, Callable, Dict, Iterable, List, NamedTuple, Tuple

#: The C library, opened once: each `ctypes.CDLL` makes classes, which in a forked child copies half a megabyte.
LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC_WITH_GIL = ctypes.PyDLL(None, use_errno=True)  # called with the interpreter's lock held: a copy finds it so
RESCAN_S = 0.005  # between two bursts of scans for orphans
BURST_S = 0.02  # of scans without a pause
KILL_TIMEOUT_S = 5.0  # a process seen alive so long after it was killed is taken for stuck in the kernel
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_host_pid = 0


# System calls


def check(result: int) -> None:
    """Raise the OSError of a call that did not return 0."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def prctl(option: int, value: int) -> int:
    """The system call; its result, -1 for an error."""
    zero = ctypes.c_ulong(0)
    return int(LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def fork() -> int:
    """C's fork, for a process of one thread: Python's own writes to, and so copies, 200 pages more. Raises OSError."""
    pid = int(_LIBC_WITH_GIL.fork())
    if pid < 0:
        check(pid)
    return pid


def try_in_copy(act: Callable[[], None]) -> str:
    """Why ``act`` fails in a copy of this process, which ends at once; empty where it does not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            act()
            os.write(writing, b"+")
        except OSError as error:
            os.write(writing, b"-" + (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 1000)
    os.close(reading)
    os.waitpid(pid, 0)
    return "" if answer == b"+" else answer[1:].decode() or "for a reason unknown"


def finish_fork() -> None:
    """In a copy that :func:`fork` made and that is to run anything: what Python's own fork does there."""
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.pythonapi.PyOS_AfterFork_Child()


def write_file(path: str, text: str) -> None:
    """Write ``text`` at once to a file that exists. Raises OSError."""
    with open(path, "wb", buffering=0, opener=lambda path, _: os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as file:
        file.write(text.encode())


# This process


def become_subreaper() -> bool:
    """Descendants that lose their parent become children of this process; False where the system cannot."""
    result = prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if result and ctypes.get_errno() == errno.EINVAL:
        return False
    check(result)
    return True


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal ``number`` (0: none) when ``parent`` dies; at once if it is dead."""
    check(prctl(_PR_SET_PDEATHSIG, number))
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


def note_host_pid() -> None:
    """Remember this process's number outside of its PID namespace, while its ``/proc`` is still the outer one."""
    global _host_pid
    _host_pid = int(os.readlink("/proc/self"))


def number() -> int:
    """That number, which people and the server's log use; without :func:`note_host_pid` the process's own."""
    return _host_pid or os.getpid()


def set_name(name: str) -> None:
    """Have lists of processes show this one, and its copies to come, by ``name`` (at most 15 characters)."""
    LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), *map(ctypes.c_ulong, (0, 0, 0)))


def exit_without_destructors() -> None:
    """Have ``exit()``, called by a library of the user's, end this process at once.

    Destructors of what the zygote imported would run else, and onnxruntime's wait for a thread that no fork copies.
    """
    if hasattr(LIBC, "on_exit"):  # glibc has it, musl has not; what is registered last runs first
        LIBC.on_exit(LIBC._exit, None)


# Others


def children(pid: int) -> list[int]:
    """The children of ``pid``, zombies included; empty when it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        if os.path.isdir(f"/proc/{pid}"):
            return _children_by_search(pid)
    except (ProcessLookupError, NotADirectoryError):
        return []
    return found


def _children_by_search(pid: int) -> list[int]:
    """For kernels built without CONFIG_PROC_CHILDREN."""
    return [int(other) for other in os.listdir("/proc") if other.isdigit() and _stat(other)[1] == pid]


def descendants(pid: int) -> list[int]:
    """Everything below ``pid``, parents before their children."""
    found = children(pid)
    for parent in found:
        found += children(parent)
    return found


def alive(pid: int) -> bool:
    """Whether ``pid`` exists and is no zombie."""
    return _stat(pid)[0] not in ("", "Z", "X")


def parent(pid: int) -> int:
    """The parent of ``pid``; 0 when it is gone."""
    return _stat(pid)[1]


def _stat(pid: int | str) -> tuple[str, int]:
    """State and parent. The program's name before them may hold spaces and brackets: search from the end."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        state, parent = file.read().rpartition(b")")[2].split()[:2]
        return state.decode(), int(parent)
    return "", 0


def name_of(pid: int) -> str:
    """What the kernel calls the program of ``pid`` (at most 15 characters); empty when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""


def names(pids: Iterable[int]) -> tuple[str, ...]:
    """What those of ``pids`` that live are called."""
    return tuple(name_of(pid) for pid in pids if alive(pid))


def kill(pid: int) -> None:
    """SIGKILL ``pid``, an unreaped child of this process or something below one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


class Dead(NamedTuple):
    """A child that was collected. ``status``: exit status or minus the signal; ``peak``: bytes it had resident."""

    pid: int
    status: int
    peak: int


def reap() -> list[Dead]:
    """Collect dead children, without waiting."""
    dead: list[Dead] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, usage = found
            ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            dead.append(Dead(pid, ended, usage.ru_maxrss * 1024))
    return dead


class Orphans:
    """Processes that lost their parent and became this one's: killed as they are seen, until no scan finds another.

    A process that forks and exits every 50 us is gone before a list of all is read, but leaves another child here: each
    is killed the moment it is seen, and scans follow each other without a pause.

    ``names``: of those that were killed; ``stuck``: by number, the names of those that SIGKILL has not ended in time.
    """

    def __init__(self) -> None:
        self.names: List[str] = []
        self.stuck: Dict[int, str] = {}
        self._killed: Dict[int, Tuple[float, str]] = {}

    def burst(self, spared: Callable[[List[Dead]], AbstractSet[int]]) -> bool:
        """Collect the dead and kill the others, for a while; whether none but those that are stuck is left.

        ``spared`` takes the dead, and returns the numbers of those children that are to live.
        """
        until = time.monotonic() + BURST_S
        while True:
            dead = reap()
            for one in dead:
                self._collected(one)
            left = set(children(os.getpid())) - spared(dead)
            for pid in left - self._killed.keys():
                kill(pid)  # first, and named then: it may live for 50 us
                self._killed[pid] = (time.monotonic(), name_of(pid))
            now = time.monotonic()
            for pid in left - self.stuck.keys():
                since, name = self._killed[pid]
                if now >= since + KILL_TIMEOUT_S and alive(pid):
                    self.stuck[pid] = name
            if left <= self.stuck.keys():
                return True
            if now >= until:
                return False

    def collect_stuck(self) -> None:
        """Collect those of them that have ended after all, and nobody else."""
        for pid in list(self.stuck):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:
                ended = pid
            if ended:
                del self.stuck[pid], self._killed[pid]

    def _collected(self, dead: Dead) -> None:
        _, name = self._killed.pop(dead.pid, (0.0, ""))
        self.stuck.pop(dead.pid, None)
        if name and dead.status == -signal.SIGKILL:  # else it had ended by itself
            self.names.append(name)
