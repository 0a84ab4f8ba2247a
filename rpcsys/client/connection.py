"""Opening a session: TCP, the handshake, and HELLO both ways."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Dict, Literal, Optional, Tuple, Union, overload

from rpcsys import stream as streams
from rpcsys.client import answers, spans
from rpcsys.client.session import ServedModule, Session
from rpcsys.errors import NotSupported, ProtocolError, ServerRefused, ServerUnreachable, UsageError
from rpcsys.link.address import host_and_port, parse_address
from rpcsys.link.tcp import tune
from rpcsys.stream import Ended, Stream
from rpcsys.wire import first_bytes, frames, handshake, pinned_keys
from rpcsys.wire.limits import Limits

if TYPE_CHECKING:
    from rpcsys.client.secure_opening import SecureOpening

VERSION = 1
#: Bytes that a reply's decoded arrays may take, however small the reply is (`Limits`).
MAX_MADE = 256 << 20


@overload
def connect(  # type: ignore[overload-overlap]  # "" is a str, too; the first match counts
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

    ``key`` is the server's own key. ``session_timeout`` (seconds) has the device end the session after that time;
    ``timeout`` (seconds) bounds the wait for a busy server. With ``serve``, the name of a deployed module, this opens a
    connection to that module, which other clients share: no slot, no lease, no session.

    Raises `ServerUnreachable`, `ServerRefused` (wrong key), `NotSupported` (a server without rpcsys/1),
    `ProtocolError`, `UsageError` (an invalid address).
    """
    address = parse_address(host) if port is None else _address(host, port)
    if serve:
        if session_timeout:
            raise UsageError("session_timeout is for a session of your own; a shared connection has no such limit")
        return ServedModule(open_session(address, key, serve=serve, timeout=timeout))
    return open_session(address, key, session_timeout=session_timeout, timeout=timeout)


def open_session(
    address: Tuple[str, int],
    match_key: str = "",
    *,
    serve: Optional[str] = None,
    session_timeout: Optional[float] = None,
    timeout: float = 60.0,
    lease: Optional[Dict[str, Any]] = None,
    hold: bool = False,
) -> Session:
    """Open a session with ``match_key``. Errors as for `connect`. ``hold``: others may attach to it; it calls nothing.

    With ``serve``, open a connection to that deployed module; ``match_key`` addresses its server at a proxy. With
    ``serve=""``, open one to a server's deployments, which allows only uploads and ``deploy.…``. A pinned match key
    means TLS, always: nothing is negotiated.
    """
    where = "{}:{}".format(*address)
    deadline, limits = time.monotonic() + timeout, Limits(max_made=MAX_MADE)
    opening = _secure_opening(match_key, where)
    if opening is None:
        options = handshake.Options(session=handshake.SESSION, serve=serve)
        first = handshake.encode_greeting(handshake.Greeting(handshake.CLIENT, match_key, options))
    else:
        first = opening.first
    recorder, about = spans.recorder(), _about(address, lease or {})
    with recorder.span("session.open", about):
        sock = _dial(address, timeout)
        try:
            tune(sock)
            shown = pinned_keys.shown(match_key)
            _check(_answer(sock, first, address, shown, deadline), where, shown)
            stream = streams.open(sock, limits) if opening is None else opening.finish(sock, serve, deadline, limits)
            hello = _exchange_hello(stream, where, deadline, session_timeout, hold)
            return Session(recorder.channel(stream, where, hello["window"], about), hello, lease or {}, address)
        except BaseException:
            sock.close()
            raise


def _about(address: Tuple[str, int], lease: Dict[str, Any]) -> Dict[str, Any]:
    """The attributes of a session's spans."""
    about = {"rpc.system": "rpcsys", "server.address": address[0], "server.port": address[1]}
    named = {"rpcsys.lease": lease.get("lease"), "rpcsys.board": lease.get("server"), "rpcsys.key": lease.get("key")}
    return {**about, **{name: value for name, value in named.items() if value}}


def _secure_opening(match_key: str, where: str) -> Optional[SecureOpening]:
    """The opening with a pinned match key; None for any other. Raises `UsageError` for a part of one."""
    pinned = pinned_keys.parse(match_key)
    if pinned is None and ":t1-" not in match_key:
        return None
    if pinned is None or not pinned.secret:
        raise UsageError("this is no whole match key: it lacks its secret, or was cut; copy all of it")
    from rpcsys.client.secure_opening import SecureOpening  # with ssl, 5 MB

    return SecureOpening(pinned, where)


def _address(host: str, port: int) -> Tuple[str, int]:
    with_port = isinstance(host, str) and host.count(":") == 1 and not host.startswith(":")
    return host_and_port(host, port, port) if with_port else (host, port)


def _dial(address: Tuple[str, int], timeout: float) -> socket.socket:
    try:
        return socket.create_connection(address, timeout=timeout)
    except (OverflowError, ValueError, TypeError):  # of which UnicodeError is one
        raise UsageError("{}:{} is no address; write a host and a port below 65536".format(*address)) from None
    except OSError as error:
        reason = f"no answer within {timeout:g} s" if isinstance(error, socket.timeout) else error.strerror or error
        raise ServerUnreachable(
            f"no device server at {address[0]}:{address[1]} ({reason}); is it running, and is that its address? "
            "try: query_tracker"
        ) from None


def _answer(
    sock: socket.socket, greeting: bytes, address: Tuple[str, int], match_key: str, deadline: float
) -> handshake.HandshakeAnswer:
    """Send the greeting. Returns the server's answer."""
    reader = handshake.AnswerReader()
    answer = None
    try:
        sock.sendall(greeting)
        while answer is None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            data = sock.recv(reader.needed)
            if not data:
                raise ServerRefused(
                    "the server at {}:{} closed the connection before it answered: it is no RPC server, or it is "
                    "stopping".format(*address)
                )
            answer = reader.receive(data)
    except first_bytes.OtherProtocol as error:
        what = error.kind or "no RPC server or proxy"
        ports = "give the port of a device server, by default 9090"
        raise ProtocolError("{}:{} is {}; {}, or lease a device by its key".format(*address, what, ports)) from None
    except socket.timeout:
        raise ServerUnreachable(
            "{}:{} did not answer in time; all slots of the server may be taken (wait longer with timeout=…, or lease "
            "one through a tracker), or it is a proxy where no server of {!r} waits (start one: python -m "
            "rpcsys.server --through-proxy --host {} --port {} --key KEY)".format(*address, match_key, *address)
        ) from None
    except OSError as error:
        raise ServerUnreachable(f"{address[0]}:{address[1]}: {error.strerror or error}") from None
    return answer


def _check(answer: handshake.HandshakeAnswer, where: str, match_key: str) -> None:
    """Raise the error for any other answer than that of a server with rpcsys/1. ``match_key``: as people may see it."""
    if answer.code == "mismatch":
        raise ServerRefused(
            f"{match_key!r} is not served at {where} now: the key is another one, its turn is over, or its server has "
            "left the proxy there; request it again through the tracker, or see query_tracker"
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


def _exchange_hello(
    stream: Stream, where: str, deadline: float, session_timeout: Optional[float], hold: bool
) -> Dict[str, Any]:
    """Send our HELLO. Returns the server's fields, with all that this client reads."""
    limit: Dict[str, Any] = {"limit_s": float(session_timeout)} if session_timeout else {}
    if hold:
        limit["hold"] = True
    try:
        stream.send(frames.encode(frames.HELLO, 0, {"version": VERSION, **limit}))
        frame = stream.receive_within(deadline - time.monotonic())
    except Ended as end:
        said = stream.last_frame()
        if said is not None:
            raise answers.error_of(said) from None
        raise ServerUnreachable(f"the server at {where} accepted the session and was gone: {end}") from None
    if frame is None:
        raise ServerUnreachable(f"the server at {where} accepted the session and then did not greet in time")
    if frame.kind == frames.ERROR:
        raise answers.error_of(frame)
    if frame.kind != frames.HELLO:
        raise ProtocolError(f"a session begins with HELLO, not with {frames.KINDS[frame.kind]}")
    hello: Dict[str, Any] = {"window": {}, "capabilities": {}, "key": "", **frame.fields()}
    return answers.from_device(answers.HELLO, hello, "itself")  # type: ignore[no-any-return]
