"""What a session may use of the board: its CPUs, and its memory, without privileges and without control groups.

The kernel bounds each process (`allow_memory`); all of a session together are measured (`memory_usage`).
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import AbstractSet, Sequence

from rpcsys.server.sandbox import processes

NEARLY = 0.8  # a process that crashed with so much of its limit in memory did so for want of more
#: When the board's memory ends, the kernel ends sessions and model hosts first, the supervisor last (oom_score_adj).
OOM_FIRST, OOM_LAST = 800, -900
#: How Python, C++, onnxruntime, this package and the C library say that there is no memory.
_NO_MEMORY = ("MemoryError", "bad_alloc", "allocate memory", "no memory", "Cannot allocate")
_allowed: int | None = None


def set_oom_score(score: int) -> None:
    """How soon the kernel ends this process, and those it starts, when memory ends. To be ended later needs root."""
    with contextlib.suppress(OSError, ValueError):  # not root, or a kernel without it: as it was
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            if score > 0 or int(file.read()) > score:
                file.seek(0)
                file.write(str(score))


def keep_on(roots: Sequence[int], cpus: AbstractSet[int]) -> bool:
    """Have every thread of the session below ``roots`` run on ``cpus`` only; those to come inherit it.

    Whether one of them might run on others. Fewer are its own business. Raises OSError if ``cpus`` are not there.
    """
    found = False
    for pid in members(roots):
        for task in listed(f"/proc/{pid}/task"):
            try:
                if not os.sched_getaffinity(int(task)) <= cpus:
                    found = True
                    os.sched_setaffinity(int(task), cpus)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended; or it is another user's, of a server of root that may not do this
    return found


def allow_memory(size: int) -> None:
    """Let this process, and each that it starts, take ``size`` bytes more of private memory than now (RLIMIT_DATA).

    Libraries and models, mapped from files, do not count. Beyond it Python raises MemoryError: a call fails.
    """
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
    """The error of a session that wanted more than ``size``."""
    return f"the session's memory limit of {describe(size)} was hit (the server's --session-memory)"


def hint(error: str) -> str:
    """What to add to the text of an error in this process: whether its memory limit may be the cause."""
    if _allowed is None or not any(word in error for word in _NO_MEMORY):
        return ""
    return "; " + breach(_allowed)


def members(roots: Sequence[int]) -> list[int]:
    """The processes of a session. ``roots``: its own, and its init, below which is what lost its parent."""
    return [*roots[:1], *(pid for root in roots for pid in processes.descendants(root))]


def listed(folder: str) -> list[str]:
    """The names in a folder; none where it is gone or closed to this process."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def field(pid: str, file: str, name: bytes) -> int:
    """A size of a process from /proc, in bytes; 0 where it is not there."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/{file}", "rb") as lines:
        for line in lines:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0
