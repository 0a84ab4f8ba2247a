"""Whether processes live."""

from __future__ import annotations

from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[int]:
    """All living descendants of ``pid``."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in below if alive(process.pid)]


def is_init(pid: int) -> bool:
    """Whether a process is the init of a session's PID namespace, or the parent of those."""
    return _has_name(pid, "rpcsys-inits")


def is_tvm_zygote(pid: int) -> bool:
    """Whether a process is a server's second zygote, or a child of that."""
    return _has_name(pid, "rpcsys-tvm")


def _has_name(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"
    except OSError:
        return False
