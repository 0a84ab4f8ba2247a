"""Opening a session: TCP, the handshake, and HELLO both ways."""

from __future__ import annotations

import logging
import socket
import time
from typing import Any, Dict, Literal, Optional, Tuple, Union, overload

from rpcsys.client import answers
from rpcsys.client.calls import Channel
from rpcsys.client.session import ServedModule, Session
from rpcsys.errors import NotSupported, ProtocolError, ServerRefused, ServerUnreachable, UsageError, printable
from rpcsys.link import parse_address, tune
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames, handshake
from rpcsys.wire.frames import Frame
from rpcsys.wire.reader import FrameReader

VERSION = 1
#: Bytes that a reply may take once its arrays are decoded, however few they came in (`FrameReader`).
MAX_MADE = 256 << 20
_log = logging.getLogger("rpcsys.session")


@overload
def connect(  # type: ignore[overload-overlap]  # "" is text too, and the first that fits counts
    host: str,
    port: Optional[int] = ...,
    key: str = ...,
    *,
    session_timeout: Optional[float] = ...,
    timeout: float = ...,
    serve: Literal[""] = ...,
) -> Session: ...


@overload
def connect(
    host: str, port: Optional[int] = ..., key: str = ..., *, timeout: float = ..., serve: str
) -> ServedModule: ...


def connect(
    host: str,
    port: Optional[int] = None,
    key: str = "",
    *,
    session_timeout: Optional[float] = None,
    timeout: float = 60.0,
    serve: str = "",
) -> Union[Session, ServedModule]:
    """Open a session with the device server at ``host``, ``port`` (or ``"host:port"``), without a tracker.

    ``key`` is the server's own key. ``session_timeout`` (seconds) asks the device to end the session
    after that time; ``timeout`` (seconds) bounds how long a busy server may let this wait.
    With ``serve``, the name of a module that is deployed there, this is a connection to that module, which it shares
    with other clients: no slot, no lease, no session.

    Raises `ServerUnreachable`, `ServerRefused` (wrong key), `NotSupported` (a server that cannot do
    rpcsys/1), `ProtocolError`, `UsageError` (what is no address).
    """
    address = (host, port) if port is not None else parse_address(host)
    if serve:
        if session_timeout:
            raise UsageError("session_timeout is for a session of your own; a shared connection has no such limit")
        return open_served(address, serve, key, timeout=timeout)
    return open_session(address, key, session_timeout=session_timeout, timeout=timeout)


def open_session(
    address: Tuple[str, int],
    match_key: str,
    *,
    session_timeout: Optional[float] = None,
    timeout: float = 60.0,
    lease: Optional[Dict[str, Any]] = None,
) -> Session:
    """Open a session with the right that ``match_key`` gives. Errors as for `connect`."""
    return _open(address, match_key, None, session_timeout, timeout, lease or {})


def open_served(address: Tuple[str, int], name: str, key: str = "", *, timeout: float = 60.0) -> ServedModule:
    """Connect to the deployed module ``name``; ``key`` finds its server behind a proxy. Errors as for `connect`."""
    return ServedModule(_open(address, key, name, None, timeout, {}))


def open_deployment(address: Tuple[str, int], *, timeout: float = 60.0) -> Session:
    """A connection to a server's deployments, which can upload and call ``deploy.…`` only. Errors as for `connect`."""
    return _open(address, "", "", None, timeout, {})


def _open(
    address: Tuple[str, int],
    match_key: str,
    serve: Optional[str],
    session_timeout: Optional[float],
    timeout: float,
    lease: Dict[str, Any],
) -> Session:
    options = handshake.Options(session=handshake.SESSION, serve=serve)
    opening = handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, match_key, options))
    deadline = time.monotonic() + timeout
    sock = dial(address, timeout)
    try:
        tune(sock)
        _check(_answer(sock, opening, address, match_key, deadline), address, match_key)
        stream = Stream(sock, FrameReader(max_made=MAX_MADE))
        hello = _hello(stream, address, deadline, session_timeout)
        peer = "{}:{}".format(*address)
        channel = Channel(stream, peer, hello["window"], _log_line)
        return Session(channel, hello, lease, address)
    except BaseException:
        sock.close()
        raise


def dial(address: Tuple[str, int], timeout: float) -> socket.socket:
    """A connected TCP socket. Raises `ServerUnreachable` with what to check."""
    try:
        return socket.create_connection(address, timeout=timeout)
    except (OverflowError, ValueError, TypeError):  # of which UnicodeError is one
        raise UsageError("{}:{} is no address; write a host and a port below 65536".format(*address)) from None
    except OSError as error:
        reason = f"no answer within {timeout:g} s" if isinstance(error, socket.timeout) else error.strerror or error
        raise ServerUnreachable(
            f"no device server at {address[0]}:{address[1]} ({reason}); is it running, and is that its address? try: query_tracker"
        ) from None


def _answer(
    sock: socket.socket, opening: bytes, address: Tuple[str, int], match_key: str, deadline: float
) -> handshake.HandshakeAnswer:
    """Send the greeting; what the server answers."""
    reader = handshake.AnswerReader()
    answer = None
    while answer is None:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            if opening:
                sock.sendall(opening)
                opening = b""
            data = sock.recv(reader.needed)
        except socket.timeout:
            raise ServerUnreachable(
                "{}:{} did not answer in time: all slots of the server may be taken (wait longer with timeout=…, or lease one "
                "through a tracker), or it is a proxy where no server of {!r} waits (start one: python -m rpcsys.server "
                "--through-proxy --host {} --port {} --key KEY)".format(*address, match_key, *address)
            ) from None
        except OSError as error:
            raise ServerUnreachable(f"{address[0]}:{address[1]}: {error.strerror or error}") from None
        if not data:
            raise ServerRefused(
                "the server at {}:{} closed the connection before it answered: it is no RPC server, or it is stopping".format(
                    *address
                )
            )
        answer = reader.receive(data)
    return answer


def _check(answer: handshake.HandshakeAnswer, address: Tuple[str, int], match_key: str) -> None:
    where = "{}:{}".format(*address)
    if answer.code == "mismatch":
        raise ServerRefused(
            f"{match_key!r} is not served at {where} now: the key is another one, its turn is over, or its server has left the "
            "proxy there; request it again through the tracker, or see query_tracker"
        )
    if answer.code == "duplicate":
        raise ServerRefused(
            f"another client waits for {match_key!r} at {where} already, and a proxy without a tracker lets one wait; "
            "try again when it is served, or use a tracker"
        )
    if not answer.speaks_rpcsys:
        raise NotSupported(
            f"the server at {where} cannot do rpcsys/1 sessions (it is TVM's own); "
            "use tvm.rpc.connect with it, or start rpcsys-server on the board"
        )


def _hello(
    stream: Stream, address: Tuple[str, int], deadline: float, session_timeout: Optional[float]
) -> Dict[str, Any]:
    """Exchange HELLO; the server's, as a dict."""
    mine: Dict[str, Any] = {"version": VERSION}
    if session_timeout:
        mine["limit_s"] = float(session_timeout)
    try:
        stream.send(frames.encode(frames.HELLO, 0, mine))
        frame = stream.receive_within(deadline - time.monotonic())
    except Ended as end:
        raise ServerUnreachable(
            "the server at {}:{} accepted the session and was gone: {}".format(*address, end)
        ) from None
    if frame is None:
        raise ServerUnreachable(
            "the server at {}:{} accepted the session and then did not greet in time".format(*address)
        )
    if frame.kind == frames.ERROR:
        raise answers.error_of(frame)
    if frame.kind != frames.HELLO:
        raise ProtocolError(f"a session begins with HELLO, not with {frames.KINDS[frame.kind]}")
    return _checked(frame.fields())


def _checked(hello: Dict[str, Any]) -> Dict[str, Any]:
    """A HELLO with the fields that this client relies on. Raises `ProtocolError` where they make no sense."""
    for name, missing in (("window", {}), ("capabilities", {}), ("key", "")):
        hello.setdefault(name, missing)
    whole: Dict[str, Any] = answers.from_device(answers.HELLO, hello, "itself")
    return whole


def _log_line(frame: Frame) -> None:
    """What a session says for its user to read goes to the client's logging."""
    level = frame.get("level", logging.INFO)
    if type(level) is not int or not 0 <= level <= logging.CRITICAL:
        level = logging.INFO
    for line in str(frame.get("message", "")).split("\n"):
        _log.log(level, "%s", printable(line, "\t"))
