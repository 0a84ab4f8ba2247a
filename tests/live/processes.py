"""Whether processes live, and which are below others."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import psutil

#: Whether this kernel lists the children of a process.
LISTED = Path(f"/proc/self/task/{threading.get_native_id()}/children").exists()


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children(pid: int) -> list[int]:
    """The children of ``pid``, also zombies.

    A kernel's list of them (with CONFIG_PROC_CHILDREN) may lack some while another one is waited for; the next reading
    differs then. Without such lists psutil reads about each process of the machine.
    """
    if not LISTED:
        return _found(pid)
    before, now = None, _listed(pid)
    while before != now:
        before, now = now, _listed(pid)
    return now


def _listed(pid: int) -> list[int]:
    """What the lists of its threads have at the moment."""
    found: list[int] = []
    for thread in _threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _found(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[int]:
    """All living descendants of ``pid``, each after its parent."""
    below = [child for child in children(pid) if alive(child)]
    for one in below:
        below += [child for child in children(one) if alive(child)]
    return below


def is_init(pid: int) -> bool:
    """Whether a process is the init of a session's PID namespace, or the parent of those."""
    return _has_name(pid, "rpcsys-inits")


def is_tvm_zygote(pid: int) -> bool:
    """Whether a process is a server's second zygote, a shell that becomes it, or a child of it."""
    return _has_name(pid, "rpcsys-tvm") or (_has_name(pid, "sh") and _last_word(pid) == b"rpcsys-tvm")


def _last_word(pid: int) -> bytes:
    """The last word of a process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2]
    except OSError:
        return b""


def _has_name(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text() == f"{name}\n"
    except OSError:
        return False
