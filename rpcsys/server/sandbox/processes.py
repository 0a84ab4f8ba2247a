"""Forks, finds and kills this server's processes, and binds them to their parents. Linux only, by the C library.

Only unreaped descendants are killed: no other process can have their PIDs. Known weaknesses: without ``/proc`` no
descendant is found; without subreapers (Linux before 3.4, qemu's user emulation) daemons outlive their session.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from typing import AbstractSet, Callable, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Tuple

#: The C library, opened once: each `ctypes.CDLL` makes classes, which in a forked child copies half a megabyte.
LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC_WITH_GIL = ctypes.PyDLL(None, use_errno=True)  # called with the GIL held, which a forked copy then holds, too
for _name in ("signal", "mount", "unshare", "capget", "capset"):
    getattr(LIBC, _name, None)  # ctypes makes an object for it here, not in each child
RESCAN_S = 0.005  # between two bursts of scans for orphans
BURST_S = 0.02  # the length of a burst of scans without a pause
KILL_TIMEOUT_S = 5.0  # a process that is alive so long after SIGKILL counts as stuck in the kernel
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
_host_pid = 0


# System calls


def check(result: int) -> None:
    """Raise the OSError of a system call if its result is not 0."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def prctl(option: int, value: int) -> int:
    """Make the system call; return its result, -1 for an error."""
    zero = ctypes.c_ulong(0)
    return int(LIBC.prctl(option, ctypes.c_ulong(value), zero, zero, zero))


def fork() -> int:
    """Fork by the C library, in a process with one thread: Python's own fork copies 200 pages more. Raises OSError."""
    pid = int(_LIBC_WITH_GIL.fork())
    if pid < 0:
        check(pid)
    return pid


def try_in_copy(act: Callable[[], None]) -> str:
    """Run ``act`` in a copy of this process, which then ends; return why it failed, empty if it did not."""
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
    """Do in a copy of :func:`fork` what Python's own fork does there; required before it runs other code.

    A copy of a process with one thread, where no module has a hook and no signal waits, may leave it out.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.pythonapi.PyOS_AfterFork_Child()


def default_signal(number: int) -> None:
    """Give a signal its default effect, by the C library; ``signal.getsignal`` still returns the handler before.

    Python's own function is slow where a handler was set: it raises and catches an error.
    """
    LIBC.signal(int(number), None)


def write_file(path: str, text: str) -> None:
    """Write ``text`` to an existing file in one system call. Raises OSError."""
    with open(path, "wb", buffering=0, opener=lambda path, _: os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as file:
        file.write(text.encode())


# This process


def become_subreaper() -> bool:
    """Have this process adopt orphaned descendants; False if the system does not support it."""
    result = prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if result and ctypes.get_errno() == errno.EINVAL:
        return False
    check(result)
    return True


def exit_at_once(status: int) -> NoReturn:
    """End this process without Python's exit handlers. What it has printed is written out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal ``number`` (0: none) when ``parent`` dies; at once if it is dead."""
    check(prctl(_PR_SET_PDEATHSIG, number))
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_dumpable(dumpable: bool) -> None:
    """Open or close the memory, environment and descriptors of this process to others of its user, and core dumps.

    A copy of this process inherits that; a program that it runs is open. Raises OSError.
    """
    check(prctl(_PR_SET_DUMPABLE, int(dumpable)))


def note_host_pid() -> None:
    """Remember this process's PID outside of its PID namespace, while its ``/proc`` is still the outer one."""
    global _host_pid
    _host_pid = int(os.readlink("/proc/self"))


def number() -> int:
    """The PID of :func:`note_host_pid`, for people and the server's log; without that call, the process's own."""
    return _host_pid or os.getpid()


def set_name(name: str) -> None:
    """Set the name of this process, and of its later copies, in process lists (at most 15 characters)."""
    LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), *map(ctypes.c_ulong, (0, 0, 0)))


def exit_without_destructors() -> None:
    """Have C's ``exit()``, which a user's library may call, end this process and its later copies at once.

    Otherwise destructors of earlier imports would run, and onnxruntime's wait for a thread that no fork copies.
    """
    if hasattr(LIBC, "on_exit"):  # glibc has it, musl has not; what is registered last runs first
        LIBC.on_exit(LIBC._exit, None)


# Others


def children(pid: int) -> list[int]:
    """The children of ``pid``, zombies included; empty when it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
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
    """All descendants of ``pid``, parents before their children."""
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
    """The kernel's name of the process ``pid`` (at most 15 characters); empty when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""


def names(pids: Iterable[int]) -> tuple[str, ...]:
    """The names of those ``pids`` that are alive."""
    return tuple(name_of(pid) for pid in pids if alive(pid))


def kill(pid: int) -> None:
    """Send SIGKILL to ``pid``, an unreaped descendant of this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


class Dead(NamedTuple):
    """A reaped child. ``status``: exit status or minus the signal; ``peak``: the most bytes it had resident."""

    pid: int
    status: int
    peak: int


def reap() -> list[Dead]:
    """Reap dead children without waiting."""
    dead: list[Dead] = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.wait4(-1, os.WNOHANG))[0]:
            pid, status, usage = found
            ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            dead.append(Dead(pid, ended, usage.ru_maxrss * 1024))
    return dead


class Orphans:
    """Orphans that this process has adopted: killed as soon as they are seen, until a scan finds no other.

    A process that forks and exits every 50 us is gone before a list of all processes is read, but its child is adopted
    here. So each orphan is killed the moment it is seen, and scans follow each other without a pause.

    ``names``: of killed orphans; ``stuck``: by PID, the names of those that SIGKILL has not ended in time.
    """

    def __init__(self) -> None:
        self.names: List[str] = []
        self.stuck: Dict[int, str] = {}
        self._killed: Dict[int, Tuple[float, str]] = {}

    def burst(self, spared: Callable[[List[Dead]], Optional[AbstractSet[int]]]) -> bool:
        """Reap the dead and kill orphans, for `BURST_S` at most; return whether only stuck orphans are left.

        ``spared`` takes the reaped children, and returns the PIDs of children that are no orphans; None for all.
        """
        until = time.monotonic() + BURST_S
        while True:
            dead = reap()
            for one in dead:
                self._collected(one)
            others = spared(dead)
            if others is None:
                return True
            left = set(children(os.getpid())) - others
            for pid in left - self._killed.keys():
                kill(pid)  # before its name is read: it may live for 50 us
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
        """Reap stuck orphans that have ended by now, and no other child."""
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
