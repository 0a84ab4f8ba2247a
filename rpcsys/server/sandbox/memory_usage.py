"""Measures a session's memory from outside, by /proc and, for sockets, by sock_diag; needs no privileges.

Not measured: memfds and sockets in transit through a socket; buffers of pipes; System V memory that no process has
attached (the kernel limits it); and, without root, what an undumpable process holds beside its resident pages.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import socket
import struct
from typing import AbstractSet, Dict, Iterator, NamedTuple, Optional, Set, Tuple

from rpcsys.server.sandbox.limits import field, listed
from rpcsys.server.sandbox.mount_namespace import SHARED

#: While all connections of the machine hold no more bytes, their owners are not looked up: that takes a millisecond.
LITTLE = 8 << 20
#: How links to open files in memory begin. Other files are skipped: their disk may hang.
_HELD = ("/memfd:", "/dev/zero", "/SYSV", "/run/", *(place + "/" for place in SHARED))
_DELETED, _SOCKET = " (deleted)", "socket:["
_Inode = Tuple[int, int]


class MemoryUsage:
    """The memory of a session's processes: :meth:`scan` each and, if ``bound`` is too high, :meth:`measure` each.

    - Private mappings; pages that processes share count once.
    - Open files in memory without a name in a folder: memfds and deleted files. Each counts once.
    - Files in the memory file systems of their own mount namespace.
    - Buffers of sockets: :meth:`scan_sockets`, called between these two.
    """

    def __init__(self) -> None:
        self._resident = self._mapped = 0
        self._files: Dict[_Inode, int] = {}
        self._folders: Dict[int, int] = {}
        self._sockets: Set[int] = set()
        self._buffered: Optional[int] = None

    @property
    def bound(self) -> int:
        """An upper bound of ``taken``, in bytes; ten times as quick."""
        buffered = len(self._sockets) * most_buffered() if self._buffered is None else self._buffered
        return self._resident + self._held + buffered

    @property
    def taken(self) -> int:
        """Bytes of memory, after all processes are measured."""
        return self._mapped + self._held + (self._buffered or 0)

    @property
    def _held(self) -> int:
        files = sum(size for (device, _), size in self._files.items() if device not in self._folders)
        return files + sum(self._folders.values())

    def scan(self, pid: int) -> None:
        """Add a process's resident pages, open files and memory file systems."""
        self._resident += _number(f"/proc/{pid}/statm", 1) * resource.getpagesize()
        self._add_folders(pid)
        for task in listed(f"/proc/{pid}/task"):  # a thread may have descriptors of its own
            self._add_files(f"/proc/{pid}/task/{task}/fd")

    def scan_sockets(self) -> None:
        """Add the buffers of all sockets found."""
        self._buffered = buffered(self._sockets) if self._sockets else 0

    def measure(self, pid: int) -> None:
        """Add a process's mappings, without the files that :meth:`scan` counted."""
        anonymous, shared = (field(str(pid), "smaps_rollup", name) for name in (b"Pss_Anon:", b"Pss_Shmem:"))
        if shared and (self._files or self._folders):
            shared -= min(shared, self._mapped_of_held(pid))
        # Readable by every user, even for a process that hides its mappings.
        undumpable = sum(field(str(pid), "status", name) for name in (b"RssAnon:", b"RssShmem:"))
        self._mapped += anonymous + shared or field(str(pid), "smaps_rollup", b"Pss:") or undumpable

    def _add_folders(self, pid: int) -> None:
        for place in SHARED:
            try:
                device = os.stat(f"/proc/{pid}/root{place}").st_dev
                if device not in self._folders and device != os.stat(place).st_dev:
                    space = os.statvfs(f"/proc/{pid}/root{place}")
                    self._folders[device] = (space.f_blocks - space.f_bfree) * space.f_frsize
            except OSError:
                pass  # no such folder, or the process has ended

    def _add_files(self, folder: str) -> None:
        for name in listed(folder):
            try:
                link = os.readlink(f"{folder}/{name}")
                if link.startswith(_SOCKET):
                    self._sockets.add(int(link[len(_SOCKET) : -1]))
                elif link.endswith(_DELETED) and link.startswith(_HELD):
                    file = os.stat(f"{folder}/{name}")
                    if file.st_dev in _memory_devices():
                        self._files[file.st_dev, file.st_ino] = file.st_blocks * 512
            except (OSError, ValueError):
                pass  # closed meanwhile

    def _mapped_of_held(self, pid: int) -> int:
        """Bytes of counted files that a process has mapped, too, without the private copies that writing makes."""
        total = share = 0
        held = False
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps", "rb") as lines:
            for line in lines:  # fails when the process ends
                name, *rest = line.split()
                if not name.endswith(b":"):
                    major, minor = (int(part, 16) for part in rest[2].split(b":"))
                    device = os.makedev(major, minor)
                    held = device in self._folders or (device, int(rest[3])) in self._files
                elif held and name == b"Pss:":
                    share = int(rest[0])
                elif held and name == b"Anonymous:":
                    total += max(0, share - int(rest[0]))
        return total * 1024


def _number(path: str, place: int) -> int:
    """The number at index ``place`` in a kernel's file; 0 if there is none."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(path, "rb") as file:
        return int(file.read().split()[place])
    return 0


@functools.lru_cache(maxsize=None)
def _memory_devices() -> frozenset[int]:
    """Device numbers of the file systems in memory: those mounted here, and the kernel's own for memfds."""
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
    return frozenset(found)


# Sockets. A local message counts for its sender while that socket exists. If the sender is gone or not yet accepted,
# the kernel does not show its messages' size: the most that a socket may hold is assumed.

_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_ALIGNMENT, _REPLY_BYTES = 4, 65536
_LISTENING = 10
_STATES = 0xFFFFFFFF & ~(1 << 6)  # all but TIME_WAIT
_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY, _INET_MEMORY = 2, 4, 5, 7
_UNIX_SHOW = 0x04 | 0x10 | 0x20
#: Indexes in the kernel's SK_MEMINFO record of a socket: bytes received, sent, and queued to be sent.
_RECEIVED, _SENT, _QUEUED = 0, 2, 5
_INET = [(f, p) for f in (socket.AF_INET, socket.AF_INET6) for p in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)]


class _Socket(NamedTuple):
    """One socket in the kernel's reply: its state and inode, and attributes by number."""

    state: int
    inode: int
    attributes: Dict[int, Tuple[int, ...]]


def most_buffered() -> int:
    """The most bytes that one socket's buffers may take."""
    return 2 * sum(map(_setting, ("core/rmem_max", "core/wmem_max", "ipv4/tcp_rmem", "ipv4/tcp_wmem")))


def buffered(inodes: AbstractSet[int]) -> int:
    """Bytes in these sockets' buffers; connections are skipped up to `LITTLE`. 0 if the kernel shows nothing."""
    total = 0
    try:
        request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UNIX_SHOW, 0, 0)
        total += sum(_of_unix(one) for one in _dump(request, 2, 4, 16) if one.inode in inodes)
        for family, protocol in _INET if _of_all_connections() > LITTLE else ():
            request = struct.pack("=BBBBI48x", family, protocol, 1 << (_INET_MEMORY - 1), 0, _STATES)
            found = (one for one in _dump(request, 1, 68, 72) if one.inode in inodes)
            total += sum(_memory(one.attributes.get(_INET_MEMORY)) for one in found)
    except (OSError, struct.error, IndexError, ValueError):
        pass  # a kernel without sock_diag
    return total


def _of_unix(one: _Socket) -> int:
    total = _memory(one.attributes.get(_UNIX_MEMORY))
    waiting = one.attributes.get(_UNIX_QUEUE, (0,))[0]
    if one.state == _LISTENING:
        return total + waiting * 2 * _setting("core/wmem_max")
    if waiting and not one.attributes.get(_UNIX_PEER, (0,))[0]:
        return total + 2 * _setting("core/wmem_max")
    return total


def _of_all_connections() -> int:
    with open("/proc/net/sockstat", "rb") as file:
        words = file.read().split()
    return sum(int(words[at + 1]) for at, word in enumerate(words) if word == b"mem") * os.sysconf("SC_PAGE_SIZE")


def _memory(sizes: Optional[Tuple[int, ...]]) -> int:
    return sizes[_RECEIVED] + max(sizes[_SENT], sizes[_QUEUED]) if sizes else 0


def _dump(request: bytes, state: int, inode: int, attributes: int) -> Iterator[_Socket]:
    """Yield each socket that matches ``request``; the numbers are offsets in the kernel's reply. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.setblocking(False)
        netlink.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
        while True:
            data = netlink.recv(_REPLY_BYTES)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (_DONE, _ERROR) or length < 16:
                    return
                body = data[16:length]
                yield _Socket(body[state], struct.unpack_from("=I", body, inode)[0], _attributes(body[attributes:]))
                data = data[-(-length // _ALIGNMENT) * _ALIGNMENT :]


def _attributes(data: bytes) -> Dict[int, Tuple[int, ...]]:
    """Each attribute by its number, as a tuple of 32-bit values."""
    found = {}
    while len(data) >= _ALIGNMENT:
        length, kind = struct.unpack_from("=HH", data)
        if length < _ALIGNMENT:
            break
        found[kind] = struct.unpack_from(f"={(length - 4) // 4}I", data, 4)
        data = data[-(-length // _ALIGNMENT) * _ALIGNMENT :]
    return found


def _setting(name: str) -> int:
    """A network setting of the kernel, the last value of several; 0 if absent."""
    return _number(f"/proc/sys/net/{name}", -1)
