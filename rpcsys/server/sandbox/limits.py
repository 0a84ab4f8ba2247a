"""What a session may use of the board: its CPUs, and its memory.

Memory is limited twice. The kernel refuses a process of the session more private memory than the limit
(RLIMIT_DATA: what is mapped from files and shared with others does not count, so that libraries and models
do not), which Python raises as MemoryError: a call fails, and the session goes on. All processes of a session
together, with what they share, are measured from outside a few times a second and ended when they
have more (:mod:`rpcsys.server.sandbox.usage`). Both work without privileges and without control groups.
"""

from __future__ import annotations

import os
import resource
from typing import AbstractSet, Sequence

from rpcsys.server.sandbox import processes

NEARLY = 0.8
"""A process that crashed with so much of its limit in memory did so for want of more."""


_NO_MEMORY = ("MemoryError", "bad_alloc", "allocate memory", "no memory", "Cannot allocate")
"""How Python, C++, onnxruntime, this package and the C library say that there is no memory."""

FIRST, LAST = 800, -900
"""When the board's memory ends, the kernel ends sessions and model hosts first, and the supervisor last (oom_score_adj)."""

_allowed: int | None = None


def be_ended(score: int) -> None:
    """How soon the kernel is to end this process, and those it will start, when memory ends. To be ended later needs root."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            if score > 0 or int(file.read()) > score:
                file.seek(0)
                file.write(str(score))
    except (OSError, ValueError):
        pass  # not root, or a kernel without it: as it was


def keep_on(roots: Sequence[int], cpus: AbstractSet[int]) -> bool:
    """Have every thread of the session below ``roots`` run on ``cpus`` only; those to come inherit it.

    Whether one of them might run on others. Fewer are its own business. Raises OSError if ``cpus`` are not there.
    """
    found = False
    for pid in members(roots):
        for task in _tasks(pid):
            try:
                if not os.sched_getaffinity(task) <= cpus:
                    found = True
                    os.sched_setaffinity(task, cpus)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended; or it is another user's, of a server of root that may not do this
    return found


def allow_memory(size: int) -> None:
    """Let this process, and each that it starts, take ``size`` bytes more of private memory than it has now."""
    global _allowed
    bound = field("self", "status", b"VmData:") + size
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    _allowed = size


def inherited() -> int:
    """Bytes that a child of this process has resident as soon as it is forked."""
    return field("self", "status", b"RssAnon:")


def describe(size: int) -> str:
    """A limit of memory for people."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def breach(size: int) -> str:
    """What a client is told of a session that wanted more than ``size``."""
    return f"the session's memory limit of {describe(size)} was hit (the server's --session-memory)"


def hint(error: str) -> str:
    """What to add to the text of an error in this process: whether its memory limit may be the cause."""
    if _allowed is None or not any(word in error for word in _NO_MEMORY):
        return ""
    return "; " + breach(_allowed)


def members(roots: Sequence[int]) -> list[int]:
    """The processes of a session: its own is the first of ``roots``, and what lost its parent is below its init, if it has one."""
    return [*roots[:1], *(pid for root in roots for pid in processes.descendants(root))]


def _tasks(pid: int) -> list[int]:
    try:
        return [int(task) for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def field(pid: str, file: str, name: bytes) -> int:
    """A size of a process from /proc, in bytes; 0 where it is not told."""
    try:
        with open(f"/proc/{pid}/{file}", "rb") as lines:
            for line in lines:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0
