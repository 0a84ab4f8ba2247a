"""The server's connections that wait at its proxies until a client gets them.

The server dials, sends the greeting ``server:KEY`` and waits. The answer is a client's greeting. The server reads no
byte beyond it: the rest belongs to the session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from selectors import EVENT_WRITE

from rpcsys.errors import ProtocolError
from rpcsys.link.backoff import jitter
from rpcsys.link.dialling import Dialling
from rpcsys.link.tcp import NO_SIGNAL
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import READ, WRITE, Loop
from rpcsys.server.supervisor.parking import DUPLICATE, LOST, MISMATCH
from rpcsys.wire.handshake import SERVER, SESSION, AnswerReader, Greeting, HandshakeAnswer, Options, encode_greeting
from rpcsys.wire.pinned_keys import public_name

_REFUSALS = {
    DUPLICATE: "it has a server of this key already: another board, which needs another --key, or this one's "
    "last connections, whose end it has not noticed yet",
    MISMATCH: "it waited for a client too long, or does not take this key",
}


class ProxyConnections:
    """Connections by the state's numbers.

    ``adopt(socket, rpcsys)`` takes over a client's socket (``rpcsys``: it speaks rpcsys/1); the connection's number.
    """

    def __init__(
        self, loop: Loop, proxies: Sequence[tuple[str, int]], adopt: Callable[[socket.socket, bool], int]
    ) -> None:
        self._loop = loop
        self._proxies = proxies
        self._adopt = adopt
        self._connections: dict[int, _ProxyConnection] = {}
        self.identity = os.urandom(8).hex()

    def park(self, number: int, proxy: int, key: str, offered: bool) -> None:
        """Dial a proxy. ``Parked`` and then ``Opened`` follow, or ``Unparked``."""
        options = Options(session=SESSION, server=self.identity, offered=offered)
        try:
            greeting = encode_greeting(Greeting(SERVER, public_name(key), options))
            connection = _ProxyConnection(self._loop, self._proxies[proxy], greeting)
        except OSError as error:  # no descriptors left
            self._lost(number, LOST, error.strerror or str(error))
            return
        self._connections[number] = connection
        connection.watch(lambda: self._dial(number, connection))

    def unpark(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.close()

    def _dial(self, number: int, connection: _ProxyConnection) -> None:
        try:
            connected = connection.dial()
        except OSError as error:
            self._lost(number, LOST, error.strerror or str(error))
            return
        if connected:
            connection.watch(lambda: self._read(number, connection))
            self._loop.post(ev.Parked, number)
        else:
            connection.watch(lambda: self._dial(number, connection))

    def _read(self, number: int, connection: _ProxyConnection) -> None:
        try:
            answer = connection.read()
        except BlockingIOError:
            if connection.heard:
                self._loop.post(ev.Answering, number)
            return
        except (ProtocolError, OSError) as error:
            self._lost(number, LOST, getattr(error, "strerror", None) or str(error))
            return
        if answer.greeting is None:
            self._lost(number, answer.code, _REFUSALS[answer.code])
            return
        self._pair(number, connection, answer.greeting)

    def _pair(self, number: int, connection: _ProxyConnection, greeting: Greeting) -> None:
        del self._connections[number]
        opts = greeting.options
        conn = self._adopt(connection.hand_over(), opts.session is not None)
        peer = "a client through {}:{}".format(*connection.address)
        key, timeout_s = greeting.key, opts.timeout_s
        self._loop.post(ev.Opened, conn, peer, greeting.role, key, opts.session, opts.serve, timeout_s, parked=number)

    def _lost(self, number: int, how: str, why: str) -> None:
        self.unpark(number)
        self._loop.post(ev.Unparked, number, how, why, jitter())


class _ProxyConnection:
    """One connection to a proxy: dialling, then waiting."""

    def __init__(self, loop: Loop, address: tuple[str, int], greeting: bytes) -> None:
        self.address = address
        self.heard = False
        self._loop = loop
        self._dialling = Dialling(*address)
        self._greeting = greeting
        self._reader = AnswerReader()
        self._sock: socket.socket | None = None
        self._watched: int | None = None

    def watch(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, in place of any earlier one, when the connection's descriptor is ready."""
        self._forget()
        if self._sock is not None:
            self._watched, events = self._sock.fileno(), READ
        else:
            self._watched, wanted = self._dialling.awaited
            events = WRITE if wanted == EVENT_WRITE else READ
        self._loop.add(self._watched, callback, events)

    def dial(self) -> bool:
        """Do the next step; whether it is connected and its greeting is sent. Raises OSError on failure."""
        self._forget()  # the step may close the descriptor
        self._sock = self._dialling.advance()
        if self._sock is None:
            return False
        if self._sock.send(self._greeting, NO_SIGNAL) < len(self._greeting):
            raise OSError("it takes nothing")
        return True

    def read(self) -> HandshakeAnswer:
        """The answer. Raises BlockingIOError while it is incomplete, OSError for a lost connection, ProtocolError."""
        assert self._sock is not None
        while True:
            data = self._sock.recv(self._reader.needed)
            if not data:
                raise OSError("it closed the connection")
            self.heard = True
            answer = self._reader.receive(data)
            if answer is not None:
                return answer

    def hand_over(self) -> socket.socket:
        """The socket, which the caller owns from now on."""
        assert self._sock is not None
        self._forget()
        return self._sock

    def close(self) -> None:
        self._forget()
        self._dialling.close()
        if self._sock is not None:
            self._sock.close()

    def _forget(self) -> None:
        if self._watched is not None:
            self._loop.remove(self._watched)
            self._watched = None
