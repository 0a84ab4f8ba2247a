"""A client's or a server's connection to the tracker. A link is for one thread at a time.

Its core does not block, for loops on `selectors`; its blocking methods are for clients. It works with TVM's tracker,
too: a ping carries the hello, and TVM's tracker answers it as a plain ping (``Link.ours``).
"""

from __future__ import annotations

import collections
import contextlib
import math
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from rpcsys import __version__, errors
from rpcsys.errors import Cancelled, ProtocolError, TrackerError, TrackerLost, TrackerUnreachable, Unauthorized
from rpcsys.link import credential as credentials
from rpcsys.link.address import DEFAULT_TRACKER, parse_address
from rpcsys.link.credential import Credential
from rpcsys.link.dialling import Dialling
from rpcsys.link.tcp import acknowledge_at_once
from rpcsys.wire import tracker
from rpcsys.wire.control import Hello
from rpcsys.wire.first_bytes import OtherProtocol

if TYPE_CHECKING:
    from typing_extensions import Self

    from rpcsys.link.lab_tls import LabTls

CAPABILITIES = ("session/1",)
MAX_UNSENT = 4 << 20  # unsent bytes; with more, the tracker counts as lost
#: Messages kept for `Link.receive` while `Link.ask` waits, each at most a frame: late ones of a cancelled request.
MAX_UNREAD = 64
MAX_MESSAGE = 4000  # characters of a tracker's message for people

_CHUNK = 1 << 16
_REFUSALS = ("Unauthorized", "Forbidden")  # errors in the answer to a hello, of a tracker that works
_UNKNOWN = "it does not speak the tracker's protocol"
_CLOSES = ", as TVM's device servers and proxies do"
Address = Union[str, Tuple[str, int]]


class Closeable:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Release the resources. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Link(Closeable):
    """One connection to a tracker at ``"host:port"`` or ``(host, port)``, or through the ``proxy`` there.

    Register its ``fileno()``, call `advance` when that is ready and also regularly, and handle the messages that it
    returns; or use `open`, `receive`, `ask` and `command`, which block. ``user``: the user's name, which nobody checks;
    ``timeout``: seconds until the tracker must have answered the hello. ``credential``: for the tracker's lab; without
    one, this machine's for the address is used, if it has one (`rpcsys.link.credential.for_tracker`). With a credential
    everything is said inside TLS, to the holder of one of its pins. ``joining``: what the hello has in place of the
    credential's token, such as an invitation and the hash of the new token's secret.

    ``ours`` is None until the hello is answered, then whether the tracker is rpcsys's; ``tracker`` is the answer to the
    hello, from the tracker or from a proxy without one. ``received`` counts bytes. ``follows``: whether it is a link to
    replicas (:mod:`rpcsys.link.trackers`); ``at_once``: whether its owner then connects again without a pause.
    """

    follows = at_once = False

    def __init__(
        self,
        address: Address,
        *,
        user: Optional[str] = None,
        capabilities: Sequence[str] = CAPABILITIES,
        timeout: float = 5.0,
        proxy: bool = False,
        credential: Optional[Credential] = None,
        joining: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.address = parse_address(address) if isinstance(address, str) else (address[0], int(address[1]))
        self._place = "{} {}:{}".format("behind the proxy at" if proxy else "at", *self.address)
        self._proxy = proxy
        self._begin(timeout)
        self.credential = credential or credentials.for_tracker(*self.address)
        token = None if self.credential is None or joining else self.credential.token
        self._hello = Hello(__version__, tuple(capabilities), user, token, **(joining or {}))
        self._dialling: Optional[Dialling] = Dialling(*self.address)
        self._watch(*self._dialling.awaited)

    def _begin(self, timeout: float) -> None:
        """Set what a link has that is not connected yet."""
        self.ours: Optional[bool] = None
        self.tracker: Dict[str, Any] = {}
        self.received = 0
        self._tls: Optional[LabTls] = None
        self._expires = time.monotonic() + timeout
        self._ids = 0
        self._reader = tracker.TrackerFrameReader()
        self._unsent = bytearray()
        self._inbox: Deque[Any] = collections.deque()
        self._sock: Optional[socket.socket] = None
        self._hello_sent = False
        self._dialling = None
        self._closed = self._hung_up = False
        self._selector = selectors.DefaultSelector()

    @classmethod
    def open(
        cls, address: Address, *, timeout: float = 5.0, user: Optional[str] = None,
        credential: Optional[Credential] = None, joining: Optional[Mapping[str, Any]] = None,
    ) -> Link:  # fmt: skip
        """Connect, and wait for the answer to the hello, and until a new token is known that it asks for.

        Raises TrackerUnreachable: no tracker answered within ``timeout`` seconds; `Unauthorized`, `Forbidden`: it does
        not serve this machine; `WrongPin`, `NoTls`: it is not the credential's; `ConfigError`: a credential is damaged.
        """
        link = cls(address, user=user, timeout=timeout, credential=credential, joining=joining)
        try:
            while not link.ready or (link._renews and time.monotonic() < link._expires):
                link._pump(link._expires)
        except Unauthorized:
            link.close()
            now = link.credential and credentials.again(link.credential)
            if now == link.credential:
                raise
            return cls.open(address, timeout=timeout, user=user, credential=now)  # another process has renewed it
        except BaseException:
            link.close()
            raise
        return link

    @property
    def ready(self) -> bool:
        """Whether the hello is answered: then messages can be sent."""
        return self.ours is not None and not self._closed

    @property
    def due(self) -> float:
        """The monotonic time at which `advance` is to be called at the latest."""
        return math.inf if self.ready else self._expires

    @property
    def _renews(self) -> bool:
        return self._tls is not None and self._tls.renews

    @property
    def by_spare(self) -> bool:
        """Whether a lab's tracker has proved itself by the second of its pins."""
        return self._tls is not None and self._tls.by_spare

    def fileno(self) -> int:
        """A descriptor that is readable when `advance` has something to do. It never changes."""
        selector: Any = self._selector  # its descriptor covers the current socket or lookup
        return int(selector.fileno())

    def advance(self) -> List[Any]:
        """Do what is possible without blocking; return the messages that have arrived, as plain JSON.

        Raises TrackerUnreachable: the tracker cannot be reached, or did not answer in time; TrackerLost: the
        connection ended; ProtocolError: the tracker violated the protocol.
        """
        self._step()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def send(self, message: Any) -> None:
        """Queue a message (typed, or plain JSON) and send what can be sent at once. Raises as `post`."""
        self.post(message)
        self.flush()

    def post(self, message: Any) -> None:
        """Queue a message for `flush`. Raises TrackerLost: the link is not open, or the tracker has stopped reading."""
        if not self.ready:
            raise TrackerLost(f"the link to the tracker {self._place} is not open")
        self._queue(tracker.encode(message))

    def close(self) -> None:
        """Close the connection, and with it its offers and requests at the tracker. A second call does nothing."""
        self._closed = True
        self._selector.close()
        if self._dialling is not None:
            self._dialling.close()
        if self._sock is not None:
            self._sock.close()

    def hang_up(self) -> None:
        """End the connection, from any thread: the thread that uses the link gets `Cancelled`, at once if it waits."""
        self._hung_up = True
        if self._sock is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._sock.shutdown(socket.SHUT_RDWR)

    # Blocking methods.

    def receive(self, timeout: Optional[float]) -> Any:
        """Wait for the next message, as plain JSON; ``timeout`` in seconds, None: until the connection ends.

        Raises TimeoutError: no message came in time; TrackerLost, ProtocolError: as `advance`.
        """
        return self._await(lambda message: True, timeout)

    def ask(
        self,
        op: str,
        *,
        timeout: Optional[float],
        on_event: Optional[Callable[[Dict[str, Any]], None]] = None,
        **fields: Any,
    ) -> Dict[str, Any]:
        """Ask our tracker and wait for its final answer. ``on_event`` is called with each event before that.

        Other messages stay for `receive`.

        Raises TrackerError: the tracker refused (`UnknownKey`, `WaitTimeout`, `Cancelled` where it names one of them);
        TrackerLost: it did not answer within ``timeout`` seconds, or the connection ended.
        """
        number = self.next_id()
        self.send(dict(fields, op=op, id=number))

        def is_answer(message: Any) -> Optional[bool]:
            if type(message) is not dict or message.get("id") != number or "op" in message:
                return False
            if "event" not in message:
                return True
            if on_event is not None:
                on_event(message)
            return None

        try:
            answer: Dict[str, Any] = self._await(is_answer, timeout)
        except TimeoutError:
            raise TrackerLost(f"the tracker {self._place} did not answer {op} within {timeout or 0:g} s") from None
        if answer.get("ok") is not True:
            raise error_of(answer)
        return answer

    def command(self, frame: Sequence[Any], *, timeout: Optional[float]) -> Any:
        """Send one of TVM's commands and wait for its reply, as plain JSON. One command at a time.

        Raises TimeoutError: no reply within ``timeout`` seconds; TrackerLost: the connection ended.
        """
        self.send(list(frame))
        return self._await(lambda message: type(message) is not dict, timeout)

    def next_id(self) -> int:
        """A new id for a question."""
        self._ids += 1
        return self._ids

    def _await(self, wanted: Callable[[Any], Optional[bool]], timeout: Optional[float]) -> Any:
        """The first message for which ``wanted`` is true. Those with False are kept, those with None are dropped."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        others: List[Any] = []
        late = False
        try:
            while True:
                while self._inbox:
                    message = self._inbox.popleft()
                    verdict = wanted(message)
                    if verdict:
                        return message
                    if verdict is False:
                        others.append(message)
                    if len(others) > MAX_UNREAD:
                        raise ProtocolError(f"the tracker sent {len(others)} messages and no answer")
                if late:
                    raise TimeoutError(f"no message from the tracker within {timeout or 0:g} s")
                self._pump(until)
                late = time.monotonic() >= until
        finally:
            self._inbox.extendleft(reversed(others))

    def _pump(self, until: float = math.inf) -> None:
        """Wait until there is something to do, at most until ``until``, and do it."""
        until = min(until, self.due)
        if not self._closed:
            self._selector.select(None if until == math.inf else max(0.0, until - time.monotonic()))
        self._step()

    # The connection, step by step.

    def _step(self) -> None:
        if self._hung_up:
            raise Cancelled("the request was cancelled")
        if self._closed:
            raise TrackerLost(f"the link to the tracker {self._place} is closed")
        if self._dialling is not None:
            self._connect(self._dialling)
        if self._sock is not None:
            self._receive()
            self.flush()
        if self.ours is None and time.monotonic() >= self._expires:
            silent = "no answer in time"
            raise self._unreachable(silent if self._sock is None else f"{silent}; is it another program's port?")

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
                    self._inbox.append(message)
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
            self.tracker = reply
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

    def flush(self) -> None:
        """Send what is queued, as far as that is possible at once. Raises TrackerLost."""
        if not self._unsent or self._sock is None:
            return
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
        if kind is not None:
            own = f"give the tracker's own port (by default {DEFAULT_TRACKER[1]})"
            return TrackerUnreachable(f"no tracker {self._place}: that is {kind}; {own}")
        how = f"start one with `rpcsys tracker --port {self.address[1]}`, or check the address"
        if self._proxy:
            how = "is the proxy running, and is that its address?"
        return TrackerUnreachable(f"no tracker {self._place} ({reason}): {how}")

    def _lost(self, reason: str) -> errors.RpcsysError:
        if self._hung_up:
            return Cancelled("the request was cancelled")
        if self._tls is not None and not self._tls.open:
            return self._tls.refused()
        if self.ours is None:
            return self._unreachable(reason)
        return TrackerLost(f"the tracker {self._place} is gone ({reason})")


def error_of(answer: Dict[str, Any]) -> TrackerError:
    """The exception for an answer with ``"ok": false``, of the class that it names, if that is a `TrackerError`."""
    named, message = answer.get("error"), answer.get("message") or answer.get("error")
    kind = vars(errors).get(named) if type(named) is str else None
    if not (isinstance(kind, type) and issubclass(kind, TrackerError)):
        kind = TrackerError
    text = message if type(message) is str else "the tracker refused without a reason"
    return kind(errors.printable(text[:MAX_MESSAGE]))
