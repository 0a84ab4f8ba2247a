"""Whose connection it is: the kernel knows which user made each socket of this machine (sock_diag(7))."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import struct
from typing import Any

log = logging.getLogger(__name__)
_NETLINK_SOCK_DIAG = 4
_BY_FAMILY, _REQUEST = 20, 1
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, port
_QUERY = struct.Struct("=BBBBI")  # struct inet_diag_req_v2: family, protocol, extensions, padding, states
_ENDS = struct.Struct("!HH16s16s")  # struct inet_diag_sockid: ports and addresses, local ones first
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # on any interface, with any cookie
_FOUND = struct.Struct("=BBBB")  # struct inet_diag_msg: family, state, timer, retransmissions; then both ends
_MORE = struct.Struct("=IIIII")  # its rest: time, unread and unsent bytes, user, inode


def uid_of(peer: Any, own: Any) -> int | None:
    """The user whose process has the other end of a connection, by both addresses as `accept` returns them.

    None: no process has it any more, or it is on another machine. Raises OSError: the kernel does not answer. It takes
    14 us; to read /proc/net/tcp takes milliseconds, as that walks through a table for all connections of the machine.
    """
    (family, local), (_, remote) = _packed(peer), _packed(own)
    ends = _ENDS.pack(peer[1], own[1], local, remote)
    query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED) + ends + _ANY
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 0, 0) + query)
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    state_at, ends_at = _HEADER.size, _HEADER.size + _FOUND.size
    if kind != _BY_FAMILY or _FOUND.unpack_from(answer, state_at)[1] != _ESTABLISHED:
        return None  # an error, or what listens at the port
    if answer[ends_at : ends_at + 4] != ends[:4]:
        return None
    uid: int = _MORE.unpack_from(answer, ends_at + _ENDS.size + len(_ANY))[3]
    return uid


def is_own(sock: socket.socket, address: Any) -> bool:
    """Whether an accepted connection, with its peer's address, is of this process's user; logged if not."""
    try:
        owner = uid_of(address, sock.getsockname())
    except OSError as error:
        log.warning("the kernel does not say whose connections there are (%s): none is taken", error.strerror)
        return False
    if owner not in (None, os.geteuid()):
        log.warning("a connection of another user of this machine (uid %d) was refused", owner)
    return owner == os.geteuid()


def _packed(address: Any) -> tuple[int, bytes]:
    """The family and the bytes of an address."""
    found: Any = ipaddress.ip_address(address[0].partition("%")[0])
    if found.version == 6 and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return (socket.AF_INET if found.version == 4 else socket.AF_INET6), found.packed.ljust(16, b"\0")
