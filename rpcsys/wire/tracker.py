"""The tracker connection: its frames, strict JSON, TVM's messages, and the parsing of ours (docs/wire.md, 1).

A list is a message of TVM's, its code first (`Put`); an object is one of ours (:mod:`rpcsys.wire.control`). A reply to
a TVM message has no id: replies come in the order of the messages, except the reply to `TvmRequest`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Iterable, Union

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import checks, control, first_bytes
from rpcsys.wire.control import Ask, Hello

MAGIC = first_bytes.TRACKER_MAGIC
MAGIC_BYTES = struct.pack("<i", MAGIC)
#: Bytes of JSON in a frame: the limit of TVM's tracker.
MAX_FRAME = 1 << 20
#: Levels of lists and objects. No message needs six; code that prints a deeper value could reach Python's own limit.
MAX_NESTING = 32
#: Codes of TVM's messages, and of replies to them.
PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, GET_PENDING = 1, 2, 3, 4, 5, 6, 7
SUCCESS, FAIL = 0, -1

_LENGTH = struct.Struct("<i")
#: The first bytes of a TLS connection: a handshake, of TLS 1.0 or later by its old name. As the length of a frame they
#: are above 64 KiB.
TLS_RECORD = b"\x16\x03\x01"
# Python parses numbers of at most 4,300 digits; older versions parse longer ones in quadratic time.
_MAX_DIGITS = 4300


# ------------------------------------------------------------------ frames


class TrackerFrameReader:
    """Splits received bytes into tracker frames. With ``magic`` the bytes begin with `MAGIC`."""

    __slots__ = ("_at", "_buffer", "_due", "limit", "magic_due", "partial")

    def __init__(self, magic: bool = True, limit: int = MAX_FRAME) -> None:
        self.limit = limit  # bytes of a frame
        self.magic_due = magic  # whether the magic has not arrived yet
        self.partial = False  # whether there are bytes that `next` has not returned
        # The bytes of one read are decoded in place: mostly they are one frame, or the text of one.
        self._buffer: Union[bytes, bytearray] = b""
        self._at = 0  # where the bytes begin that were not returned
        self._due = 0  # bytes of the current frame, 0 before its length is read

    def feed(self, data: bytes) -> None:
        """Append ``data`` to the bytes that `next` has not returned."""
        self.partial = self.partial or len(data) > 0
        if len(self._buffer) <= _LENGTH.size:  # empty, or mostly the length of the frame in ``data``
            self._buffer += data
            return
        buffer = self._buffer if isinstance(self._buffer, bytearray) else bytearray(self._buffer)
        del buffer[: self._at]
        buffer += data
        self._buffer, self._at = buffer, 0

    def next(self) -> bytes | None:
        """The next complete frame, None if there is none yet.

        Raises `ProtocolError` where the bytes do not begin with the magic. Raises `LimitExceeded` for a length below 1
        or above `MAX_FRAME`, as soon as it is read.
        """
        if self.magic_due and not self._take_magic():
            return None
        buffer, start = self._buffer, self._at
        if not self._due:
            if len(buffer) < start + 4:
                return None
            (size,) = _LENGTH.unpack_from(buffer, start)
            if not 0 < size <= self.limit:
                raise LimitExceeded(f"a tracker frame of {size} bytes (allowed: 1 to {self.limit})")
            self._due = size
            start = self._at = start + 4
        end = start + self._due
        if len(buffer) < end:
            if len(buffer) == start:
                self._buffer, self._at = b"", 0
            return None
        self._due = 0
        if end < len(buffer):
            self._at = end
        else:
            self._buffer, self._at, self.partial = b"", 0, False
        return bytes(buffer[start:end])

    def rest(self) -> bytes:
        """The bytes that `next` has not returned, the length of a frame too; they are in the reader no longer."""
        length = _LENGTH.pack(self._due) if self._due else b""
        rest, self._buffer, self._at, self.partial = length + self._buffer[self._at :], b"", 0, False
        self._due = 0
        return rest

    @property
    def begins_tls(self) -> bool:
        """Whether a record of TLS comes next, where a frame or the magic would begin."""
        return not self._due and self._buffer[self._at : self._at + len(TLS_RECORD)] == TLS_RECORD

    def _take_magic(self) -> bool:
        held = bytes(self._buffer[:4])
        if not MAGIC_BYTES.startswith(held):
            raise first_bytes.OtherProtocol(first_bytes.TRACKER, held)
        if len(held) < 4:
            return False
        self.magic_due = False
        self._at, self.partial = 4, len(self._buffer) > 4
        return True


# ------------------------------------------------------------------ JSON


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _short_integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


_quick = json.JSONDecoder(parse_constant=_no_constant)
_careful = json.JSONDecoder(parse_constant=_no_constant, parse_int=_short_integer)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


# `json` builds a new C encoder for every text, which costs as much as the text. Here it is built once.
_make: Any = getattr(json.encoder, "c_make_encoder", None)
_pieces: Callable[[Any, int], Iterable[str]] = (
    (lambda value, level: _encoder.iterencode(value))
    if _make is None
    else _make(None, _encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
)


def decode_json(data: bytes) -> Any:
    """The JSON value in ``data``.

    Raises `ProtocolError`: not UTF-8, not JSON, NaN or Infinity, nested too deeply, or a number too long.
    """
    # Only a text above this length can contain a number above it.
    decoder = _quick if len(data) <= _MAX_DIGITS else _careful
    try:
        text = data.decode("utf-8")
        value, end = decoder.raw_decode(text)
        if end != len(text):
            value = decoder.decode(text)
    except RecursionError:
        raise ProtocolError("JSON nested too deeply") from None
    except ValueError as error:
        # Some peers write white space in front, which `raw_decode` does not skip.
        if data[:1] in (b" ", b"\t", b"\n", b"\r"):
            return decode_json(data.strip(b" \t\n\r"))
        raise ProtocolError(f"not JSON: {error}") from None
    # Only a text with that many brackets can be nested that deeply.
    if data.count(b"[") + data.count(b"{") > MAX_NESTING and _is_deeper(value, MAX_NESTING):
        raise ProtocolError(f"JSON nested more than {MAX_NESTING} deep")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``limit`` deep."""
    level = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for item in level:
            if type(item) is list:
                inner.extend(item)
            elif type(item) is dict:
                inner.extend(item.values())
        level = inner
    return any(type(item) in (list, dict) for item in level)


def frame(text: str) -> bytes:
    """A frame of ``text``, which is ASCII of at most `MAX_FRAME` bytes (unchecked)."""
    return _LENGTH.pack(len(text)) + text.encode("ascii")


def encode(message: Any, limit: int = MAX_FRAME) -> bytes:
    """A message (one of this protocol, or plain JSON) as a frame.

    Raises `LimitExceeded` for more than ``limit`` bytes, `ValueNotSupported` for values without a JSON form (NaN too).
    """
    plain = message.to_json() if hasattr(message, "to_json") else message
    try:
        text = "".join(_pieces(plain, 0))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueNotSupported(f"a message to or from the tracker: {error}") from None
    if len(text) > limit:
        raise LimitExceeded(f"a tracker frame of {len(text)} bytes (allowed: {limit})")
    return _LENGTH.pack(len(text)) + text.encode("ascii")


# ------------------------------------------------------------------ TVM's messages


class TvmMessage:
    """A message of TVM's: a list, its ``code`` first."""

    code: ClassVar[int]

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [self.code, *vars(self).values()]


@dataclass(frozen=True)
class Ping(TvmMessage):
    """Checks that the tracker answers. Our clients and servers send their ``hello`` in it."""

    code = PING
    hello: Hello | None = None

    def to_json(self) -> list[Any]:
        return [PING] if self.hello is None else [PING, self.hello.to_json()]


@dataclass(frozen=True)
class Stop(TvmMessage):
    """Stop the tracker, if ``stop_key`` is its own."""

    code = STOP
    stop_key: str


@dataclass(frozen=True)
class Put(TvmMessage):
    """A server offers one session: ``match_key`` at ``port``; ``address`` replaces the connection's own."""

    code = PUT
    key: str
    port: int
    match_key: str
    address: str | None = None

    def to_json(self) -> list[Any]:
        return [PUT, self.key, [self.port, self.match_key], self.address]


@dataclass(frozen=True)
class TvmRequest(TvmMessage):
    """A TVM client requests a device; higher ``priority`` first."""

    code = REQUEST
    key: str
    user: str = ""
    priority: float = 1


@dataclass(frozen=True)
class UpdateInfo(TvmMessage):
    """A server's name (``server:KEY``) and address, for the summary."""

    code = UPDATE_INFO
    key: str
    host: str | None
    port: int

    def to_json(self) -> list[Any]:
        return [UPDATE_INFO, {"key": self.key, "addr": [self.host, self.port]}]


@dataclass(frozen=True)
class TvmSummary(TvmMessage):
    """Queues and servers at this moment."""

    code = SUMMARY


@dataclass(frozen=True)
class GetPending(TvmMessage):
    """The match keys of this connection that were not granted."""

    code = GET_PENDING


ToTracker = Union[TvmMessage, Ask, control.Answer, control.Via]


class BadMessage(ProtocolError):
    """A complete frame with invalid content.

    ``reply`` is the content of the reply to the sender, None where its protocol has none. ``fatal``: the connection
    must close, because the sender would wait for another reply without end.
    """

    def __init__(self, message: str, reply: Any = None, fatal: bool = True) -> None:
        super().__init__(message)
        self.reply = reply
        self.fatal = fatal


def _ping(rest: list[Any]) -> Ping:
    hello = rest[0] if rest else None
    if type(hello) is dict and hello.get("op") == Hello.op:
        return Ping(Hello.from_json(hello, "hello"))
    return Ping()


def _put(rest: list[Any]) -> Put:
    key, offer = rest[0], rest[1]
    if type(offer) is not list or len(offer) != 2:
        raise ProtocolError("an offer must be [port, match key]")
    address = rest[2] if len(rest) > 2 else None
    return Put(
        checks.key(key, "key"),
        checks.port(offer[0], "port"),
        checks.match_key(offer[1], "match key"),
        None if address is None else checks.text(address, "address"),
    )


def _request(rest: list[Any]) -> TvmRequest:
    user = rest[1] if len(rest) > 1 else ""
    priority = rest[2] if len(rest) > 2 else 1
    return TvmRequest(
        checks.key(rest[0], "key"),
        "" if user is None else checks.text(user, "user"),
        checks.number(priority, "priority"),
    )


def _update_info(rest: list[Any]) -> UpdateInfo:
    info = rest[0]
    address = info.get("addr") if type(info) is dict else None
    if type(address) is not list or len(address) != 2:
        raise checks.wrong("server info", '{"key": …, "addr": [host, port]}', info)
    host, name = address[0], info.get("key")
    # A proxy's name lists its keys, so it may be longer than any one of them.
    if type(name) is not str or not name.isprintable() or len(name) > MAX_FRAME // 4:
        raise checks.wrong("a server's key", "printable text", name)
    return UpdateInfo(name, None if host is None else checks.text(host, "host"), checks.port(address[1], "port"))


_TVM: dict[int, Callable[[list[Any]], TvmMessage]] = {
    PING: _ping,
    STOP: lambda rest: Stop(checks.sentence(rest[0], "stop key")),
    PUT: _put,
    REQUEST: _request,
    UPDATE_INFO: _update_info,
    SUMMARY: lambda rest: TvmSummary(),
    GET_PENDING: lambda rest: GetPending(),
}


# ------------------------------------------------------------------ messages in frames


def parse_to_tracker(value: Any, known: dict[str, type[Ask]] = control.TO_TRACKER) -> ToTracker:
    """The message of a client or a server in the JSON ``value`` of a frame. ``known``: the questions of ours, by op.

    Raises `BadMessage` for a message that is neither TVM's nor ours, and for invalid fields.
    """
    if type(value) is list:
        return _parse_tvm(value)
    if type(value) is dict:
        if value.get("op") == control.Via.op:
            return _parse_news(control.Via, value)
        return _parse_ours(value, known)
    raise BadMessage(f"a frame to the tracker is a list or an object, not {checks.shown(value)}")


def parse_from_tracker(value: Any) -> Ask | control.Answer | control.Queued:
    """The tracker's message to a client or a server in an object. Replies to TVM's messages are plain JSON.

    Raises `BadMessage` for anything but a question, an answer or an event.
    """
    if type(value) is not dict:
        raise BadMessage(f"the tracker sent {checks.shown(value)} where an object belongs")
    if value.get("event") == "queued":
        return _parse_news(control.Queued, value)
    return _parse_ours(value, control.FROM_TRACKER)


def _parse_tvm(value: list[Any]) -> TvmMessage:
    code = value[0] if value else None
    parse = _TVM.get(code) if type(code) is int else None
    if parse is None:
        raise BadMessage(f"unknown tracker code {checks.shown(code)}")
    try:
        return parse(value[1:])
    except IndexError:
        problem = f"a message of code {code} with {len(value) - 1} fields"
    except ProtocolError as error:
        problem = str(error)
    # TVM's client reads a request's reply as [code, value], and shows it if the code is not success.
    if code == REQUEST:
        raise BadMessage(problem, [FAIL, problem], fatal=False) from None
    raise BadMessage(problem, FAIL) from None


def _parse_news(kind: type[checks.AnyMessage], value: dict[str, Any]) -> checks.AnyMessage:
    """Parse a message that has no answer."""
    try:
        return kind.from_json(value, kind.__name__.lower())
    except ProtocolError as error:
        raise BadMessage(str(error)) from None


def _parse_ours(value: dict[str, Any], known: dict[str, type[Ask]]) -> Ask | control.Answer:
    asker = value.get("id")
    if type(asker) is not int or not 0 <= asker <= checks.MAX_ID:
        raise BadMessage("an object without an id of its own")
    if "op" not in value:
        return _parse_news(control.Answer, value)
    op = value["op"]
    message = known.get(op) if type(op) is str else None
    try:
        if message is None:
            raise ProtocolError(f"unknown op {checks.shown(op)}")
        return message.from_json(value)
    except ProtocolError as error:
        refusal = control.Answer(asker, False, "BadRequest", str(error))
        raise BadMessage(str(error), refusal.to_json(), fatal=False) from None
