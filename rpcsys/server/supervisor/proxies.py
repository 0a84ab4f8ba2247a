"""The server's connections that wait at its proxies, until one of them is a client's.

They are dialled, say ``server:KEY``, and wait; the answer to that is the greeting of a client. Not a byte beyond it is
read: what stands behind belongs to the session.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from selectors import EVENT_WRITE
from socket import MSG_NOSIGNAL

from rpcsys.errors import ProtocolError
from rpcsys.link import Dialling
from rpcsys.link.backoff import jitter
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor import parking
from rpcsys.server.supervisor.loop import READ, WRITE, Loop
from rpcsys.wire.handshake import SERVER, SESSION, AnswerReader, Greeting, HandshakeAnswer, Options, encode_greeting

_REFUSALS = {
    parking.DUPLICATE: "it has a server of this key already: another board, which needs another --key, or this one's "
    "last connections, whose end it has not noticed yet",
    parking.MISMATCH: "it waited for a client too long, or does not take this key",
}


class Places:
    """Places by the numbers that the state gives them. What happens is told to ``feed``, with ``now`` from ``clock``.

    ``adopt`` takes the socket of a client, and whether it speaks rpcsys/1, and returns its connection's number.
    """

    def __init__(
        self,
        loop: Loop,
        proxies: Sequence[tuple[str, int]],
        adopt: Callable[[socket.socket, bool], int],
        feed: Callable[[ev.Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._proxies = proxies
        self._adopt = adopt
        self._feed = feed
        self._clock = clock
        self._places: dict[int, _Place] = {}
        self.identity = os.urandom(8).hex()

    def park(self, action: parking.Park) -> None:
        """Dial a proxy, for `Parked` and then `Paired`, or for `Unparked`."""
        options = Options(session=SESSION, server=self.identity, offered=action.offered)
        greeting = encode_greeting(Greeting(SERVER, action.key, options))
        try:
            place = _Place(self._loop, self._proxies[action.proxy], greeting)
        except OSError as error:  # no descriptors left
            self._lost(action.place, parking.LOST, error.strerror or str(error))
            return
        self._places[action.place] = place
        place.watch(lambda: self._dial(action.place, place))

    def unpark(self, number: int) -> None:
        """Close a place; nothing more is heard of it."""
        place = self._places.pop(number, None)
        if place is not None:
            place.close()

    def _dial(self, number: int, place: _Place) -> None:
        try:
            connected = place.dial()
        except OSError as error:
            self._lost(number, parking.LOST, error.strerror or str(error))
            return
        if connected:
            place.watch(lambda: self._read(number, place))
            self._feed(parking.Parked(self._clock(), number))
        else:
            place.watch(lambda: self._dial(number, place))

    def _read(self, number: int, place: _Place) -> None:
        try:
            answer = place.read()
        except BlockingIOError:
            if place.heard:
                self._feed(parking.Answering(self._clock(), number))
            return
        except ProtocolError as error:
            self._lost(number, parking.LOST, str(error))
            return
        except OSError as error:
            self._lost(number, parking.LOST, error.strerror or str(error))
            return
        if answer.greeting is None:
            self._lost(number, answer.code, _REFUSALS[answer.code])
            return
        self._pair(number, place, answer.greeting)

    def _pair(self, number: int, place: _Place, greeting: Greeting) -> None:
        del self._places[number]
        said = greeting.options
        conn = self._adopt(place.hand_over(), said.session is not None)
        peer = "a client through {}:{}".format(*place.address)
        self._feed(
            parking.Paired(
                self._clock(), number, conn, peer, greeting.role, greeting.key, said.session, said.serve, said.timeout_s
            )
        )

    def _lost(self, number: int, how: str, why: str) -> None:
        self.unpark(number)
        self._feed(parking.Unparked(self._clock(), number, how, why, jitter()))


class _Place:
    """One connection: first on its way, then waiting."""

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
        """Have this called, and nothing else, when there is something to do."""
        self._forget()
        if self._sock is not None:
            self._watched, events = self._sock.fileno(), READ
        else:
            self._watched, wanted = self._dialling.awaited
            events = WRITE if wanted == EVENT_WRITE else READ
        self._loop.add(self._watched, callback, events)

    def dial(self) -> bool:
        """Do the next step; whether it is connected and its greeting is out. Raises OSError if that cannot be."""
        self._forget()  # the step may close the descriptor
        self._sock = self._dialling.advance()
        if self._sock is None:
            return False
        if self._sock.send(self._greeting, MSG_NOSIGNAL) < len(self._greeting):
            raise OSError("it takes nothing")
        return True

    def read(self) -> HandshakeAnswer:
        """The answer. Raises BlockingIOError while it is not whole, OSError when there will be none, ProtocolError."""
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
        """The socket, which is another's from now on."""
        assert self._sock is not None
        self._forget()
        return self._sock

    def close(self) -> None:
        """Close it, whatever it has come to."""
        self._forget()
        self._dialling.close()
        if self._sock is not None:
            self._sock.close()

    def _forget(self) -> None:
        if self._watched is not None:
            self._loop.remove(self._watched)
            self._watched = None
