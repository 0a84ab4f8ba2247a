"""Cgroups of sessions: the kernel enforces memory limits and CPUs at once, without waiting for a scan.

A server makes a folder below its own cgroup (version 2, or the hierarchies of version 1), locked like `work_folders`,
and in it one cgroup for each session. Where the kernel refuses this, only the supervisor's scans enforce the limits.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import AbstractSet, Callable, Dict, Iterable, Sequence

from rpcsys.server.sandbox import processes, work_folders
from rpcsys.server.sandbox.mount_namespace import make_read_only

MARGIN = (8, 32 << 20)  # an eighth and 32 MB above the limit: the kernel also counts page tables, stacks and the init
REMOVE_TIMEOUT_S = 10.0  # until the kernel has removed killed processes from a server's folder
AGAIN_S = 0.02
_LEAF = "server"  # for the server's own processes: in version 2 a cgroup has either processes or cgroups
#: A server's folder for each controller, ``memory`` and ``cpuset``; in version 2 both are the same.
Folders = Dict[str, str]


def own(cgroup: str, mountinfo: str) -> Folders:
    """Find a process's cgroup for each controller in the text of its /proc/self/cgroup and /proc/self/mountinfo.

    ``v2`` is the key of version 2. Hierarchies that are not mounted, or do not show the cgroup, are omitted.
    """
    mounted: Dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        for name in ("v2",) if kind[0] == "cgroup2" else kind[2].split(","):
            mounted.setdefault(name, (fields[3], fields[4]))
    found = {}
    for line in cgroup.splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        for name in names.split(",") if names else ("v2",):
            root, place = mounted.get(name, ("", ""))
            inside = os.path.relpath(path, root) if root and path.startswith("/") else ".."
            if not inside.startswith(".."):
                found[name] = os.path.normpath(os.path.join(place, inside))
    return found


def find(wanted: Sequence[str]) -> tuple[Folders, str]:
    """Make a folder for each ``wanted`` controller; return them and, if there are none, the reason. One thread only."""
    found: Folders = {}
    try:
        with open("/proc/self/cgroup") as cgroup, open("/proc/self/mountinfo") as mountinfo:
            mine = own(cgroup.read(), mountinfo.read())
        if mounted := [name for name in wanted if name in mine]:
            made: Folders = {}  # one hierarchy may have both controllers
            for name in mounted:
                found[name] = made[mine[name]] = made.get(mine[name]) or work_folders.make_folder(mine[name])
            if "cpuset" in found:
                _inherit(found["cpuset"])
        elif "v2" in mine:
            found = _made_v2(mine["v2"], wanted)
        _try(found)
    except (OSError, ValueError) as error:
        finish(found, 0.0)
        return {}, getattr(error, "strerror", "") or str(error)
    return found, "" if found else "no hierarchy with them is mounted"


def _made_v2(parent: str, wanted: Sequence[str]) -> Folders:
    """Make a server's folder in version 2, below the cgroup ``parent``. Raises OSError."""
    names = [name for name in wanted if name in _read(parent, "cgroup.controllers").split()]
    if not names:
        raise OSError(0, "their controllers are not delegated to this server")
    folder = work_folders.make_folder(parent)
    try:
        given = _read(parent, "cgroup.subtree_control").split()
        if not all(name in given for name in names):
            if _read(parent, "cgroup.procs").split() != [str(os.getpid())]:
                raise OSError(0, "other processes are in this server's cgroup")
            os.mkdir(os.path.join(folder, _LEAF))
            _write(os.path.join(folder, _LEAF), "cgroup.procs", "0")
            _control(parent, "+", names)
        _control(folder, "+", names)
    except OSError:
        finish({"memory": folder}, 0.0)
        raise
    return dict.fromkeys(names, folder)


def _control(folder: str, sign: str, names: Iterable[str]) -> None:
    _write(folder, "cgroup.subtree_control", " ".join(sign + name for name in names))


def _try(folders: Folders) -> None:
    """Test that a process can enter a session's cgroup. Raises OSError if it cannot."""
    if not folders:
        return
    make(folders, 0, 1 << 30)
    refused = processes.try_in_copy(lambda: enter(folders, 0))
    _until(AGAIN_S, AGAIN_S / 10, lambda: clear(folders, frozenset()))
    if refused:
        raise OSError(0, refused)


# A session's cgroup


def make(folders: Folders, child: int, memory: int | None) -> None:
    """Make the cgroup of a future child, limited to ``memory`` bytes. Raises OSError."""
    for place in _places(folders, child):
        os.mkdir(place, 0o755)
    for name, folder in folders.items():
        place = os.path.join(folder, str(child))
        if name == "memory" and memory is not None:
            _limit(place, memory + memory // MARGIN[0] + MARGIN[1])
        elif name == "cpuset" and not os.path.exists(os.path.join(folder, "cgroup.controllers")):
            _inherit(place)


def enter(folders: Folders, child: int, pid: int = 0) -> None:
    """Move ``pid`` (0: this process) into the cgroup of ``child``; may block for a while. Raises OSError."""
    for place in _places(folders, child):
        _write(place, "cgroup.procs", str(pid))


def keep_on(folders: Folders, child: int, cpus: AbstractSet[int]) -> None:
    """Restrict a child, and all processes that it starts, to ``cpus``. Raises OSError."""
    if "cpuset" in folders:
        place = os.path.join(folders["cpuset"], str(child))
        _write(place, "cpuset.cpus", ",".join(map(str, sorted(cpus))))


def starved(folders: Folders, child: int, killed: bool = False) -> bool:
    """Whether the kernel killed a process of ``child`` at the memory limit.

    ``killed``: the child's process ended by SIGKILL. Kernels before 4.13 only count how often the limit was reached.
    """
    if "memory" not in folders:
        return False
    place = os.path.join(folders["memory"], str(child))
    try:
        for name in ("memory.events", "memory.oom_control"):
            if os.path.exists(os.path.join(place, name)):
                counts = dict(line.split(None, 1) for line in _read(place, name).splitlines())
                if "oom_kill" in counts:
                    return int(counts["oom_kill"]) > 0
        return killed and int(_read(place, "memory.failcnt")) > 0
    except (OSError, ValueError):
        return False


def kill(folders: Folders, child: int) -> None:
    """Kill all processes of ``child`` at once, where the kernel can (version 2, Linux 5.14)."""
    for place in _places(folders, child):
        with contextlib.suppress(OSError):
            _write(place, "cgroup.kill", "1")


def clear(folders: Folders, living: AbstractSet[int]) -> bool:
    """Remove the cgroups of children not in ``living``; return whether all are removed. One with processes stays."""
    below = [place for folder in _places(folders) for place in _below(folder)]
    numbered = [place for place in below if os.path.basename(place).isdigit()]
    removed = [_removed(place) for place in numbered if int(os.path.basename(place)) not in living]
    return all(removed)


# A server's folder


def hold(folders: Folders) -> list[int]:
    """Lock the folders, so that no server removes them as abandoned, until the returned descriptors are closed."""
    return [held for held in map(work_folders.hold, _places(folders)) if held >= 0]


def hide(folders: Folders) -> None:
    """Make the hierarchies read-only in this process's mount namespace; log an error if that is refused."""
    try:
        for folder in _places(folders):
            while not os.path.ismount(folder):
                folder = os.path.dirname(folder)
            make_read_only(folder)
    except OSError as error:
        sys.stderr.write(f"rpcsys-server: a session may leave its cgroup ({error.strerror})\n")


def tidy(folders: Folders) -> None:
    """Remove the folders of killed servers beside these, in a thread."""
    left: Dict[str, int] = {}
    for folder in _places(folders):
        with contextlib.suppress(OSError):
            left.update(work_folders.abandoned(folder))
    if left:
        threading.Thread(target=_remove_abandoned, args=(left,), name="rpcsys-cgroups", daemon=True).start()


def _remove_abandoned(left: Dict[str, int]) -> None:
    _remove(list(left), REMOVE_TIMEOUT_S)
    for descriptor in left.values():
        os.close(descriptor)


def finish(folders: Folders, timeout_s: float = 1.0) -> None:
    """Remove the folders when the server ends, after moving its processes to the parent cgroup."""
    for folder in _places(folders):
        leaf, parent = os.path.join(folder, _LEAF), os.path.dirname(folder)
        if os.path.isdir(leaf):
            with contextlib.suppress(OSError):  # then the service manager removes it
                names = _read(folder, "cgroup.subtree_control").split()
                _until(timeout_s, AGAIN_S / 10, lambda: clear(folders, frozenset()))
                _control(folder, "-", names)
                _control(parent, "-", _read(parent, "cgroup.subtree_control").split())
                for pid in _read(leaf, "cgroup.procs").split():
                    _write(parent, "cgroup.procs", pid)
    _remove(_places(folders), timeout_s)


def _remove(places: Sequence[str], timeout_s: float) -> None:
    """Remove folders and the cgroups in them as soon as they are empty; give up after ``timeout_s``."""

    def try_once() -> bool:
        removed = [_removed(place) for folder in places for place in (*_below(folder), folder)]
        return all(removed)

    _until(timeout_s, AGAIN_S, try_once)


def _until(timeout_s: float, pause_s: float, done: Callable[[], bool]) -> None:
    end = time.monotonic() + timeout_s
    while not done() and time.monotonic() < end:
        time.sleep(pause_s)


# Files


def _places(folders: Folders, child: int | None = None) -> list[str]:
    """Each folder once or, given a ``child``, its cgroup in each folder."""
    return [folder if child is None else os.path.join(folder, str(child)) for folder in sorted(set(folders.values()))]


def _limit(place: str, size: int) -> None:
    """Limit memory to ``size`` bytes, with no swap beyond that where the kernel counts swap. Raises OSError."""
    v2 = os.path.exists(os.path.join(place, "memory.max"))
    _write(place, "memory.max" if v2 else "memory.limit_in_bytes", str(size))
    swap = "memory.swap.max" if v2 else "memory.memsw.limit_in_bytes"
    if os.path.exists(os.path.join(place, swap)):
        _write(place, swap, "0" if v2 else str(size))


def _inherit(place: str) -> None:
    """Copy CPUs and memory nodes from the parent into a new cpuset of version 1, which is empty. Raises OSError."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        _write(place, name, _read(os.path.dirname(place), name).strip())


def _below(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _removed(place: str) -> bool:
    with contextlib.suppress(OSError):
        os.rmdir(place)
    return not os.path.isdir(place)


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


def _write(folder: str, name: str, text: str) -> None:
    processes.write_file(os.path.join(folder, name), text)
