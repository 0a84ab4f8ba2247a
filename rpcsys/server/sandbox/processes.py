"""Processes below this one: who they are, and how they are ended. Linux only.

What makes it certain that nothing outlives a session:

- Each session has a PID namespace, whose end is the end of all in it (:mod:`rpcsys.server.sandbox.pid_namespace`).
- Where it has none, each session process is a *subreaper*: what daemonises below it becomes its own child.
- So is the zygote: when a session process dies, everything below it becomes the zygote's child. A child
  of the zygote that it did not make is an orphan of a dead session (:mod:`rpcsys.server.sandbox.orphans`).
- So is the supervisor, for the case that the zygote dies.
- Sessions die with their zygote: by their init, which sees its end, or by PR_SET_PDEATHSIG; a zygote that loses its supervisor
  kills everything below it and leaves.

A process is only ever killed while it is an unreaped descendant, so its number cannot have been given to
another. Known weakness: a kernel without ``/proc`` hides descendants, and where there are no subreapers (Linux
before 3.4, qemu's user emulation) what daemonises outlives its session.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from typing import Iterable, NamedTuple

from rpcsys.server.sandbox.libc import LIBC, check

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_number = 0


class Dead(NamedTuple):
    """A child that was collected. ``status``: exit status or minus the signal; ``peak``: bytes it had resident."""

    pid: int
    status: int
    peak: int


def become_subreaper() -> bool:
    """Descendants that lose their parent become children of this process; False where the system cannot."""
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ``parent`` dies; at once if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def note_number() -> None:
    """Remember by which number the processes outside of its PID namespace know this one, while its ``/proc`` is still theirs."""
    global _number
    _number = int(os.readlink("/proc/self"))


def number() -> int:
    """That number, which people and the server's log use; without :func:`note_number` the process's own."""
    return _number or os.getpid()


def call_this(name: str) -> None:
    """Have lists of processes show this one, and its copies to come, by ``name`` (at most 15 characters)."""
    LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), *map(ctypes.c_ulong, (0, 0, 0)))


def hear_of_the_end_of(parent: int, number: int) -> None:
    """Have the kernel send this process the signal ``number`` when its parent ``parent`` dies; 0 is none."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


def leave_without_destructors() -> None:
    """Have ``exit()``, called by a library of the user's, end this process at once.

    The C library would first run the destructors of what the zygote had imported, and onnxruntime's wait for
    ever for a thread that a fork does not copy. What is registered last runs first.
    """
    if hasattr(LIBC, "on_exit"):  # glibc has it, musl has not
        LIBC.on_exit(LIBC._exit, None)


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


def name_of(pid: int) -> str:
    """What the kernel calls the program of ``pid`` (at most 15 characters); empty when it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def names(pids: Iterable[int]) -> tuple[str, ...]:
    """What those of ``pids`` that live are called."""
    return tuple(name_of(pid) for pid in pids if alive(pid))


def reap() -> list[Dead]:
    """Collect dead children, without waiting."""
    dead: list[Dead] = []
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if not pid:
            return dead
        ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        dead.append(Dead(pid, ended, usage.ru_maxrss * 1024))


def _prctl(option: int, value: int) -> None:
    check(LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))


def kill(pid: int) -> None:
    """SIGKILL ``pid``, an unreaped child of this process or something below one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _stat(pid: int | str) -> tuple[str, int]:
    """State and parent. The program's name before them may hold spaces and brackets: search from the end."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return "", 0
    return state.decode(), int(parent)


def _children_by_search(pid: int) -> list[int]:
    """For kernels built without CONFIG_PROC_CHILDREN."""
    return [int(other) for other in os.listdir("/proc") if other.isdigit() and _stat(other)[1] == pid]
