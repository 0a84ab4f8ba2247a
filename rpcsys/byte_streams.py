"""Byte streams of a session: what each has sent, received and granted, and its local descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from collections import deque
from typing import Any, Callable, Deque, Dict, Tuple

from rpcsys.wire.byte_streams import WINDOW
from rpcsys.wire.frames import Buffer

_READ, _WRITE = select.POLLIN, select.POLLOUT
_SHORT, _JOINED = 4 << 10, 64 << 10  # bytes of pieces that are joined, and of what they are joined to
_F_SETPIPE_SZ = 1031  # of Linux; `fcntl` has it from Python 3.10 on


class Backlog:
    """Bytes that wait, in order. Large pieces are kept as they came, and short ones joined: a window of them is all."""

    def __init__(self) -> None:
        self._pieces: Deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def append(self, data: Buffer) -> None:
        """Add bytes behind the others; ``data`` must not change."""
        last = self._pieces[-1] if self._pieces else None
        if len(data) >= _SHORT:
            self._pieces.append(memoryview(data))
        elif type(last) is bytearray and len(last) < _JOINED:
            last += data
        elif len(data):
            self._pieces.append(bytearray(data))

    def first(self) -> memoryview:
        """The first piece; released before the next change."""
        return memoryview(self._pieces[0])

    def drop(self, count: int) -> None:
        """Remove ``count`` bytes of the first piece."""
        first = self._pieces[0]
        if count == len(first):
            self._pieces.popleft()
        elif type(first) is bytearray:
            del first[:count]
        else:
            self._pieces[0] = first[count:]

    def clear(self) -> None:
        """Remove all of them."""
        self._pieces.clear()


class ByteStream:
    """A stream between the peer and local descriptors, both not blocking, which it owns; -1 for none.

    ``source``: what is read from it is sent. ``target``: what is received is written to it. ``end_of_input`` ends the
    writing where both are the same.
    """

    def __init__(
        self, id: int, number: int, source: int = -1, target: int = -1, end_of_input: Callable[[], Any] = bool
    ) -> None:
        self.key = (id, number)
        self.source = source
        self.target = target
        self.shared = source if source == target else -1
        self.end_of_input = end_of_input
        self.credit = WINDOW  # bytes that the peer takes
        self.room = WINDOW  # bytes that the peer may send
        self.freed = 0  # bytes written that the peer does not know of
        self.backlog = Backlog()  # bytes received that the target has not taken
        self.ended = False  # whether the peer sends no more
        self.stopped = False  # whether the peer takes no more
        self.draining = False  # whether its source ends when it has nothing to read now
        self.failed = ""  # why it never had a peer, as a connection that was refused
        self.on_end: Callable[[], Any] = bool  # called by the pump's thread when both directions are over

    def mask(self) -> Dict[int, int]:
        """The events to wait for, by descriptor."""
        wanted: Dict[int, int] = {}
        if self.source >= 0 and self.credit:
            wanted[self.source] = _READ
        if self.target >= 0 and self.backlog:
            wanted[self.target] = wanted.get(self.target, 0) | _WRITE
        return wanted

    def write(self, data: Buffer) -> int:
        """Write to the target; the bytes that it takes. Raises OSError if it takes no more at all."""
        try:
            taken = os.write(self.target, data)
        except BlockingIOError:
            return 0
        self.freed += taken
        return taken


class Listener:
    """Accepts connections for streams of ``id``."""

    def __init__(self, id: int, sock: socket.socket) -> None:
        self.id = id
        self.socket = sock
        self.accepted = 0


def stream_of(id: int, number: int, connection: socket.socket) -> ByteStream:
    """A stream of a connected socket, or of one that connects."""
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    descriptor = connection.detach()

    def end_of_input() -> None:
        with socket.socket(fileno=os.dup(descriptor)) as same:
            same.shutdown(socket.SHUT_WR)

    return ByteStream(id, number, descriptor, descriptor, end_of_input)


def listening(port: int) -> socket.socket:
    """A socket that listens at ``port`` of loopback, at any free one with 0. Raises OSError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def pipe_for(reads: bool) -> Tuple[int, int]:
    """A large pipe: its end for a stream, not blocking, and the other one. ``reads``: whether the stream reads."""
    reading, writing = os.pipe()
    with contextlib.suppress(OSError):  # above this user's limit: 64 KiB suffice
        fcntl.fcntl(writing, _F_SETPIPE_SZ, WINDOW)
    ours, theirs = (reading, writing) if reads else (writing, reading)
    os.set_blocking(ours, False)
    return ours, theirs
