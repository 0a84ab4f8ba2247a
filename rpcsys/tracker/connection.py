"""One connection of the tracker: bytes to frames, replies to bytes, and the limits of a peer."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from rpcsys.daemon import acceptor
from rpcsys.daemon.sockets import BROKEN, READ, WRITE, Sockets
from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.link.tcp import acknowledge_at_once
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.heartbeats import ASKED
from rpcsys.tracker.views.metrics import FrameCounts
from rpcsys.tracker.views.summary import MAX_CHARACTERS
from rpcsys.wire.control import Answer
from rpcsys.wire.first_bytes import TRACKER, OtherProtocol, answer
from rpcsys.wire.tracker import FAIL, MAGIC_BYTES, MAX_FRAME, SUCCESS, TrackerFrameReader, encode

log = logging.getLogger(__name__)

RECEIVED = 16 << 10  # bytes of one read: many frames, and small enough for the interpreter's own allocator
BURST = 64  # frames of one connection that are handled before the other connections' frames
LENGTH_BYTES = 4
#: How long a magic or a frame may stay incomplete, and how long a peer may read nothing. The connection is then
#: dropped, within 10 s in all.
SILENCE_S = 8.0
#: With HIGH_WATER bytes unsent, the peer's frames are no longer read; with LOW_WATER, they are read again.
HIGH_WATER = 256 << 10
LOW_WATER = HIGH_WATER // 4
#: With so many bytes unsent, the connection is dropped: other peers' events still add messages while it is not read.
MAX_UNSENT = 4 << 20
MAX_TVM_REPLY = MAX_CHARACTERS  # bytes of a reply to TVM's client, which reads replies of any length
_SUCCESS, _ASKED = encode(SUCCESS), encode(ASKED)


class PeerLimit:
    """At most ``limit`` connections of each address. Trusted proxies are exempt, as they have limits of their own."""

    def __init__(self, limit: int, proxies: ProxyNetworks, clock: Callable[[], float]) -> None:
        self._proxies = proxies
        self._clock = clock
        advice = "see what runs there, or start the tracker with a higher --max-connections-per-address"
        self._counted = acceptor.ConnectionLimit(limit, None, log, advice)

    def admit(self, address: str, local: str) -> bool:
        """Admit and count a connection. False: the limit is reached, which is logged now and then."""
        return self._proxies.include(address, local) or self._counted.admit(address, self._clock())

    def leave(self, address: str, local: str) -> None:
        """Count the end of an admitted connection."""
        if not self._proxies.include(address, local):
            self._counted.leave(address)


class Owner(Protocol):
    """What a connection needs of its service."""

    loop: asyncio.AbstractEventLoop
    sockets: Sockets
    admission: PeerLimit
    counts: FrameCounts
    open_connections: dict[PeerConnection, None]
    heard: tuple[list[PeerConnection], list[PeerConnection]]  # clients, and servers, with frames to handle
    unsent: list[PeerConnection]  # connections with bytes to send

    def greeted(self, connection: PeerConnection) -> int:
        """The peer has sent the magic; return the connection's number."""

    def received(self, connection: PeerConnection, frame: bytes) -> None:
        """A frame has arrived."""

    def flush(self) -> None:
        """Send what is unsent on all connections."""

    def lost(self, connection: PeerConnection) -> None:
        """The connection has ended."""


class PeerConnection:
    """A connection of a client or a server."""

    __slots__ = (
        *("_acknowledged", "_again", "_blocked", "_closing", "_ended", "_reader", "_service", "_sock"),
        *("_stuck_since", "_unsent", "_waiting_since", "_wanted", "address", "local", "number", "serves"),
    )

    def __init__(self, service: Owner, sock: socket.socket, address: str, local: str) -> None:
        self.address = address
        self.local = local
        self.number = 0  # its number in the state, 0 before the magic
        self.serves = False  # whether the peer has made offers
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
        """Whether so much is unsent that the peer's frames are not read."""
        return self._stuck_since is not None

    # Frames.

    def ready(self, found: int) -> None:
        """Handle what the socket is ready for: READ, WRITE, BROKEN."""
        if found & WRITE:
            self._blocked = False
            self.flush()
        if found & READ and self._wanted & READ:
            self._receive()
        elif found & BROKEN:
            self._end()

    def _receive(self) -> None:
        """Read once, and a second time after half a message.

        TVM's clients send the second half only when the first is acknowledged (two small writes, Nagle on). On one
        machine it is there at once. A whole message needs no acknowledgement but our reply.
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
        """Handle at most `BURST` frames of what has been read, and then the end of the stream if it has come."""
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
            if isinstance(error, OtherProtocol):
                self.send(answer(TRACKER, error.kind))
            self._service.flush()
            self.drop(str(error), politely=True)
            return
        if not drained:  # the other connections' frames come first
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
        """Queue a message, or raw bytes, for the next flush. Does nothing on a connection that is closing."""
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
        """Write as much as the kernel takes; the rest follows when the socket is writable again."""
        unsent = self._unsent
        if unsent and not self._blocked:
            try:
                del unsent[: self._sock.send(unsent)]
            except BlockingIOError:
                pass
            except OSError:
                unsent.clear()  # the stream is broken; the loop reports it as BROKEN
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
        """Drop the connection if a frame stays incomplete, or the peer reads nothing, for `SILENCE_S`."""
        if self._stuck_since is not None and now - self._stuck_since > SILENCE_S:
            self.drop("it does not read what it is sent")
        elif self._waiting_since is not None and now - self._waiting_since > SILENCE_S:
            self.drop(f"it sent part of a message, and no more for {SILENCE_S:g} s")

    def drop(self, reason: str, *, politely: bool = False) -> None:
        """End the connection; ``politely``: after everything unsent is sent. The state sees its end at once."""
        log.info("connection from %s dropped: %s", self.address, reason, extra={"stranger": self.address})
        if politely:
            self._service.lost(self)
            self.close()
        else:
            self._end()

    def close(self) -> None:
        """End the connection, after everything unsent is sent."""
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
