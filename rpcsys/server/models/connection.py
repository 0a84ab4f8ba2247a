"""A client's connection to a model host. It never blocks: what the socket does not take is kept and sent later."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Deque, Optional, Sequence

from rpcsys import stream as streams
from rpcsys.link.tcp import drain_and_close
from rpcsys.stream import DONT_WAIT, MAX_PIECES, NOT_BLOCKING, rest_of
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.limits import Limits
from rpcsys.wire.memory import Pool

MAX_HEAD = 1 << 20  # bytes for names and numbers of one call; parsing so many takes at most 70 MB


class ClientConnection:
    """Frames from and to one client. One thread at a time reads; any may send."""

    def __init__(self, sock: socket.socket, peer: str, pool: Pool, max_body: int) -> None:
        self.stream = streams.open(sock, Limits(max_body, MAX_HEAD), pool)
        sock.setblocking(False)
        self.socket = sock
        self.descriptor = sock.fileno()
        self.peer = peer  # the client's address, for people
        self.greeted = False  # whether its HELLO has come
        self.by: Optional[float] = None  # deadline for the HELLO, or for receiving what waits
        self.closed = False
        self.answering = 0  # calls off the queue whose answers are being sent
        self.watched = 0  # epoll's events that are watched
        self._sending = threading.Lock()
        self._unsent: Deque[Buffer] = deque()

    def receive(self, carefully: bool = False) -> list[Frame]:
        """Return the frames that have arrived, or only the first of them. Raises `Ended`, `ProtocolError`.

        ``carefully``: read no byte beyond the frame that has begun.
        """
        frames: list[Frame] = []
        stream = self.stream
        while not frames and (stream.missing or not carefully):
            before = stream.missing
            frame = stream.receive(DONT_WAIT, before if carefully else 0)
            while frame is not None:
                frames.append(frame)
                frame = stream.next() if stream.unread else None
            if not carefully or stream.missing == before:
                break
        return frames

    def send(self, pieces: Sequence[Buffer]) -> bool:
        """Send a frame, or as much of it as the socket takes now; False if a part of it waits. Never raises."""
        with self._sending:
            if self.closed:
                return True
            if self._unsent:
                self._unsent.extend(pieces)
                return False
            self._unsent.extend(self._sent(pieces))
            return not self._unsent

    def flush(self) -> None:
        """Send waiting data, as much of it as the socket takes now."""
        with self._sending:
            if self._unsent and not self.closed:
                self._unsent = deque(self._sent(list(self._unsent)))

    @property
    def unsent(self) -> int:
        """Bytes that wait to be sent."""
        with self._sending:
            return sum(map(len, self._unsent))

    @property
    def backlog(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._unsent)

    def _sent(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """Send ``pieces``; return what the socket does not take, nothing if the client is gone."""
        while pieces:
            try:
                if len(pieces) == 1:
                    count = self.socket.send(pieces[0], NOT_BLOCKING)
                else:
                    count = self.socket.sendmsg(pieces[:MAX_PIECES], (), NOT_BLOCKING)
            except BlockingIOError:
                return pieces
            except OSError:
                return ()
            pieces = rest_of(pieces, count)
        return ()

    def close(self, *, shutdown: bool = True) -> None:
        """Close it; without ``shutdown`` only in this process, because another process continues it."""
        with self._sending:
            self.closed = True
            self._unsent.clear()
            if shutdown:
                drain_and_close(self.socket)
            self.stream.close()
