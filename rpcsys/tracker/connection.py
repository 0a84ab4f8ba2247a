"""One connection of the tracker: bytes to frames, replies to bytes, and what keeps a bad peer in bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from rpcsys.daemon import acceptor
from rpcsys.daemon.sockets import BROKEN, READ, WRITE, Sockets
from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.link import acknowledge_at_once
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.heartbeats import ASKED
from rpcsys.tracker.views.metrics import FrameCounts
from rpcsys.tracker.views.summary import MAX_CHARACTERS
from rpcsys.wire.control import Answer
from rpcsys.wire.tracker import FAIL, MAGIC_BYTES, MAX_FRAME, SUCCESS, TrackerFrameReader, encode

log = logging.getLogger(__name__)

RECEIVED = 16 << 10  # bytes read at a time: many frames, and little enough for the interpreter's own memory
BURST = 64  # frames of one connection handled in a row before the others have their turn
LENGTH_BYTES = 4
#: A magic or a frame that was begun must be whole after so long, so that it is dropped within 10 s; and a peer that reads
#: nothing of what it was sent has so long, too.
SILENCE_S = 8.0
#: Bytes unsent at which a peer's own frames are left unread, and at which they are read again.
HIGH_WATER = 256 << 10
LOW_WATER = HIGH_WATER // 4
#: Bytes unsent at which it is dropped: others' actions can make messages for it even while it is not read.
MAX_UNSENT = 4 << 20
MAX_TVM_REPLY = MAX_CHARACTERS  # bytes of a reply to TVM's client, which reads any length
_SUCCESS, _ASKED = encode(SUCCESS), encode(ASKED)


class PeerLimit:
    """At most ``limit`` connections of each address, but those of proxies that are believed, which have limits too."""

    def __init__(self, limit: int, proxies: ProxyNetworks, clock: Callable[[], float]) -> None:
        self._proxies = proxies
        self._clock = clock
        advice = "see what runs there, or start the tracker with a higher --max-connections-per-address"
        self._counted = acceptor.ConnectionLimit(limit, None, log, advice)

    def admit(self, address: str, local: str) -> bool:
        """Whether one more may come, which is then counted. It is logged now and then that one may not."""
        return self._proxies.include(address, local) or self._counted.admit(address, self._clock())

    def leave(self, address: str, local: str) -> None:
        """One that was admitted has gone."""
        if not self._proxies.include(address, local):
            self._counted.leave(address)


class Owner(Protocol):
    """What a connection needs of the service that has it."""

    loop: asyncio.AbstractEventLoop
    sockets: Sockets
    admission: PeerLimit
    counts: FrameCounts
    open_connections: dict[PeerConnection, None]
    heard: tuple[list[PeerConnection], list[PeerConnection]]  # clients, and servers, that have been read from
    unsent: list[PeerConnection]  # those that have something to send

    def greeted(self, connection: PeerConnection) -> int:
        """It has said the magic; its number."""

    def received(self, connection: PeerConnection, frame: bytes) -> None:
        """It has received a frame."""

    def flush(self) -> None:
        """Send what all have to send."""

    def lost(self, connection: PeerConnection) -> None:
        """It is gone."""


class PeerConnection:
    """A connection of a client or a server."""

    __slots__ = (
        *("_acknowledged", "_again", "_blocked", "_closing", "_ended", "_reader", "_service", "_sock"),
        *("_stuck_since", "_unsent", "_waiting_since", "_wanted", "address", "local", "number", "serves"),
    )

    def __init__(self, service: Owner, sock: socket.socket, address: str, local: str) -> None:
        self.address = address
        self.local = local
        self.number = 0  # what the state calls it, once the magic was said
        self.serves = False  # whether it has made offers
        self._service = service
        self._sock = sock
        self._reader = TrackerFrameReader()
        self._unsent = bytearray()
        self._wanted = READ
        self._blocked = False  # whether the kernel takes nothing more for now
        self._acknowledged = self._again = self._closing = self._ended = False
        self._waiting_since: float | None = service.loop.time()
        self._stuck_since: float | None = None
        service.sockets.add(sock.fileno(), self.ready)
        service.open_connections[self] = None

    @property
    def stuck(self) -> bool:
        """Whether so much is unsent that the peer's own frames are left unread."""
        return self._stuck_since is not None

    # Frames.

    def ready(self, found: int) -> None:
        """Something is so of the socket."""
        if found & WRITE:
            self._blocked = False
            self.flush()
        if found & READ and self._wanted & READ:
            self._receive()
        elif found & BROKEN:
            self._end()

    def _receive(self) -> None:
        """Read what has come; once more if it was half a message and has brought the rest.

        TVM's clients send the rest only when the first half is acknowledged (two small writes, Nagle on), and to a
        client on this machine that happens at once. Of a whole message our reply is the acknowledgement.
        """
        for _ in range(2):
            try:
                data = self._sock.recv(RECEIVED)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._ended = not data
            self._reader.feed(data)
            self._acknowledged = len(data) == LENGTH_BYTES
            if not self._acknowledged:
                break
            acknowledge_at_once(self._sock)
        self._service.heard[self.serves].append(self)

    def work(self) -> None:
        """Handle what has been read, in bounds, and the end when it has come to that."""
        reader, drained = self._reader, False
        try:
            for _ in range(BURST):
                if self._closing:
                    return
                if drained or self._stuck_since is not None:
                    break
                frame = reader.next()
                if not self.number and not reader.magic_due:
                    self.number = self._service.greeted(self)
                if frame is not None:
                    self._service.received(self, frame)
                drained = frame is None or not reader.partial
        except ProtocolError as error:
            self._service.flush()
            self.drop(str(error), politely=True)
            return
        if not drained:  # others have their turn
            self._again = True
            self._expect()
            self._service.loop.call_soon(self._continue)
        elif self._ended:
            self._service.lost(self)
            self.close()
        elif not reader.partial:
            self._waiting_since = None
        else:
            self._await_rest()

    def _await_rest(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._service.loop.time()
        if not self._acknowledged:
            self._acknowledged = True
            acknowledge_at_once(self._sock)

    def _continue(self) -> None:
        if self._again and self._stuck_since is None and not self._closing:
            self._again = False
            self._expect()
            self.work()
            self._service.flush()

    def _expect(self) -> None:
        reading = not (self._again or self._closing or self._stuck_since is not None)
        wanted = (READ if reading else 0) | (WRITE if self._blocked else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._service.sockets.expect(self._sock.fileno(), wanted)

    # Replies.

    def send(self, message: Any) -> None:
        """Send a message, or bytes as they are, with the next flush; nothing after the end."""
        if self._closing:
            return
        self._service.counts.frames_out += message is not MAGIC_BYTES
        if type(message) is bytes:
            data = message
        elif message == SUCCESS:
            data = _SUCCESS
        elif message is ASKED:
            data = _ASKED
        else:
            try:
                data = encode(message, MAX_FRAME if type(message) is dict else MAX_TVM_REPLY)
            except LimitExceeded as problem:
                data = encode(_too_long(message, problem))
        if not self._unsent:
            self._service.unsent.append(self)
        self._unsent += data
        if len(self._unsent) > HIGH_WATER:
            self.flush()

    def flush(self) -> None:
        """Write what is unsent, as far as the kernel takes it; the rest when it takes more."""
        unsent = self._unsent
        if unsent and not self._blocked:
            try:
                del unsent[: self._sock.send(unsent)]
            except BlockingIOError:
                pass
            except OSError:
                unsent.clear()  # nobody will ever read it; that the socket is broken is told soon
        if unsent or self._wanted & WRITE:
            self._note_unsent()

    def _note_unsent(self) -> None:
        self._blocked = bool(self._unsent)
        if self._closing and not self._unsent:
            self._shut()
            return
        if self._stuck_since is None and len(self._unsent) > HIGH_WATER:
            self._stuck_since = self._service.loop.time()
        elif self._stuck_since is not None and len(self._unsent) <= LOW_WATER:
            self._stuck_since = None
            self._service.loop.call_soon(self._continue)
        self._expect()
        if len(self._unsent) > MAX_UNSENT:
            self.drop("it does not read what it is sent")

    # Ends.

    def end_if_silent(self, now: float) -> None:
        """Drop the connection if it was silent too long in the middle of something."""
        if self._stuck_since is not None and now - self._stuck_since > SILENCE_S:
            self.drop("it does not read what it is sent")
        elif self._waiting_since is not None and now - self._waiting_since > SILENCE_S:
            self.drop("it began something and fell silent")

    def drop(self, reason: str, *, politely: bool = False) -> None:
        """End the connection, ``politely`` after what was to be sent. For the state it is gone at once."""
        log.info("connection from %s dropped: %s", self.address, reason, extra={"stranger": self.address})
        if politely:
            self._service.lost(self)
            self.close()
        else:
            self._end()

    def close(self) -> None:
        """End the connection, after what was to be sent."""
        self.flush()
        if not self._unsent:
            self._shut()
        elif not self._closing:
            self._closing = True
            self._expect()
            self._waiting_since = self._service.loop.time()  # so that it ends if the peer does not read

    def _end(self) -> None:
        self._service.lost(self)
        self._shut()

    def _shut(self) -> None:
        self._closing = True
        self._wanted = 0
        self._unsent.clear()
        if self in self._service.open_connections:
            del self._service.open_connections[self]
            self._service.sockets.remove(self._sock.fileno())
            self._sock.close()
            self._service.admission.leave(self.address, self.local)


def _too_long(message: Any, problem: LimitExceeded) -> Any:
    if isinstance(message, dict) and "id" in message:
        return Answer(message["id"], False, "TooLong", str(problem)).to_json()
    return [FAIL, str(problem)]
