"""One connection to a tracker: dialled, inside TLS for a lab, and with the hello answered. Nothing here blocks.

A ping carries the hello, and TVM's tracker answers it as a plain ping (``TrackerConnection.ours``).
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from rpcsys import __version__, errors
from rpcsys.errors import ProtocolError, TrackerError, TrackerLost, TrackerUnreachable
from rpcsys.link import credential as credentials
from rpcsys.link.address import DEFAULT_TRACKER
from rpcsys.link.credential import Credential
from rpcsys.link.dialling import Dialling
from rpcsys.link.tcp import acknowledge_at_once
from rpcsys.wire import tracker
from rpcsys.wire.control import Hello
from rpcsys.wire.first_bytes import OtherProtocol

if TYPE_CHECKING:
    from rpcsys.link.lab_tls import LabTls

MAX_UNSENT = 4 << 20  # unsent bytes; with more, the tracker counts as lost
MAX_MESSAGE = 4000  # characters of a tracker's message for people

_CHUNK = 1 << 16
_REFUSALS = ("Unauthorized", "Forbidden")  # errors in the answer to a hello, of a tracker that works
_UNKNOWN = "it does not speak the tracker's protocol"
_CLOSES = ", as TVM's device servers and proxies do"


class TrackerConnection:
    """A connection to the tracker at ``address``, or through the ``proxy`` there; the parameters are those of `Link`.

    ``ours`` is None until the hello is answered, then whether the tracker is rpcsys's; ``welcome`` is the answer to the
    hello. ``received`` counts bytes; ``reason``: why the hello has no answer.
    """

    at_once = False  # as `LeaderConnection` has it

    def __init__(
        self,
        address: Tuple[str, int],
        *,
        user: Optional[str],
        capabilities: Sequence[str],
        timeout: float,
        proxy: bool = False,
        credential: Optional[Credential] = None,
        joining: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.address = address
        self.place = "{} {}:{}".format("behind the proxy at" if proxy else "at", *self.address)
        self._proxy = proxy
        self.ours: Optional[bool] = None
        self.welcome: Dict[str, Any] = {}
        self.received = 0
        self.reason = ""
        self.credential = credential or credentials.for_tracker(*self.address)
        token = None if self.credential is None or joining else self.credential.token
        self._hello = Hello(__version__, tuple(capabilities), user, token, **(joining or {}))
        self._tls: Optional[LabTls] = None
        self._expires = time.monotonic() + timeout
        self._ids = 0
        self._reader = tracker.TrackerFrameReader()
        self._unsent = bytearray()
        self._messages: List[Any] = []
        self._sock: Optional[socket.socket] = None
        self._hello_sent = False
        self._selector = selectors.DefaultSelector()
        self._dialling: Optional[Dialling] = Dialling(*self.address)
        self._watch(*self._dialling.awaited)

    @property
    def main(self) -> TrackerConnection:
        """Itself, as `LeaderConnection` has a main one."""
        return self

    @property
    def ready(self) -> bool:
        """Whether the hello is answered: then messages can be sent."""
        return self.ours is not None

    @property
    def renews(self) -> bool:
        """Whether a new token, which the tracker has asked for, is not known to it yet."""
        return self._tls is not None and self._tls.renews

    @property
    def by_spare(self) -> bool:
        """Whether a lab's tracker has proved itself by the second of its pins."""
        return self._tls is not None and self._tls.by_spare

    @property
    def due(self) -> float:
        """When `advance` is to be called at the latest, by the monotonic clock."""
        return math.inf if self.ready else self._expires

    def next_id(self) -> int:
        """A new id for a question."""
        self._ids += 1
        return self._ids

    def fileno(self) -> int:
        """A descriptor that is readable when `advance` has something to do. It never changes."""
        selector: Any = self._selector  # its descriptor covers the current socket or lookup
        return int(selector.fileno())

    def wait(self, seconds: Optional[float]) -> None:
        """Wait until `advance` has something to do, at most so long (None: without end)."""
        self._selector.select(seconds)

    def advance(self) -> List[Any]:
        """Do what is possible without blocking; return the messages that have arrived, as plain JSON.

        Raises what `Link.advance` raises, but `Cancelled`.
        """
        if self._dialling is not None:
            self._connect(self._dialling)
        if self._sock is not None:
            self._receive()
            self._flush()
        if self.ours is None and time.monotonic() >= self._expires:
            silent = "no answer in time"
            raise self._unreachable(silent if self._sock is None else f"{silent}; is it another program's port?")
        messages, self._messages = self._messages, []
        return messages

    def send(self, data: bytes) -> None:
        """Queue bytes and send what can be sent at once. Raises TrackerLost: the tracker has stopped reading."""
        self._queue(data)
        self._flush()

    def begin_anew(self, timeout: float) -> None:
        """Begin the conversation anew, magic and all; the hello must be answered within ``timeout`` seconds."""
        self.ours, self.welcome = None, {}
        self._reader, self._hello_sent = tracker.TrackerFrameReader(), False
        self._expires = time.monotonic() + timeout
        self._greet()
        self._flush()

    def hang_up(self) -> None:
        """End the connection, from any thread: `advance` has something to do then."""
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        self._selector.close()
        if self._dialling is not None:
            self._dialling.close()
        if self._sock is not None:
            self._sock.close()

    def _connect(self, dialling: Dialling) -> None:
        try:
            sock = dialling.advance()
        except OSError as error:
            raise self._unreachable(error.strerror or str(error)) from None
        self._selector.unregister(self._watched)
        if sock is None:
            self._watch(*dialling.awaited)
            return
        self._dialling, self._sock = None, sock
        self._watch(sock.fileno(), selectors.EVENT_READ)
        if self.credential is not None:
            from rpcsys.link.lab_tls import LabTls  # in a lab alone: OpenSSL takes 5 MB of a board's memory

            self._tls = LabTls(self.address, self.credential)
            self._unsent += self._tls.outgoing()
        else:
            self._greet()

    def _opened(self, tls: LabTls, data: bytes) -> bytes:
        """What received bytes say, decrypted."""
        was_open = tls.open
        try:
            opened = tls.receive(data)
        except EOFError:
            raise self._lost("it closed the connection") from None
        except OSError:  # of which ssl.SSLError is one
            raise self._lost("bytes were changed on the way") from None
        self._unsent += tls.outgoing()
        if tls.open and not was_open:
            self._greet()
        return opened

    def _greet(self) -> None:
        # TVM's tracker takes all that it receives first as the magic, so the hello must wait for the reply.
        self._queue(tracker.MAGIC_BYTES)

    def _watch(self, descriptor: int, events: int) -> None:
        self._watched = descriptor
        self._selector.register(descriptor, events)

    def _receive(self) -> None:
        assert self._sock is not None
        for _ in range(8):  # enough for any burst; a flood must not block the caller's loop
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(error.strerror or "error") from None
            if not data:
                raise self._lost("it closed the connection" + (_CLOSES if self.ours is None else ""))
            acknowledge_at_once(self._sock)
            self.received += len(data)
            self._take(data if self._tls is None else self._opened(self._tls, data))
            if len(data) < _CHUNK:
                return

    def _take(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while True:
                frame = self._reader.next()
                if not self._hello_sent and not self._reader.magic_due:
                    self._hello_sent = True
                    self._queue(tracker.encode(tracker.Ping(self._hello)))
                if frame is None:
                    return
                message = tracker.decode_json(frame)
                if self.ours is None:
                    self._take_hello(message)
                elif self._tls is None or not self._tls.settles(message):
                    self._messages.append(message)
        except OtherProtocol as error:
            raise self._unreachable(_UNKNOWN, error.kind) from None
        except ProtocolError:
            if self.ours is None:
                raise self._unreachable(_UNKNOWN) from None
            raise

    def _take_hello(self, reply: Any) -> None:
        if reply == tracker.SUCCESS:
            self.ours = False
        elif type(reply) is dict and type(reply.get("ok")) is bool:
            self.welcome = reply
            if not reply["ok"] and reply.get("error") in _REFUSALS:
                raise error_of(reply)
            if not reply["ok"]:
                raise self._unreachable(errors.printable(str(reply.get("message"))[:MAX_MESSAGE]))
            self.ours = True
            question = None if self._tls is None else self._tls.follow(reply, self.next_id())
            if question is not None:
                self._queue(tracker.encode(question))
        else:
            raise ProtocolError(f"the hello was answered with {reply!r:.60}")

    def _queue(self, data: bytes) -> None:
        if len(self._unsent) + len(data) > MAX_UNSENT:
            raise self._lost("it has stopped reading")
        self._unsent += data if self._tls is None else self._tls.seal(data)

    def _flush(self) -> None:
        assert self._sock is not None
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(error.strerror or "error") from None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events)

    def _unreachable(self, reason: str, kind: Optional[str] = None) -> TrackerUnreachable:
        """The error for a hello without an answer. ``kind``: what is at the address, where that is known."""
        self.reason = kind or reason
        if kind is not None:
            own = f"give the tracker's own port (by default {DEFAULT_TRACKER[1]})"
            return TrackerUnreachable(f"no tracker {self.place}: that is {kind}; {own}")
        how = f"start one with `rpcsys tracker --port {self.address[1]}`, or check the address"
        if self._proxy:
            how = "is the proxy running, and is that its address?"
        return TrackerUnreachable(f"no tracker {self.place} ({reason}): {how}")

    def _lost(self, reason: str) -> errors.RpcsysError:
        if self._tls is not None and not self._tls.open:
            return self._tls.refused()
        if self.ours is None:
            return self._unreachable(reason)
        return TrackerLost(f"the tracker {self.place} is gone ({reason})")


def error_of(answer: Dict[str, Any]) -> TrackerError:
    """The exception for an answer with ``"ok": false``, of the class that it names, if that is a `TrackerError`."""
    named, message = answer.get("error"), answer.get("message") or answer.get("error")
    kind = vars(errors).get(named) if type(named) is str else None
    if not (isinstance(kind, type) and issubclass(kind, TrackerError)):
        kind = TrackerError
    text = message if type(message) is str else "the tracker refused without a reason"
    return kind(errors.printable(text[:MAX_MESSAGE]))
