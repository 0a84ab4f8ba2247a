"""One connection of the tracker: bytes to frames, replies to bytes, and what keeps a bad peer in bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from rpcsys.daemon import acceptor
from rpcsys.daemon.sockets import BROKEN, READ, WRITE, Sockets
from rpcsys.errors import ProtocolError
from rpcsys.link import acknowledge_at_once
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.wire.tracker import TrackerFrameReader

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


class PeerLimit:
    """At most ``limit`` connections of each address, since each costs a descriptor and what is told over it.

    Proxies that are believed, and this machine where none is named, count for nobody: they have limits of their own.
    """

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
    strangers: dict[PeerConnection, None]
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
        *(
            "_acknowledged",
            "_again",
            "_closing",
            "_ended",
            "_out",
            "_out_bytes",
            "_reader",
            "_rest",
            "_service",
            "_sock",
        ),
        *("_stuck_since", "_waiting_since", "_wanted", "address", "local", "number", "serves"),
    )

    def __init__(self, service: Owner, sock: socket.socket, address: str, local: str) -> None:
        self.address = address
        self.local = local
        self.number = 0  # what the state calls it, once the magic was said
        self.serves = False  # whether it has made offers
        self._service = service
        self._sock = sock
        self._reader = TrackerFrameReader()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._rest = bytearray()
        self._wanted = READ
        self._acknowledged = self._again = self._closing = self._ended = False
        self._waiting_since: float | None = service.loop.time()
        self._stuck_since: float | None = None
        service.sockets.add(sock.fileno(), self.ready)
        service.strangers[self] = None

    @property
    def stuck(self) -> bool:
        """Whether so much is unsent that the peer's own frames are left unread."""
        return self._stuck_since is not None

    # Frames.

    def ready(self, found: int) -> None:
        """Something is so of the socket."""
        if found & WRITE:
            self._send_rest()
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
        if self._closing:
            return
        try:
            drained = self._handle_frames()
        except ProtocolError as error:
            self.flush()
            self.drop(str(error), politely=True)
            return
        if not drained:  # others have their turn
            self._again = True
            self._expect()
            self._service.loop.call_soon(self._continue)
        elif self._ended:
            self._service.lost(self)
            self.close()
        elif not self._reader.partial:
            self._waiting_since = None
        else:
            self._note_half()

    def _note_half(self) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._service.loop.time()
        if not self._acknowledged:
            self._acknowledged = True
            acknowledge_at_once(self._sock)

    def _handle_frames(self) -> bool:
        """Whether nothing is left to handle, or nothing will be."""
        for _ in range(BURST):
            if self._stuck_since is not None:
                return False
            frame = self._reader.next()
            if not self.number and not self._reader.magic_due:
                self._service.strangers.pop(self, None)
                self.number = self._service.greeted(self)
            if frame is None:
                return True
            self._service.received(self, frame)
            if self._closing or not self._reader.partial:
                return True
        return False

    def _continue(self) -> None:
        if self._again and self._stuck_since is None and not self._closing:
            self._again = False
            self._expect()
            self.work()
            self._service.flush()

    def _expect(self) -> None:
        """Have the socket watched for what is wanted of it now."""
        reading = not (self._again or self._closing or self._stuck_since is not None)
        wanted = (READ if reading else 0) | (WRITE if self._rest else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._service.sockets.expect(self._sock.fileno(), wanted)

    # Replies.

    def queue(self, data: bytes) -> None:
        """Send ``data`` with the next flush."""
        if not self._out:
            self._service.unsent.append(self)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > HIGH_WATER:
            self.flush()

    def flush(self) -> None:
        """Write what is queued, in one piece."""
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if self._closing:
            return
        sent = 0 if self._rest else self._sent(data)
        if sent < len(data):
            self._rest += data[sent:]
            self._note_unsent()

    def _sent(self, data: bytes | bytearray) -> int:
        """How many bytes of it the kernel took."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # nobody will ever read it; that the socket is broken is told soon

    def _send_rest(self) -> None:
        del self._rest[: self._sent(self._rest)]
        if self._closing and not self._rest:
            self._shut()
            return
        if self._stuck_since is not None and len(self._rest) <= LOW_WATER:
            self._stuck_since = None
            self._service.loop.call_soon(self._continue)
        self._expect()

    def _note_unsent(self) -> None:
        if self._stuck_since is None and len(self._rest) > HIGH_WATER:
            self._stuck_since = self._service.loop.time()
        self._expect()
        if len(self._rest) > MAX_UNSENT:
            self.drop("it does not read what it is sent")

    # Ends.

    def look(self, now: float) -> None:
        """Drop the connection if it was silent too long in the middle of something."""
        if self._stuck_since is not None and now - self._stuck_since > SILENCE_S:
            self.drop("it does not read what it is sent")
        elif self._waiting_since is not None and now - self._waiting_since > SILENCE_S:
            self.drop("it began something and fell silent")

    def drop(self, reason: str, *, politely: bool = False) -> None:
        """End the connection, ``politely`` after what was to be sent. For the state it is gone at once."""
        stranger = {"stranger": self.address}
        log.info("connection from %s dropped: %s", self.address, reason, extra=stranger)
        if politely:
            self._service.lost(self)
            self.close()
        else:
            self._end()

    def close(self) -> None:
        """End the connection, after what was to be sent."""
        if not self._rest:
            self._shut()
        elif not self._closing:
            self._closing = True
            self._expect()
            self._service.strangers[self] = None  # so that `look` ends it if the peer does not read
            self._waiting_since = self._service.loop.time()

    def _end(self) -> None:
        self._service.lost(self)
        self._shut()

    def _shut(self) -> None:
        self._closing = True
        self._wanted = 0
        self._rest.clear()
        self._service.strangers.pop(self, None)
        if self._sock.fileno() >= 0:
            self._service.sockets.remove(self._sock.fileno())
            self._sock.close()
            self._service.admission.leave(self.address, self.local)
