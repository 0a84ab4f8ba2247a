"""A network namespace for each session: loopback, and the connection to its client that it was handed."""

from __future__ import annotations

import fcntl
import socket
import struct

from rpcsys.server.sandbox import pid_namespace, processes

_IFNAMSIZ, _IFREQ_BYTES = 16, 40
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def probe() -> str:
    """Return why sessions cannot have network namespaces here; empty if they can."""

    def enter() -> None:
        pid_namespace.leave(pid_namespace.NETWORK)
        raise_loopback()

    return processes.try_in_copy(enter)


def raise_loopback() -> None:
    """Bring up the loopback interface of a network namespace that this process has just entered. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = fcntl.ioctl(sock, _SIOCGIFFLAGS, b"lo".ljust(_IFREQ_BYTES, b"\0"))
        (flags,) = struct.unpack_from("=H", request, _IFNAMSIZ)
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("=16sH22x", b"lo", flags | _IFF_UP))
