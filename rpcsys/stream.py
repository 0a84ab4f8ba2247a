"""The only class that uses a session's socket, in the client and in the session's process.

A session runs on any stream socket, a socketpair too. The socket is in blocking mode: a receive costs one system call
and no poll. ``SO_RCVTIMEO`` bounds how long it blocks: `Stream.receive` returns None, and its caller checks deadlines.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import struct
import sys
import time
from typing import Callable, List, Optional, Sequence

from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.reader import FrameReader

#: One sendmsg takes at most 1,024 buffers (UIO_MAXIOV).
MAX_PIECES = 1000
SEND_TIMEOUT_S = 0.2
# Plain numbers: to join two members of socket's enumeration costs half a microsecond.
DONT_WAIT = int(socket.MSG_DONTWAIT)
BLOCKING = int(socket.MSG_NOSIGNAL)
NOT_BLOCKING = BLOCKING | DONT_WAIT


def _speedups() -> bool:
    # Other interpreters and free-threaded builds cannot load it, and types of 3.8 cannot export buffers.
    fits = sys.implementation.name == "cpython" and sys.version_info >= (3, 9) and "t" not in sys.abiflags
    if not fits or os.environ.get("RPCSYS_SPEEDUPS") == "0":
        return False
    try:
        importlib.import_module("rpcsys.speedups")
    except ImportError:  # not compiled, or for another C library
        return False
    return True


#: Whether the compiled library ``rpcsys.speedups`` is in use.
SPEEDUPS = _speedups()


class Ended(Exception):
    """The connection has ended; ``args[0]`` is the system's message."""


class Stream:
    """Frames over a connected stream socket.

    Raises `Ended` at the end of the connection, and `ProtocolError` for invalid frames.
    """

    def __init__(self, sock: socket.socket, reader: Optional[FrameReader] = None) -> None:
        self.socket = sock
        self._recv_into: Callable[[memoryview, int, int], int] = sock.recv_into
        self.reader = reader or FrameReader()
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_TIMEOUT_S))

    def fileno(self) -> int:
        """The descriptor, for poll."""
        return self.socket.fileno()

    def tick(self, seconds: float) -> None:
        """Have `receive` return None after ``seconds`` without data (0: never)."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def receive(self, flags: int = 0) -> Optional[Frame]:
        """The next frame. None after a tick without data, or with `DONT_WAIT` if no complete one has arrived."""
        reader = self.reader
        frame = reader.next() if reader.unread else None
        try:
            while frame is None:
                frame = reader.read(self._recv_into, flags)
        except BlockingIOError:
            return None
        except (EOFError, OSError) as error:
            raise ended(error) from None
        return frame

    def next(self) -> Optional[Frame]:
        """The next frame among the bytes that `receive` has read already; None if they have no complete one."""
        return self.reader.next()

    def receive_within(self, seconds: float) -> Optional[Frame]:
        """The next frame; None if it is incomplete after ``seconds``, even if bytes arrive. For a first frame."""
        until = time.monotonic() + seconds
        frame = None
        while frame is None and self.wait(max(0.0, until - time.monotonic())):
            try:
                frame = self.reader.read(self._recv_into, DONT_WAIT)
            except BlockingIOError:
                continue
            except (EOFError, OSError) as error:
                raise ended(error) from None
        return frame

    def send(
        self, pieces: Sequence[Buffer], on_full: Optional[Callable[[], None]] = None, patient: bool = False
    ) -> None:
        """Send the pieces of one or more frames in order.

        While the peer reads nothing, ``on_full`` is called: it waits (`wait`) and may receive meanwhile. It is called
        at once, or if ``patient`` after the system has blocked for `SEND_TIMEOUT_S` without sending anything, which
        saves system calls with a fast peer. Without ``on_full`` the call blocks until all is sent.
        """
        flags = BLOCKING if on_full is None or patient else NOT_BLOCKING
        while pieces:
            try:
                if len(pieces) == 1:
                    count = self.socket.send(pieces[0], flags)
                    if count == len(pieces[0]):
                        return
                else:
                    count = self.socket.sendmsg(pieces[:MAX_PIECES], (), flags)
                    if count == sum(map(len, pieces)):
                        return
            except BlockingIOError:
                if on_full is not None:
                    on_full()
                continue
            except OSError as error:
                raise ended(error) from None
            pieces = rest_of(pieces, count)

    def wait(self, timeout: Optional[float], *, read: bool = True, write: bool = False) -> int:
        """Wait for the peer; the poll events that came, 0 after ``timeout`` seconds."""
        poll = select.poll()
        try:
            poll.register(self.socket, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        except ValueError:  # closed by another thread: the next receive or send raises
            return select.POLLNVAL
        events = poll.poll(None if timeout is None else max(0, int(timeout * 1000)))
        return events[0][1] if events else 0

    def close(self) -> None:
        """Close the socket at once."""
        self.socket.close()


def ended(error: Exception) -> Ended:
    """The `Ended` for an error of the socket."""
    return Ended(getattr(error, "strerror", None) or str(error) or "the connection was closed")


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def rest_of(pieces: Sequence[Buffer], count: int) -> List[Buffer]:
    """The rest of ``pieces`` after ``count`` bytes were sent."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [memoryview(piece)[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []
