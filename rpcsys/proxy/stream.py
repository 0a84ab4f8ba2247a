"""A connection that came in, and what is said on one before it is relayed."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from rpcsys.proxy.opening import Opening

_UNREAD_PIECES = 16
"""Of 64 KiB, read before a close."""


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


def dismiss(sock: socket.socket, last_word: bytes) -> None:
    """Say something and close. What the peer sent is read: unread, it makes of the close a reset, which can overtake
    the last word.
    """
    try:
        if last_word:
            sock.send(last_word)
        sock.shutdown(socket.SHUT_WR)
        for _ in range(_UNREAD_PIECES):
            if not sock.recv(65536):
                break
    except OSError:
        pass
    sock.close()
