"""What sockets hold in the kernel's buffers, by their inodes; asked of the kernel itself (sock_diag), without privileges.

A local socket's message counts for who sent it as long as that lives. Where the sender is gone, or not yet accepted, the
kernel does not tell what its messages take: the most that a socket may hold is assumed.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import AbstractSet, Dict, Iterator, NamedTuple, Optional, Tuple

_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2

_LISTENING = 10
_STATES = 0xFFFFFFFF & ~(1 << 6)  # all, but those that only wait for late packets

_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY = 2, 4, 5
_UNIX_SHOW = 0x04 | 0x10 | 0x20
_INET_MEMORY = 7
_RECEIVED, _SENT, _QUEUED = 0, 2, 5
"""Where the memory of what was received, what was sent, and what is to be sent is, in what the kernel tells of a socket's memory."""

_ALIGNED = 4
_REPLY = 65536

_INET = tuple((f, p) for f in (socket.AF_INET, socket.AF_INET6) for p in (socket.IPPROTO_TCP, socket.IPPROTO_UDP))


LITTLE = 8 << 20
"""While all connections of the machine hold no more than this, whose it is is not asked: that takes a millisecond."""


class _Told(NamedTuple):
    """One socket: its state and inode, and what else the kernel says of it, by number."""

    state: int
    inode: int
    more: Dict[int, Tuple[int, ...]]


def most() -> int:
    """Bytes that one socket's buffers may take, at most."""
    limits = (_setting(name) for name in ("core/rmem_max", "core/wmem_max", "ipv4/tcp_rmem", "ipv4/tcp_wmem"))
    return 2 * sum(limits)


def buffered(inodes: AbstractSet[int]) -> int:
    """Bytes that these sockets hold, up to `LITTLE` in connections left out. 0 where the kernel tells nothing."""
    total = 0
    try:
        for told in _unix():
            if told.inode in inodes:
                total += _of_unix(told)
        for family, protocol in _INET if _of_all_connections() > LITTLE else ():
            for told in _inet(family, protocol):
                if told.inode in inodes:
                    total += _memory(told.more.get(_INET_MEMORY))
    except (OSError, struct.error, IndexError, ValueError):
        pass  # a kernel without
    return total


def _of_unix(told: _Told) -> int:
    total = _memory(told.more.get(_UNIX_MEMORY))
    waiting = told.more.get(_UNIX_QUEUE, (0,))[0]
    if told.state == _LISTENING:
        return total + waiting * 2 * _setting("core/wmem_max")
    if waiting and not told.more.get(_UNIX_PEER, (0,))[0]:
        return total + 2 * _setting("core/wmem_max")
    return total


def _of_all_connections() -> int:
    with open("/proc/net/sockstat", "rb") as file:
        words = file.read().split()
    return sum(int(words[at + 1]) for at, word in enumerate(words) if word == b"mem") * os.sysconf("SC_PAGE_SIZE")


def _memory(sizes: Optional[Tuple[int, ...]]) -> int:
    return sizes[_RECEIVED] + max(sizes[_SENT], sizes[_QUEUED]) if sizes else 0


def _unix() -> Iterator[_Told]:
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UNIX_SHOW, 0, 0)
    for body in _dump(request):
        yield _Told(body[2], struct.unpack_from("=I", body, 4)[0], _attributes(body[16:]))


def _inet(family: int, protocol: int) -> Iterator[_Told]:
    request = struct.pack("=BBBBI48x", family, protocol, 1 << (_INET_MEMORY - 1), 0, _STATES)
    for body in _dump(request):
        yield _Told(body[1], struct.unpack_from("=I", body, 68)[0], _attributes(body[72:]))


def _dump(request: bytes) -> Iterator[bytes]:
    """What the kernel tells of each socket that ``request`` asks for. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAG) as asked:
        asked.setblocking(False)
        asked.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 0, 0) + request)
        while True:
            data = asked.recv(_REPLY)
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind in (_DONE, _ERROR) or length < 16:
                    return
                yield data[16:length]
                data = data[_aligned(length) :]


def _attributes(data: bytes) -> Dict[int, Tuple[int, ...]]:
    """Each attribute as the numbers of four bytes that it consists of."""
    found = {}
    while len(data) >= _ALIGNED:
        length, kind = struct.unpack_from("=HH", data)
        if length < _ALIGNED:
            break
        found[kind] = struct.unpack_from(f"={(length - 4) // 4}I", data, 4)
        data = data[_aligned(length) :]
    return found


def _aligned(length: int) -> int:
    return (length + _ALIGNED - 1) & -_ALIGNED


def _setting(name: str) -> int:
    """A bound of the kernel's, the last where it has several; 0 where it tells none."""
    try:
        with open(f"/proc/sys/net/{name}", encoding="ascii") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0
