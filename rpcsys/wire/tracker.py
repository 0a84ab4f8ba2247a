"""The tracker connection: TVM's frames and messages, and the way to ours.

After the magic come frames of JSON (:mod:`rpcsys.wire.tracker_frames`). A frame that holds a list is
TVM's (`Put` and its like, a code first); an object is ours (:mod:`rpcsys.wire.control`). A reply
to a TVM frame carries no id: replies come in the order of their requests, but for `TvmRequest`, whose
reply comes when a server is free.

Rules this file keeps:

- Bytes in, messages out; any bytes give a message or a :class:`~rpcsys.errors.ProtocolError`, and a
  `FrameReader` holds no more than one frame beyond what it was fed.
- `BadMessage` is a whole frame that says something it may not; the connection can answer and go on.

Known weakness: TVM's client writes length and text of a frame in two pieces with Nagle's algorithm on, so
whoever reads these frames must send its acknowledgements at once (TCP_QUICKACK) or wait 40 ms for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Union

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks, control
from rpcsys.wire.control import Ask, Hello
from rpcsys.wire.tracker_frames import MAGIC, MAGIC_BYTES, MAX_FRAME, FrameReader, decode_json, encode

__all__ = [
    "FAIL",
    "GET_PENDING",
    "MAGIC",
    "MAGIC_BYTES",
    "MAX_FRAME",
    "PING",
    "PUT",
    "REQUEST",
    "STOP",
    "SUCCESS",
    "SUMMARY",
    "UPDATE_INFO",
    "BadMessage",
    "FrameReader",
    "GetPending",
    "Ping",
    "Put",
    "Stop",
    "ToTracker",
    "Tvm",
    "TvmRequest",
    "TvmSummary",
    "UpdateInfo",
    "decode_json",
    "encode",
    "parse_from_tracker",
    "parse_to_tracker",
]

PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, GET_PENDING = 1, 2, 3, 4, 5, 6, 7
SUCCESS, FAIL = 0, -1


class BadMessage(ProtocolError):
    """A whole frame with content that may not be.

    ``reply`` is the frame content that tells the sender so, None where its protocol has no room for one;
    ``fatal`` says that the connection cannot go on (the sender would wait for another reply for ever).
    """

    def __init__(self, message: str, reply: Any = None, fatal: bool = True) -> None:
        super().__init__(message)
        self.reply = reply
        self.fatal = fatal


# TVM's messages.


@dataclass(frozen=True)
class Ping:
    """Is the tracker alive? ``hello`` is how ours present themselves in it."""

    hello: Hello | None = None

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [PING] if self.hello is None else [PING, self.hello.to_json()]


@dataclass(frozen=True)
class Stop:
    """End the tracker, if ``stop_key`` is its own."""

    stop_key: str

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [STOP, self.stop_key]


@dataclass(frozen=True)
class Put:
    """A server offers one session: ``match_key`` at ``port``; ``address`` replaces the connection's own."""

    key: str
    port: int
    match_key: str
    address: str | None = None

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [PUT, self.key, [self.port, self.match_key], self.address]


@dataclass(frozen=True)
class TvmRequest:
    """A TVM client wants a device; higher ``priority`` first."""

    key: str
    user: str = ""
    priority: float = 1

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [REQUEST, self.key, self.user, self.priority]


@dataclass(frozen=True)
class UpdateInfo:
    """A server's name (``server:KEY``) and address, for the summary."""

    key: str
    host: str | None
    port: int

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [UPDATE_INFO, {"key": self.key, "addr": [self.host, self.port]}]


@dataclass(frozen=True)
class TvmSummary:
    """Queues and servers at this moment."""

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [SUMMARY]


@dataclass(frozen=True)
class GetPending:
    """Which of this connection's match keys have not been handed out?"""

    def to_json(self) -> list[Any]:
        """The frame's list."""
        return [GET_PENDING]


Tvm = Union[Ping, Stop, Put, TvmRequest, UpdateInfo, TvmSummary, GetPending]
ToTracker = Union[Tvm, Ask, control.Answer, control.Via]


def _ping(rest: list[Any]) -> Ping:
    said = rest[0] if rest else None
    if type(said) is dict and said.get("op") == Hello.op:
        return Ping(Hello.from_json(said, "hello"))
    return Ping()


def _put(rest: list[Any]) -> Put:
    key, offer = rest[0], rest[1]
    if type(offer) is not list or len(offer) != 2:
        raise checks.wrong("an offer", "[port, match key]", offer)
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


_TVM: dict[int, Callable[[list[Any]], Tvm]] = {
    PING: _ping,
    STOP: lambda rest: Stop(checks.sentence(rest[0], "stop key")),
    PUT: _put,
    REQUEST: _request,
    UPDATE_INFO: _update_info,
    SUMMARY: lambda rest: TvmSummary(),
    GET_PENDING: lambda rest: GetPending(),
}


# What a frame says.


def parse_to_tracker(value: Any) -> ToTracker:
    """What a client or a server tells the tracker with the JSON ``value`` of a frame.

    Raises
    ------
    BadMessage: neither TVM's nor ours, or fields that hold what they may not.
    """
    if type(value) is list:
        return _parse_tvm(value)
    if type(value) is dict:
        if value.get("op") == control.Via.op:
            return _parse_via(value)
        message: Ask | control.Answer = _parse_ours(value, control.TO_TRACKER)
        return message
    raise BadMessage(f"a frame to the tracker is a list or an object, not {checks.shown(value)}")


def parse_from_tracker(value: Any) -> Ask | control.Answer | control.Queued:
    """What the tracker tells a client or a server with an object. Replies to TVM's codes are plain JSON.

    Raises
    ------
    BadMessage: an object that is neither a question, an answer nor an event.
    """
    if type(value) is not dict:
        raise BadMessage(f"the tracker sent {checks.shown(value)} where an object belongs")
    if value.get("event") == "queued":
        try:
            return control.Queued.from_json(value, "queued")
        except ProtocolError as error:
            raise BadMessage(str(error)) from None
    message: Ask | control.Answer = _parse_ours(value, control.FROM_TRACKER)
    return message


def _parse_tvm(value: list[Any]) -> Tvm:
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


def _parse_via(value: dict[str, Any]) -> control.Via:
    try:
        return control.Via.from_json(value)
    except ProtocolError as error:
        raise BadMessage(str(error)) from None  # nobody waits for an answer to it


def _parse_ours(value: dict[str, Any], known: dict[str, type[Ask]]) -> Any:
    asker = value.get("id")
    if type(asker) is not int or not 0 <= asker <= checks.MAX_ID:
        raise BadMessage("an object without an id of its own")
    if "op" not in value:
        try:
            return control.Answer.from_json(value)
        except ProtocolError as error:
            raise BadMessage(str(error)) from None
    op = value["op"]
    message = known.get(op) if type(op) is str else None
    try:
        if message is None:
            raise ProtocolError(f"unknown op {checks.shown(op)}")
        return message.from_json(value)
    except ProtocolError as error:
        refusal = control.Answer(asker, False, "BadRequest", str(error))
        raise BadMessage(str(error), refusal.to_json(), fatal=False) from None
