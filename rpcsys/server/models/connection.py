"""A client's connection to a model host. Nothing in it waits: what the client does not take now stays until it does."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Deque, Optional, Sequence

from rpcsys.link import drain_and_close
from rpcsys.stream import DONT_WAIT, MAX_PIECES, Ended, rest_of
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.memory import Pool
from rpcsys.wire.reader import FrameReader

MAX_HEAD = 1 << 20  # names and numbers of one call: models take arrays. To parse so much takes at most 70 MB
ROUNDS = 16  # receives in a row from one client: others have their turn between
_SEND = int(socket.MSG_NOSIGNAL) | DONT_WAIT


class ClientConnection:
    """Frames from and to one client. One thread at a time reads; any may send."""

    def __init__(self, sock: socket.socket, peer: str, pool: Pool, max_body: int) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._fill = sock.recv_into
        self.descriptor = sock.fileno()
        self.peer = peer  # the client's address, for people
        self.reader = FrameReader(max_body=max_body, max_head=MAX_HEAD, pool=pool)
        self.greeted = False  # whether its HELLO has come
        self.by: Optional[float] = None  # until when that must have happened, or it must have taken what waits
        self.closed = False
        self.answering = 0  # calls that are off the queue, whose answers are being sent
        self.watched = 0  # what of it is waited for, as epoll's events
        self._sending = threading.Lock()
        self._unsent: Deque[Buffer] = deque()

    def receive(self, carefully: bool = False) -> list[Frame]:
        """The frames that are here now, some of them where there are many. Raises `Ended`, `ProtocolError`.

        ``carefully``: not a byte past the end of the frame that has begun.
        """
        frames: list[Frame] = []
        reader = self.reader
        try:
            for _ in range(ROUNDS):
                if frames or (carefully and not reader.missing):
                    break
                frame = reader.read(self._fill_carefully if carefully else self._fill, DONT_WAIT)
                while frame is not None:
                    frames.append(frame)
                    frame = reader.next() if reader.unread else None
        except BlockingIOError:
            pass
        except EOFError:
            raise Ended("the connection was closed") from None
        except OSError as error:
            raise Ended(error.strerror or str(error)) from None
        return frames

    def _fill_carefully(self, space: memoryview, count: int, flags: int) -> int:
        return self._fill(space, min(self.reader.missing, len(space)), flags)

    def send(self, pieces: Sequence[Buffer]) -> bool:
        """Send a frame, or as much of it as the client takes now; False if something of it waits. Never raises."""
        with self._sending:
            if self.closed:
                return True
            if self._unsent:
                self._unsent.extend(pieces)
                return False
            self._unsent.extend(self._sent(pieces))
            return not self._unsent

    def flush(self) -> None:
        """Send what waits, as much of it as the client takes now."""
        with self._sending:
            if self._unsent and not self.closed:
                self._unsent = deque(self._sent(list(self._unsent)))

    @property
    def unsent(self) -> int:
        """Bytes that wait for the client to take them."""
        with self._sending:
            return sum(map(len, self._unsent))

    @property
    def backlog(self) -> bool:
        """Whether the client has not taken all that was sent."""
        return bool(self._unsent)

    def _sent(self, pieces: Sequence[Buffer]) -> Sequence[Buffer]:
        """What is left of ``pieces`` when the system takes no more; nothing once the client is gone."""
        while pieces:
            try:
                if len(pieces) == 1:
                    count = self.socket.send(pieces[0], _SEND)
                else:
                    count = self.socket.sendmsg(pieces[:MAX_PIECES], (), _SEND)
            except BlockingIOError:
                return pieces
            except OSError:
                return ()
            pieces = rest_of(pieces, count)
        return ()

    def close(self, *, shutdown: bool = True) -> None:
        """Close it, for whoever sends too; without ``shutdown`` only here: another process goes on with it."""
        with self._sending:
            self.closed = True
            self._unsent.clear()
            if shutdown:
                drain_and_close(self.socket)
            else:
                self.socket.close()
