"""A client's socket in the loop: what is said goes out in order, without a wait, and never in the way of others.

The first that is said to a client in a turn of the loop goes out at once, the rest of it together at the turn's end.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from rpcsys.daemon.sockets import BROKEN, READ, WRITE, Sockets
from rpcsys.link.tcp import KEEPALIVE_S, NO_SIGNAL, keep_alive, tune

#: Bytes of the buffer that all connections receive into, before they know where the bytes belong.
SCRATCH = 64 << 10
#: Bytes up to which pieces are joined before they are sent: a copy costs less than a longer list of pieces.
JOINED = 32 << 10
#: Pieces that the system takes at once.
_MOST_PIECES = 1024
_SWEEP_S = 1.0
_HUNG_UP = select.EPOLLRDHUP


class ClientSocket:
    """One client's connection, non-blocking. ``moved_at``: when bytes moved, or it began to wait for something.

    Its kinds say what to do when it is readable, has sent all (`drained`), has been closed, and how long it may wait.
    """

    __slots__ = ("_gathered", "_over", "_paused", "_unsent", "closed", "crowd", "full", "moved_at", "pushed", "sock")

    def __init__(self, crowd: ClientCrowd, sock: socket.socket) -> None:
        tune(sock)
        self.crowd = crowd
        self.sock = sock
        self.closed = False
        self.pushed = False  # whether something was said in this turn of the loop
        self.moved_at = time.monotonic()
        self.full = False  # whether the socket takes no more, and is watched for that
        self._unsent: list[Any] = []
        self._gathered = 0  # bytes that wait for the end of the turn
        self._paused = self._over = False
        crowd.add(self)

    # -------------------------------------------------------------- of its kinds

    def readable(self) -> None:
        """Bytes have come, or the end of them."""
        raise NotImplementedError

    def drained(self) -> None:
        """The socket was full, and takes more now."""
        raise NotImplementedError

    def ended(self) -> None:
        """The connection is closed, by either side."""
        raise NotImplementedError

    def overdue(self, now: float) -> None:
        """Look whether it has waited too long."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether something for the client is under way."""
        raise NotImplementedError

    # -------------------------------------------------------------- sending

    def say(self, pieces: Sequence[Any]) -> None:
        """Send pieces of bytes, each flat and not empty."""
        if self.closed:
            return
        if self.full:
            self._unsent += pieces
        elif self.pushed:
            self._unsent += pieces
            self._gathered += sum(map(len, pieces))
            if self._gathered > JOINED:
                self.send_now()
        else:
            self._push(pieces)
        if not self.pushed:
            self.pushed = True
            self.crowd.note_pushed(self)

    def flush(self) -> None:
        """The turn of the loop has ended: send what has gathered."""
        self.pushed = False
        self.send_now()

    def send_now(self) -> None:
        """Send what has gathered in this turn of the loop."""
        if self._unsent and not self.full and not self.closed:
            pieces, self._unsent = self._unsent, []
            if len(pieces) > 1 and self._gathered <= 2 * JOINED:
                pieces = [b"".join(pieces)]
            self._gathered = 0
            self._push(pieces)

    def _push(self, pieces: Sequence[Any]) -> None:
        """Send what the socket takes, and keep the rest."""
        try:
            while pieces:
                if len(pieces) == 1:
                    sent = self.sock.send(pieces[0], NO_SIGNAL)
                else:
                    sent = self.sock.sendmsg(pieces[:_MOST_PIECES], (), NO_SIGNAL)
                self.crowd.sent += sent
                pieces = _rest(pieces, sent)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._unsent = list(pieces)
        if bool(pieces) is not self.full:
            self.full = bool(pieces)
            self.moved_at = time.monotonic()
            self._watch()

    # -------------------------------------------------------------- events

    def ready(self, found: int) -> None:
        """The socket is readable, writable, ended or broken."""
        if found & WRITE and self.full:
            pieces, self._unsent = self._unsent, []
            before = self.crowd.sent
            self._push(pieces)
            if self.crowd.sent != before:
                self.moved_at = time.monotonic()
            self._took()
        if self.closed:
            return
        if (found & BROKEN and (self._paused or self._over)) or (self._paused and found & _HUNG_UP):
            self.close()
        elif found & (READ | BROKEN):
            self.readable()

    def _took(self) -> None:
        """The socket has taken something."""
        if not self.full and not self.closed:
            self.drained()

    def pause(self, paused: bool) -> None:
        """Read nothing more, or read on. A client that hangs up is noticed all the same."""
        if paused is not self._paused:
            self._paused = paused
            if not self.closed:
                self._watch()

    def read_no_more(self) -> None:
        """The client has sent its last byte."""
        self._over = True
        self._watch()

    def _watch(self) -> None:
        reading = 0 if self._over else _HUNG_UP if self._paused else READ
        wanted = reading | (WRITE if self.full else 0)
        self.crowd.sockets.expect(self.sock.fileno(), wanted)

    def close(self) -> None:
        """Close it. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self._unsent = []
            self.crowd.remove(self)
            self.sock.close()
            self.ended()


def _rest(pieces: Sequence[Any], sent: int) -> Sequence[Any]:
    """What is left of pieces of which so many bytes are sent."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return ()


class ClientCrowd:
    """All clients' connections, and what they share. To be made in the event loop.

    ``scratch``: where all receive before they know where the bytes belong; nothing stays in it. ``received`` and
    ``sent``: bytes.
    """

    def __init__(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self.scratch = bytearray(SCRATCH)
        self.scratch_view = memoryview(self.scratch)
        self.received = self.sent = self.accepted = 0
        self._connections: dict[ClientSocket, None] = {}
        self._pushed: list[ClientSocket] = []
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        self._keeper = self._loop.call_later(KEEPALIVE_S, self._keep_alive)

    def __len__(self) -> int:
        return len(self._connections)

    def all(self) -> list[ClientSocket]:
        """The connections that are open."""
        return list(self._connections)

    def add(self, connection: ClientSocket) -> None:
        """Watch a new connection."""
        self.accepted += 1
        self._connections[connection] = None
        self.sockets.add(connection.sock.fileno(), connection.ready)

    def remove(self, connection: ClientSocket) -> None:
        """A connection is about to be closed."""
        del self._connections[connection]
        self.sockets.remove(connection.sock.fileno())

    def note_pushed(self, connection: ClientSocket) -> None:
        """Something was said on a connection in this turn: it is flushed soon, at the latest by the loop."""
        if not self._pushed:
            self._loop.call_soon(self.flush)
        self._pushed.append(connection)

    def flush(self) -> None:
        """The turn of the loop has ended."""
        while self._pushed:
            pushed, self._pushed = self._pushed, []
            for connection in pushed:
                connection.flush()

    def close(self) -> None:
        """Close all."""
        self._sweeper.cancel()
        self._keeper.cancel()
        for connection in self.all():
            connection.close()

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        now = time.monotonic()
        for connection in self.all():
            connection.overdue(now)

    def _keep_alive(self) -> None:
        self._keeper = self._loop.call_later(KEEPALIVE_S, self._keep_alive)
        for connection in self._connections:
            if connection.full:
                keep_alive(connection.sock)
