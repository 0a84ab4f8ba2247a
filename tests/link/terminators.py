"""A terminator in both roles, with a listener, clients, and sockets that are read to their end."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rpcsys.link import identity, tls
from rpcsys.link.terminator import Terminator
from rpcsys.wire import pinned_keys
from rpcsys.wire.handshake import CLIENT, SERVER, SESSION, Greeting, OpeningReader, Options, encode_greeting

OWN, OTHER = identity.from_seed(b"1" * 32), identity.from_seed(b"2" * 32)
CONTEXT = tls.server_context(OWN)
KEY = pinned_keys.PinnedMatchKey("rpi4", OWN.pin, "5" * 32)
ANSWER = encode_greeting(Greeting(SERVER, "rpi4", Options(session=SESSION)))
OUTER = Greeting(CLIENT, KEY.name)
INNER = Greeting(CLIENT, KEY.text, Options(timeout_s=60.0))
PATIENCE_S = 30.0


class Both:
    """A terminator that accepts at ``address`` for `KEY`.

    ``opened``: greetings and plain sockets of the server's role; ``ended``: its errors; ``dialled``: the client's.
    """

    def __init__(self, **settings: Any) -> None:
        self.terminator = Terminator(**settings)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.expected = [KEY.text]
        self.opened: list[tuple[Greeting, socket.socket]] = []
        self.ended: list[Exception | None] = []
        self.dialled: list[Exception | None] = []

    def accept(self) -> None:
        """Accept a connection, read its outer greeting as a device server does, and serve it."""
        sock = self.incoming()
        reader = OpeningReader()
        self.until(lambda: readable(sock, len(encode_greeting(OUTER))))
        while reader.result is None:
            reader.receive(sock.recv(reader.needed))
        assert reader.result.key == KEY.name
        self.serve(sock)

    def incoming(self) -> socket.socket:
        """The next connection at the listener."""
        self.until(lambda: bool(select.select([self.listener], [], [], 0)[0]))
        sock, _ = self.listener.accept()
        return sock

    def serve(self, sock: socket.socket) -> None:
        self.terminator.serve(sock, CONTEXT, self.expected, ANSWER, self._open, self.ended.append)

    def _open(self, greeting: Greeting, plain: socket.socket) -> None:
        plain.send(ANSWER)
        self.opened.append((greeting, plain))

    def dial(self, key: pinned_keys.PinnedMatchKey = KEY, address: tuple[str, int] | None = None) -> socket.socket:
        """Dial in the client's role; the client's end of the plain connection."""
        ours, theirs = socket.socketpair()
        self.terminator.dial(address or self.address, key, INNER.options, theirs, self.dialled.append)
        return ours

    def session(self) -> tuple[socket.socket, socket.socket]:
        """A session through both roles: the plain ends of client and server, behind the answer to the greeting."""
        client = self.dial()
        self.accept()
        self.until(lambda: bool(self.opened))
        self.until(lambda: readable(client, len(ANSWER)))
        assert client.recv(len(ANSWER)) == ANSWER
        return client, self.opened.pop()[1]

    def until(self, true: Callable[[], bool]) -> None:
        """Serve until something is true."""
        due = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < due
            self.terminator.turn(0.05)

    def fill(self, sending: Sending) -> None:
        """Send until nothing more is taken, because the other end does not read."""
        left = sending.left + 1
        while sending.left < left:
            left = sending.left
            sending.go_on()
            for _ in range(5):
                self.terminator.turn(0.05)
        assert left

    def closed(self) -> None:
        """Serve until no connection is left."""
        self.until(lambda: not len(self.terminator))

    def close(self) -> None:
        self.terminator.close()
        self.listener.close()
        for _, plain in self.opened:
            plain.close()


@contextmanager
def both(**settings: Any) -> Iterator[Both]:
    one = Both(**settings)
    try:
        yield one
    finally:
        one.close()


def readable(sock: socket.socket, count: int) -> bool:
    """Whether so many bytes have arrived."""
    try:
        return len(sock.recv(count, socket.MSG_PEEK | socket.MSG_DONTWAIT)) == count
    except BlockingIOError:
        return False


def at_end(sock: socket.socket) -> bool:
    """Whether the connection has ended, and everything before that was read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Sending:
    """Sends ``data`` without blocking, as far as it is taken."""

    def __init__(self, sock: socket.socket, data: bytes) -> None:
        self._sock, self._rest = sock, memoryview(data)

    @property
    def left(self) -> int:
        """Bytes that are not sent."""
        return len(self._rest)

    def go_on(self) -> bool:
        """Send what is taken now; whether that was the rest."""
        try:
            while self._rest:
                self._rest = self._rest[self._sock.send(self._rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        return not self._rest


class Reading:
    """Reads what arrives, without blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.data, self.ended = sock, bytearray(), False

    def go_on(self) -> int:
        """Read what has arrived; how much that is in all."""
        try:
            while not self.ended:
                data = self._sock.recv(1 << 20, socket.MSG_DONTWAIT)
                self.data += data
                self.ended = not data
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        return len(self.data)
