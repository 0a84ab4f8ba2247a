"""A connection that came in, and what is said on one before it is relayed."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from rpcsys.proxy.opening import Opening


@dataclass(eq=False)
class Stream:
    """A connection that came in. ``conn`` is 0 until its greeting was said; ``due``: when it must have been."""

    sock: socket.socket
    address: str
    port: int
    opening: Opening
    due: float
    conn: int = 0
    key: str = ""

    @property
    def where(self) -> str:
        """Its address, for people."""
        return f"{self.address}:{self.port}"


def send_whole(sock: socket.socket, data: bytes) -> bool:
    """Send what is the first thing in an empty buffer; whether the stream took it."""
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False
