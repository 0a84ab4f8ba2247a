"""The connections of a gateway to model hosts and leased sessions, in the loop.

A connection is opened in a thread, by the client library: it knows proxies, labs and their encryption. Then the loop
takes its stream over, and neither reads nor sends with a wait. What is sent over one connection in a turn of the loop
goes out in two steps: the first frame at once, the others together at the turn's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from rpcsys.client import answers
from rpcsys.client.connection import open_session
from rpcsys.client.session import Session
from rpcsys.daemon.sockets import READ, WRITE, Sockets
from rpcsys.errors import ProtocolError, RpcsysError, one_line
from rpcsys.gateway.actions import CancelCall, ReplicaPlace, SendCall
from rpcsys.gateway.calls import Outcome
from rpcsys.gateway.outcomes import outcome_of
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.link.tcp import keep_alive
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.checks import integer, partial
from rpcsys.wire.frames import Buffer, Frame

#: Seconds until a connection is open.
OPEN_S = 10.0
#: Frames that are taken from one connection in a turn of the loop.
MOST_AT_ONCE = 256
#: Bytes up to which pieces are joined before they are sent: a copy costs less than a longer list of pieces.
JOINED = 64 << 10
_COUNT = integer(1, 1 << 63)
_WORKERS = partial(workers=_COUNT)
#: A call in a leased session is not stopped with its process, which would end the lease.
_NO_END = b'{"grace_s":null}'


class ConnectionEvents(Protocol):
    """What hears of a connection, by its number."""

    def opened(self, number: int, hello: ReplicaHello | None) -> None:
        """It is open."""

    def announced(self, number: int, hello: ReplicaHello) -> None:
        """A successor has taken it over, and said HELLO."""

    def lost(self, number: int, why: str) -> None:
        """It has ended, or could not be opened."""

    def result(self, number: int, call_id: int, outcome: Outcome) -> None:
        """A CALL is answered."""


class _SocketFull(Exception):
    """The system takes no more."""


def _raise_full() -> NoReturn:
    raise _SocketFull


class ReplicaConnection:
    """Frames from and to one replica. It never blocks: what the socket does not take is kept, and sent later."""

    def __init__(self, number: int, stream: Stream, leased: bool, owner: ReplicaConnections) -> None:
        self.number = number
        self.closed = False
        self.pushed = False  # whether it was sent something in this turn of the loop
        self._stream = stream
        self._descriptor = stream.fileno()
        self._cancel = _NO_END if leased else b""
        self._owner = owner
        self._events = owner.events
        self._unsent: list[Buffer] = []
        self._full = False  # whether the socket takes no more, and is watched for that
        self._why = ""  # the reason that the other end has given
        owner.sockets.add(self._descriptor, self._ready)

    def call(self, action: SendCall) -> None:
        """Send a CALL."""
        self._send(action.template.pieces(action.call_id, action.buffers, action.deadline_ms))

    def cancel(self, action: CancelCall) -> None:
        """Send a CANCEL."""
        self._send(frames.pack(frames.CANCEL, action.call_id, self._cancel))

    def _send(self, pieces: Sequence[Buffer]) -> None:
        if self.pushed or self._full:
            self._unsent += pieces
        else:
            self._push(pieces)
        if not self.pushed:
            self.pushed = True
            self._owner.pushed.append(self)

    def flush(self) -> None:
        """Send what has gathered in this turn of the loop."""
        self.pushed = False
        if self._unsent and not self._full and not self.closed:
            pieces, self._unsent = self._unsent, []
            if len(pieces) > 2 and sum(map(len, pieces)) <= JOINED:
                pieces = [b"".join(pieces)]
            self._push(pieces)

    def _push(self, pieces: Sequence[Buffer]) -> None:
        """Send what the socket takes, and keep the rest before all that is unsent."""
        if self.closed:
            return
        stream = self._stream
        try:
            stream.send(pieces, _raise_full)
        except _SocketFull:
            rest, _ = stream._interrupted_send()
            self._unsent[:0] = rest
            self._watch(full=True)
        except Ended as end:
            self._lose(str(end))
        else:
            self._watch(full=False)

    def _watch(self, *, full: bool) -> None:
        if full is not self._full:
            self._full = full
            self._owner.sockets.expect(self._descriptor, READ | WRITE if full else READ)

    def _ready(self, found: int) -> None:
        if found & WRITE and self._full:
            pieces, self._unsent = self._unsent, []
            self._push(pieces)
        if found & ~WRITE:
            self.receive()

    def receive(self) -> None:
        """Take the frames that have come."""
        stream = self._stream
        try:
            for _ in range(MOST_AT_ONCE):
                if self.closed:
                    return
                frame = stream.next() if stream.unread else None
                if frame is None:
                    frame = stream.receive(DONT_WAIT)
                if frame is None:
                    if not stream.held:
                        return
                    continue
                self._take(frame)
                frame = None  # its body is the receiver's alone
                if not stream.unread and not stream.held:
                    return
        except Ended as end:
            self._lose(str(end))
            return
        except RpcsysError as error:
            self._lose(one_line(error))
            return
        self._owner.loop.call_soon(self.receive)  # the socket does not show what is read already

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.RESULT or (kind == frames.ERROR and frame.call_id):
            self._events.result(self.number, frame.call_id, outcome_of(frame))
        elif kind == frames.ERROR:
            self._why = one_line(answers.error_of(frame))
        elif kind == frames.HELLO:
            self._events.announced(self.number, hello_of(answers.from_device(answers.HELLO, frame.fields(), "itself")))

    def _lose(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._events.lost(self.number, self._why or why)

    def keep_alive(self) -> None:
        """Keep a connection whose other end reads nothing, as long as its machine answers."""
        if self._full:
            keep_alive(self._stream.socket)

    def close(self) -> None:
        """Close it, and say so to the other end. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._unsent = []
        self._owner.sockets.remove(self._descriptor)
        self._owner.forget(self)
        say_goodbye(self._stream)


class ReplicaConnections:
    """All connections, by number. To be made in the event loop."""

    def __init__(self, sockets: Sockets, events: ConnectionEvents) -> None:
        self.sockets = sockets
        self.events = events
        self.loop = asyncio.get_running_loop()
        self.pushed: list[ReplicaConnection] = []
        self._connections: dict[int, ReplicaConnection] = {}
        self._opening: set[int] = set()

    def __len__(self) -> int:
        return len(self._connections)

    def open(self, number: int, open_stream: Callable[[], tuple[Stream, ReplicaHello | None]], name: str) -> None:
        """Open a connection in a thread of its own; its events follow."""
        self._opening.add(number)
        leased = name == LEASING

        def run() -> None:
            stream: Stream | None = None
            hello: ReplicaHello | None = None
            why = ""
            try:
                stream, hello = open_stream()
            except RpcsysError as error:
                why = one_line(error)
            except OSError as error:
                why = error.strerror or str(error)
            try:
                self.loop.call_soon_threadsafe(self._opened, number, stream, hello, leased, why)
            except RuntimeError:  # the loop is closed
                if stream is not None:
                    say_goodbye(stream)

        threading.Thread(target=run, name=name, daemon=True).start()

    def _opened(self, number: int, stream: Stream | None, hello: ReplicaHello | None, leased: bool, why: str) -> None:
        """A thread has opened a connection, or failed."""
        wanted = number in self._opening
        self._opening.discard(number)
        if stream is None:
            if wanted:
                self.events.lost(number, why)
            return
        if not wanted:
            say_goodbye(stream)
            return
        connection = self._connections[number] = ReplicaConnection(number, stream, leased, self)
        self.events.opened(number, hello)
        if stream.unread or stream.held:
            connection.receive()

    def get(self, number: int) -> ReplicaConnection | None:
        """The connection of that number; None for one that has ended meanwhile."""
        return self._connections.get(number)

    def close(self, number: int) -> None:
        """Close a connection, or have none opened."""
        self._opening.discard(number)
        connection = self._connections.get(number)
        if connection is not None:
            connection.close()

    def forget(self, connection: ReplicaConnection) -> None:
        """A connection is closed."""
        self._connections.pop(connection.number, None)

    def flush(self) -> None:
        """Send what has gathered in this turn of the loop."""
        while self.pushed:
            pushed, self.pushed = self.pushed, []
            for connection in pushed:
                connection.flush()

    def keep_alive(self) -> None:
        """To be called every `rpcsys.link.tcp.KEEPALIVE_S`."""
        for connection in self._connections.values():
            connection.keep_alive()

    def close_all(self) -> None:
        """Close all connections, and have none opened."""
        self._opening.clear()
        for connection in list(self._connections.values()):
            connection.close()


#: The names of the threads that open connections.
CONNECTING, LEASING = "rpcsys-connect", "rpcsys-lease"


def open_host(model: str, place: ReplicaPlace) -> tuple[Stream, ReplicaHello]:
    """The stream of a connection to the host of ``model``, and its HELLO. Raises what `open_session` raises."""
    session = open_session((place.host, place.port), place.key, serve=model, timeout=OPEN_S)
    try:
        hello = hello_of(session.info)
    except ProtocolError:
        session.close()
        raise
    return take_over(session), hello


def take_over(session: Session) -> Stream:
    """The stream of a session on which nothing is under way; the session is over."""
    return session._channel.hand_over()


def hello_of(fields: dict[str, object]) -> ReplicaHello:
    """What a model host's HELLO says, of which the client library has checked the rest. Raises `ProtocolError`."""
    about, window = fields.get("serve"), fields.get("window") or {}
    if type(about) is not dict or type(window) is not dict:
        raise ProtocolError("the server's HELLO does not say which module it serves")
    answers.from_device(_WORKERS, about, "itself")
    plain = ReplicaHello()
    return ReplicaHello(
        version=about.get("version", ""),
        kind=about.get("kind", ""),
        inputs=about.get("inputs"),
        outputs=about.get("outputs"),
        workers=about.get("workers", plain.workers),
        calls=window.get("calls", plain.calls),
        size=window.get("bytes", plain.size),
    )


def say_goodbye(stream: Stream) -> None:
    """End a session on purpose, without waiting."""
    with contextlib.suppress(OSError, Ended):
        stream.send_at_once(frames.encode(frames.GOODBYE, 0, {}))
    stream.close()
