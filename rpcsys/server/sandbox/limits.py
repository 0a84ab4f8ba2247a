"""A session's limits of CPUs and memory, without privileges and without cgroups.

The kernel limits each process (`allow_memory`); the supervisor measures all of a session's (`memory_usage`).
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from typing import AbstractSet, Sequence

from rpcsys.server.sandbox import processes

NEARLY = 0.8  # a process that crashes above this share of its limit counts as out of memory
#: Out of memory, the kernel kills sessions and model hosts first, the supervisor last (oom_score_adj).
OOM_FIRST, OOM_LAST = 800, -900
#: How Python, C++, onnxruntime, this package and the C library report exhausted memory.
_NO_MEMORY = ("MemoryError", "bad_alloc", "allocate memory", "no memory", "Cannot allocate")
#: A block just below glibc's largest M_MMAP_THRESHOLD, in bytes.
LARGEST_BLOCK = (32 << 20 if sys.maxsize > 1 << 32 else 512 << 10) - (64 << 10)
_allowed: int | None = None


def set_oom_score(score: int) -> None:
    """Set how early the kernel kills this process, and those it starts, without memory. A lower score needs root."""
    with contextlib.suppress(OSError, ValueError):  # not root, or a kernel without it: unchanged
        with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
            if score > 0 or int(file.read()) > score:
                file.write(b"%d" % score)


def keep_freed_memory() -> None:
    """Have glibc keep freed memory, at most 64 MiB, for the next call.

    It returns memory above its M_TRIM_THRESHOLD to the kernel, 128 KiB in a new process, so that each call of a model
    with larger arrays waits for new pages. glibc raises this to twice the size of a mapped block that is freed
    (mallopt(3), M_MMAP_THRESHOLD). Other C libraries ignore it. `bytes` takes the block from calloc(), which touches
    none of its pages: `bytearray` writes to all of them, for 30 ms.
    """
    with contextlib.suppress(MemoryError):
        bytes(LARGEST_BLOCK)


def keep_on(roots: Sequence[int], cpus: AbstractSet[int]) -> bool:
    """Restrict every thread of the session below ``roots`` to ``cpus``; new threads inherit this.

    Return whether a thread had other CPUs. A thread may keep fewer. Raises OSError if ``cpus`` do not exist.
    """
    found = False
    for pid in members(roots):
        for task in listed(f"/proc/{pid}/task"):
            try:
                if not os.sched_getaffinity(int(task)) <= cpus:
                    found = True
                    os.sched_setaffinity(int(task), cpus)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended, or belongs to another user and this server has no right
    return found


def allow_memory(size: int) -> None:
    """Limit this process, and each that it starts, to ``size`` bytes more private memory than now (RLIMIT_DATA).

    Libraries and models mapped from files do not count. Beyond the limit Python raises MemoryError: a call fails.
    """
    global _allowed
    bound = field("self", "status", b"VmData:") + size
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    _allowed = size


def inherited() -> int:
    """Resident bytes of a child of this process right after the fork."""
    return field("self", "status", b"RssAnon:")


def describe(size: int) -> str:
    """Format a memory limit for people."""
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def breach(size: int) -> str:
    """The error of a session that exceeds ``size`` bytes."""
    return f"the session's memory limit of {describe(size)} was hit (the server's --session-memory)"


def longer(limit_s: float, longest_s: float | None) -> str:
    """What to do where ``limit_s`` seconds were too few. ``longest_s``: the most for the session's key (None: any)."""
    if longest_s is None:
        return "ask for a longer session_timeout"
    if limit_s >= longest_s or math.isclose(limit_s, longest_s, rel_tol=0.02):  # a renewal's limit is rounded
        return f"no session of this key may last longer than {longest_s:g} s (the tracker's --max-session)"
    return f"ask for a longer session_timeout (this key allows {longest_s:g} s)"


def hint(error: str) -> str:
    """The text to append to an error of this process if its memory limit may be the cause; else empty."""
    if _allowed is None or not any(word in error for word in _NO_MEMORY):
        return ""
    return "; " + breach(_allowed)


def members(roots: Sequence[int]) -> list[int]:
    """The processes of a session. ``roots``: its first process, and its init, which adopts orphans."""
    return [*roots[:1], *(pid for root in roots for pid in processes.descendants(root))]


def listed(folder: str) -> list[str]:
    """The names in a folder; none if it is gone or unreadable."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def field(pid: str, file: str, name: bytes) -> int:
    """A size of a process from /proc, in bytes; 0 if it is absent."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/{file}", "rb") as lines:
        for line in lines:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0
