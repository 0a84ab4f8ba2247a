"""One connection of the tracker: bytes to frames, replies to bytes, and the limits of a peer."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpcsys.daemon.sockets import BROKEN, READ, WRITE
from rpcsys.errors import LimitExceeded, NoTls, ProtocolError
from rpcsys.link.tcp import acknowledge_at_once
from rpcsys.tracker.heartbeats import ASKED
from rpcsys.tracker.owner import Owner
from rpcsys.tracker.views.summary import MAX_CHARACTERS
from rpcsys.wire.control import Answer
from rpcsys.wire.first_bytes import TRACKER, OtherProtocol, answer
from rpcsys.wire.tracker import FAIL, MAGIC_BYTES, MAX_FRAME, SUCCESS, TrackerFrameReader, encode

if TYPE_CHECKING:
    from rpcsys.link.tls import Tunnel
    from rpcsys.tracker.strangers import LabOfPeers

log = logging.getLogger(__name__)

RECEIVED = 16 << 10  # bytes of one read: many frames, and small enough for the interpreter's own allocator
BURST = 64  # frames of one connection that are handled before the other connections' frames
LENGTH_BYTES = 4
MAX_STRANGERS_FRAME = 4096  # bytes of a frame of a peer that has not said yet who it is
#: How long a magic or a frame may stay incomplete, and how long a peer may read nothing. The connection is then
#: dropped, within 10 s in all.
SILENCE_S = 8.0
#: How long a peer whose network is not served stays connected, and how often it is told: TVM's client tries five times.
REFUSED_S, MAX_REFUSED = 10.0, 20
#: With HIGH_WATER bytes unsent, the peer's frames are no longer read; with LOW_WATER, they are read again.
HIGH_WATER = 256 << 10
LOW_WATER = HIGH_WATER // 4
#: With so many bytes unsent, the connection is dropped: other peers' events still add messages while it is not read.
MAX_UNSENT = 4 << 20
MAX_TVM_REPLY = MAX_CHARACTERS  # bytes of a reply to TVM's client, which reads replies of any length
_SUCCESS, _ASKED = encode(SUCCESS), encode(ASKED)
_PLAIN = memoryview(bytearray(RECEIVED))  # one connection at a time decrypts


class PeerConnection:
    """A connection of a client or a server. ``refusal``: why its messages are refused, empty if they are not."""

    __slots__ = (
        *("_acknowledged", "_again", "_blocked", "_closing", "_ended", "_reader", "_service", "_since", "_sock"),
        *("_greeted", "_awaited", "_held", "_place", "_queued", "_stuck_since", "_tunnel", "_unsent"),
        *("_waiting_since", "_wanted"),
        *("address", "known", "local", "number", "refusal", "refused", "serves"),
    )

    def __init__(
        self, service: Owner[PeerConnection], sock: socket.socket, address: str, local: str, refusal: str = ""
    ) -> None:
        self.address = address
        self.local = local
        self._place = address, local
        self.number = 0  # its number in the state, 0 before the magic
        self.serves = False  # whether the peer has made offers
        self.refusal = refusal
        self.refused = self._awaited = 0  # messages that were answered with the refusal; bytes that are held back
        self.known = service.lab is None  # whether it may send all messages: in a lab, its hello is accepted
        self._tunnel: Tunnel | None = None
        self._greeted = False  # whether the magic of the peer has come
        self._held = False  # whether it waits unread, as others are to say first who they are
        self._service = service
        self._sock = sock
        self._reader = TrackerFrameReader(limit=service.max_frame if self.known else MAX_STRANGERS_FRAME)
        self._unsent = bytearray()  # as they are sent
        #: What is to be sent, which TLS encrypts first, and a leader of replicas holds back.
        self._queued = self._unsent if service.holds is None else bytearray()
        self._wanted = READ
        self._blocked = False  # whether the kernel takes nothing more for now
        self._acknowledged = self._again = self._closing = self._ended = False
        self._waiting_since: float | None = service.loop.time()
        self._stuck_since: float | None = None
        self._since = service.loop.time()
        service.sockets.add(sock.fileno(), self.ready)
        service.open_connections[self] = None
        if service.lab is not None:
            service.lab.strangers.add(self)

    @property
    def stuck(self) -> bool:
        """Whether so much is unsent that the peer's frames are not read."""
        return self._stuck_since is not None

    @property
    def encrypted(self) -> bool:
        """Whether the peer speaks inside TLS."""
        return self._tunnel is not None

    def accept(self) -> None:
        """From now on, the peer may send all messages."""
        self.known = True
        self._reader.limit = self._service.max_frame
        if self._service.lab is not None:
            self._service.lab.strangers.remove(self)

    def came_from(self, address: str) -> None:
        """Note the peer's own address, by the word of a proxy: from now on, the peer counts for that."""
        assert self._service.lab is not None, "nowhere else are peers strangers"
        strangers = self._service.lab.strangers
        strangers.remove(self)
        self.address = address
        strangers.add(self)

    def hold(self) -> None:
        """Read nothing more for now."""
        self._held = True
        self._expect()

    def read_on(self) -> None:
        """Read again; the time in which the peer has to say who it is begins."""
        self._held = False
        self._since = self._waiting_since = self._service.loop.time()
        self._expect()

    def release(self) -> tuple[socket.socket, bytes] | None:
        """Give the socket away, with what no frame was made of; None: the connection ends.

        It counts for its address until ``admission.leave``. A new connection takes the few bytes that are unsent.
        """
        self.flush()
        if self._closing:
            return None
        self._leave()
        return self._sock, self._reader.rest()

    def resume(self, received: bytes, greeted: bool) -> None:
        """Go on where another connection has released the socket; ``greeted``: the peer's magic was answered."""
        if greeted:
            self._reader.magic_due = False
            self._greeted = True
            self.number = self._service.greeted(self)
        self._reader.feed(received)

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
            if self._tunnel is None:
                self._reader.feed(data)
            else:
                self._tunnel.feed(data)
            self._acknowledged = len(data) == LENGTH_BYTES
            if not self._acknowledged:
                break
            acknowledge_at_once(self._sock)
        if self.known or self._service.lab is None:
            self._service.heard[self.serves].append(self)
        else:
            self._service.lab.strangers.heard.append(self)

    def _decrypt(self, tunnel: Tunnel) -> None:
        """Decrypt what was received, or go on with the handshake. Raises `ProtocolError`: it is not TLS 1.3."""
        try:
            if tunnel.open or self._shake_hands(tunnel):
                while count := tunnel.read_into(_PLAIN):
                    self._reader.feed(bytes(_PLAIN[:count]))
                    if tunnel.drained:
                        break
        except EOFError:
            self._ended = True
        except (NoTls, OSError) as error:  # of which ssl.SSLError is one
            raise ProtocolError(str(error) or "TLS failed") from None
        finally:
            if tunnel.leaving.pending:  # a handshake, or an answer to new keys
                self._unsent += tunnel.outgoing()
                self.flush()

    def _shake_hands(self, tunnel: Tunnel) -> bool:
        """Go on with the handshake; whether it is done. Raises NoTls."""
        lab = self._service.lab
        assert lab is not None, "it has begun TLS, as in a lab alone"
        try:
            done = tunnel.handshake()
        except NoTls:
            lab.counts.handshakes["failed"] += 1
            self._note_failure("tls")
            raise
        lab.counts.handshakes["done"] += done
        return done

    def _note_failure(self, why: str) -> None:
        if self._service.lab is not None:
            self._service.lab.strangers.failed(self.address, why)

    def _begin_tls(self, lab: LabOfPeers) -> None:
        """What follows is TLS: of a client, or of one behind a proxy that has named it in the clear."""
        self._tunnel = lab.tunnel()
        lab.counts.encrypted += 1
        self._tunnel.feed(self._reader.rest())
        self._reader = TrackerFrameReader(limit=lab.longest_hello)
        self._queued, self._greeted = bytearray(), False
        self._decrypt(self._tunnel)

    def _first_frame(self) -> bytes | None:
        """The next frame of a peer that has just come: TLS may begin before it, and its magic is answered."""
        lab = self._service.lab
        if self._tunnel is None and self._reader.begins_tls:
            if lab is not None:
                self._begin_tls(lab)
            else:
                self._service.encrypted(self)
        frame = self._reader.next()
        if not self._greeted and not self._reader.magic_due:
            self._greeted = True
            self.send(MAGIC_BYTES)
            self.number = self._service.greeted(self)
        return frame

    def work(self) -> None:
        """Handle at most `BURST` frames of what has been read, and then the end of the stream if it has come."""
        drained = False
        try:
            if self._tunnel is not None and not self._closing:
                self._decrypt(self._tunnel)
            for _ in range(BURST):
                if self._closing:
                    return
                if drained or self._stuck_since is not None:
                    break
                frame = self._reader.next() if self.known and self._greeted else self._first_frame()
                if frame is not None:
                    self._service.received(self, frame)
                drained = frame is None or not self._reader.partial
            if not drained:  # the other connections' frames come first
                self._again = True
                self._expect()
                self._service.loop.call_soon(self._continue)
            elif self._ended:
                self._service.lost(self)
                self.close()
            elif not self._reader.partial:
                self._waiting_since = None
            else:
                self._await_rest()
        except ProtocolError as error:
            self._break_off(error)
        except MemoryError:
            raise
        except Exception:  # an error of the tracker's own costs one connection, not all of them
            text, stranger = "the tracker failed to handle a frame from %s", {"stranger": self.address}
            log.exception(text, self.address, extra=stranger)
            self.drop("the tracker failed to handle its frame")

    def _break_off(self, error: ProtocolError) -> None:
        """End the connection, as the peer does not keep to the protocol."""
        if isinstance(error, OtherProtocol):
            self.send(answer(TRACKER, error.kind))
        self._service.flush()
        self.drop(str(error), politely=True)

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
        reading = not (self._again or self._closing or self._held or self._stuck_since is not None)
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
        elif message is ASKED or message == SUCCESS:
            data = _ASKED if message is ASKED else _SUCCESS
        else:
            try:
                data = encode(message, MAX_FRAME if type(message) is dict else MAX_TVM_REPLY)
            except LimitExceeded as problem:
                data = encode(_too_long(message, problem))
        if not self._queued:
            self._service.unsent.append(self)
        self._queued += data
        if len(self._queued) > HIGH_WATER:
            self.flush()

    def flush(self) -> None:
        """Write as much as the kernel takes; the rest follows when the socket is writable again."""
        if self._service.holds is not None and self._queued:
            self._hold_back(self._service.holds)
        elif self._tunnel is not None and self._queued and self._tunnel.open:
            queued, self._queued = self._queued, bytearray()
            self._unsent += self._tunnel.seal(queued)
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

    def _hold_back(self, holds: Callable[[PeerConnection, bytes], bool]) -> None:
        if self._tunnel is not None and not self._tunnel.open:
            return
        queued, self._queued = bytes(self._queued), bytearray()
        if not holds(self, queued):
            self._unsent += queued if self._tunnel is None else self._tunnel.seal(queued)
            return
        self._awaited += len(queued)
        if self._awaited > HIGH_WATER:
            self._note_unsent()

    def send_held(self, data: bytes) -> None:
        """Send what was held back."""
        self._awaited -= len(data)
        self.send_past(data)

    def send_past(self, data: bytes) -> None:
        """Send frames past what is held back: they promise nothing."""
        if self not in self._service.open_connections:
            return
        self._unsent += data if self._tunnel is None else self._tunnel.seal(data)
        self.flush()
        if self._closing or self._stuck_since is not None:
            self._note_unsent()

    def _note_unsent(self) -> None:
        self._blocked = bool(self._unsent)
        unsent = len(self._unsent) + self._awaited
        if self._closing and not unsent:
            self._shut()
            return
        if self._stuck_since is None and unsent > HIGH_WATER:
            self._stuck_since = self._service.loop.time()
        elif self._stuck_since is not None and unsent <= LOW_WATER:
            self._stuck_since = None
            self._service.loop.call_soon(self._continue)
        self._expect()
        if unsent > MAX_UNSENT:
            self.drop("it does not read what it is sent")

    # Ends.

    def end_if_silent(self, now: float) -> None:
        """Drop the connection if a frame stays incomplete, or the peer reads nothing, for `SILENCE_S`."""
        if self._stuck_since is not None and now - self._stuck_since > SILENCE_S:
            self.drop("it does not read what it is sent")
        elif self.refusal and now - self._since > REFUSED_S:
            self.drop("its network is not served (--admit)")
        elif not (self.known or self.refusal or self._held) and now - self._since > SILENCE_S:
            self._note_failure("silent")
            self.drop(f"it has not said within {SILENCE_S:g} s who it is")
        elif self._waiting_since is not None and not self._held and now - self._waiting_since > SILENCE_S:
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
        if not (self._unsent or self._awaited):
            self._shut()
        elif not self._closing:
            self._closing = True
            self._expect()
            self._waiting_since = self._service.loop.time()  # so that it ends if the peer does not read

    def cut(self) -> None:
        """End the connection at once, with all that is unsent. The state does not hear of it."""
        self._shut()

    def _end(self) -> None:
        self._service.lost(self)
        self._shut()

    def _leave(self) -> None:
        self._closing = True
        self._wanted = 0
        del self._service.open_connections[self]
        self._service.sockets.remove(self._sock.fileno())

    def _shut(self) -> None:
        self._unsent.clear()
        self._queued.clear()
        if self in self._service.open_connections:
            self._leave()
            self._sock.close()
            self._service.admission.leave(*self._place)
            if self._service.lab is not None:
                self._service.lab.counts.encrypted -= self.encrypted
                if not self.known:
                    self._service.lab.strangers.remove(self)


def _too_long(message: Any, problem: LimitExceeded) -> Any:
    if isinstance(message, dict) and "id" in message:
        return Answer(message["id"], False, "TooLong", str(problem)).to_json()
    return [FAIL, str(problem)]
