"""How much memory a session has, counted from outside by the kernel's tables.

- What its processes have mapped for themselves, pages they share counted once.
- Files in memory that they hold open and no folder names: memfds, and deleted ones. Each counts once, mapped or not.
- What lies in the folders in memory that its mount namespace has for itself.
- What their sockets hold (:mod:`rpcsys.server.sandbox.sockets`).

A file that is mapped and held is in the first sum too, and is taken out of it where the limit is near. Not seen: files in
memory, and sockets, on their way through a socket, open in nobody; buffers of pipes; System V memory that nobody has attached
(the kernel bounds it, see :mod:`rpcsys.server.sandbox.mount_namespace`); and, by who is not root, what a process holds that has
made itself undumpable: only its resident pages are then known.
"""

from __future__ import annotations

import os
import resource
from typing import Dict, Optional, Sequence, Set, Tuple

from rpcsys.server.sandbox import sockets
from rpcsys.server.sandbox.limits import field, members
from rpcsys.server.sandbox.mount_namespace import SHARED

_HELD = ("/memfd:", "/dev/zero", "/SYSV", "/run/", *(place + "/" for place in SHARED))
"""How links to open files in memory begin. Others are not looked at: the disk they are on may not answer."""

_DELETED = " (deleted)"

_SOCKET = "socket:["

_Inode = Tuple[int, int]


class Usage:
    """What the processes of one session have: :meth:`look_at` each, then, where ``bound`` is too much, :meth:`look_at_sockets`, then :meth:`measure` each.

    ``taken``: bytes. ``bound`` is never less than that, and ten times as quick.
    """

    def __init__(self) -> None:
        self._resident = self._mapped = 0
        self._files: Dict[_Inode, int] = {}
        self._folders: Dict[int, int] = {}
        self._sockets: Set[int] = set()
        self._buffered: Optional[int] = None

    @property
    def bound(self) -> int:
        """At most so many bytes."""
        buffered = self._buffered
        if buffered is None:
            buffered = len(self._sockets) * sockets.most()
        return self._resident + self._held + buffered

    @property
    def taken(self) -> int:
        """Bytes of memory, when all processes are measured."""
        return self._mapped + self._held + (self._buffered or 0)

    @property
    def _held(self) -> int:
        files = sum(size for (device, _), size in self._files.items() if device not in self._folders)
        return files + sum(self._folders.values())

    def look_at(self, pid: int) -> None:
        """Add a process's resident pages, and what it holds."""
        self._resident += _resident(pid)
        self._note_folders(pid)
        for task in _listed(f"/proc/{pid}/task"):  # a thread may have descriptors of its own
            self._note_files(f"/proc/{pid}/task/{task}/fd")

    def look_at_sockets(self) -> None:
        """Add what the sockets of all of them hold."""
        self._buffered = sockets.buffered(self._sockets) if self._sockets else 0

    def measure(self, pid: int) -> None:
        """Add what a process has mapped and does not hold."""
        anonymous, shared = (field(str(pid), "smaps_rollup", name) for name in (b"Pss_Anon:", b"Pss_Shmem:"))
        if shared and (self._files or self._folders):
            shared -= min(shared, self._mapped_of_held(pid))
        self._mapped += anonymous + shared or field(str(pid), "smaps_rollup", b"Pss:") or _unshown(pid)

    def _note_folders(self, pid: int) -> None:
        for place in SHARED:
            try:
                device = os.stat(f"/proc/{pid}/root{place}").st_dev
                if device not in self._folders and device != os.stat(place).st_dev:
                    space = os.statvfs(f"/proc/{pid}/root{place}")
                    self._folders[device] = (space.f_blocks - space.f_bfree) * space.f_frsize
            except OSError:
                pass  # no such place, or nobody to ask

    def _note_files(self, folder: str) -> None:
        for name in _listed(folder):
            try:
                link = os.readlink(f"{folder}/{name}")
                if link.startswith(_SOCKET):
                    self._sockets.add(int(link[len(_SOCKET) : -1]))
                elif link.endswith(_DELETED) and link.startswith(_HELD):
                    file = os.stat(f"{folder}/{name}")
                    if file.st_dev in _in_memory():
                        self._files[file.st_dev, file.st_ino] = file.st_blocks * 512
            except (OSError, ValueError):
                pass  # closed meanwhile

    def _mapped_of_held(self, pid: int) -> int:
        """Bytes of what a process holds that it has mapped as well; copies of its own, made by writing, are none of that."""
        total = share = 0
        held = False
        try:
            with open(f"/proc/{pid}/smaps", "rb") as lines:
                for line in lines:
                    name, *rest = line.split()
                    if not name.endswith(b":"):
                        major, minor = (int(part, 16) for part in rest[2].split(b":"))
                        device = os.makedev(major, minor)
                        held = device in self._folders or (device, int(rest[3])) in self._files
                    elif held and name == b"Pss:":
                        share = int(rest[0])
                    elif held and name == b"Anonymous:":
                        total += max(0, share - int(rest[0]))
        except (OSError, ValueError, IndexError):
            pass  # it has ended
        return total * 1024


def taken(roots: Sequence[int]) -> int:
    """Bytes of memory that the session below ``roots`` has.

    What can be read from disks again is not counted, where the kernel tells the difference (Linux 5.4).
    """
    usage, pids = Usage(), members(roots)
    for pid in pids:
        usage.look_at(pid)
        usage.measure(pid)
    usage.look_at_sockets()
    return usage.taken


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _unshown(pid: int) -> int:
    """What everyone may know of a process that shows its mappings to nobody."""
    return sum(field(str(pid), "status", name) for name in (b"RssAnon:", b"RssShmem:"))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


_devices: Dict[str, frozenset[int]] = {}


def _in_memory() -> frozenset[int]:
    """The numbers of the file systems in memory that this process knows: those mounted, and the kernel's own for memfds."""
    if not _devices:
        found = set()
        with open("/proc/self/mountinfo", "rb") as lines:
            for line in lines:
                fields, _, kind = line.partition(b" - ")
                if kind.split()[0] in (b"tmpfs", b"ramfs"):
                    major, minor = fields.split()[2].split(b":")
                    found.add(os.makedev(int(major), int(minor)))
        if hasattr(os, "memfd_create"):
            memfd = os.memfd_create("rpcsys")
            found.add(os.fstat(memfd).st_dev)
            os.close(memfd)
        _devices["all"] = frozenset(found)
    return _devices["all"]
