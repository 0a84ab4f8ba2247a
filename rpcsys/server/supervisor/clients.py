"""The supervisor's side of clients' connections: accepts them, reads their greetings only, and detects their end.

The supervisor keeps a descriptor of each session's connection. With it, it sees the client hang up, keeps alive a
connection whose client reads nothing, and shuts it down after the session, whichever processes inherited it.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

from rpcsys.errors import ProtocolError
from rpcsys.link.admission import Admission, own_address, plain
from rpcsys.link.tcp import KEEPALIVE_S, NO_SIGNAL, drain_and_close, has_sent, keep_alive, tune
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import GONE, Loop
from rpcsys.wire.first_bytes import SESSION as SERVER_PORT
from rpcsys.wire.first_bytes import OtherProtocol, answer
from rpcsys.wire.frames import Buffer
from rpcsys.wire.handshake import SERVER, SESSION, Greeting, OpeningReader, Options, encode_greeting, encode_mismatch

BURST = 64  # connections accepted in one wake-up, before the loop serves other descriptors
PAUSE_S = 0.5  # pause in accepting when descriptors or memory run out
REFUSED = (
    "the server does not take this session: its key has been used, or its board is not fit; request another, "
    "or see query_tracker"
)

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Clients:
    """Connections by number. ``key``: the key in the answer to a greeting; ``served``: the networks of clients."""

    def __init__(self, loop: Loop, listener: socket.socket | None, key: str, served: Admission) -> None:
        self._served = served
        self._loop = loop
        self._listener = listener
        self._key = key
        self._last = 0
        self._sockets: dict[int, socket.socket] = {}
        self._adopted: dict[int, bool] = {}
        self._keep_at = 0.0
        self._listen()

    # Taking connections

    def _listen(self) -> None:
        if self._listener is not None:
            self._loop.add(self._listener.fileno(), self._accept)

    def stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _keep(self) -> None:
        """Keep alive the connections whose clients read nothing."""
        self._keep_at = self._loop.now() + KEEPALIVE_S
        self._loop.call_at(self._keep_at, self._keep)
        for sock in self._sockets.values():
            keep_alive(sock)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(BURST):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:  # without a pause, accepting would fail in a busy loop
                    self._loop.remove(self._listener.fileno())
                    self._loop.call_at(self._loop.now() + PAUSE_S, self._listen)
                return  # otherwise the connection broke before it was accepted
            self._take(sock, *address[:2])

    def _take(self, sock: socket.socket, host: str, port: int) -> None:
        sock.setblocking(False)
        tune(sock)
        conn, reader, peer = self._add(sock), OpeningReader(), f"{host}:{port}"
        refusal = self._served.refusal("server", plain(host), own_address(sock))
        self._loop.add(sock.fileno(), lambda: self._read(conn, peer, sock, reader, refusal))
        self._loop.post(ev.Accepted, conn, peer)

    def adopt(self, sock: socket.socket, rpcsys: bool) -> int:
        """Add a connection whose handshake a proxy has done; its number. ``rpcsys``: its client speaks rpcsys/1."""
        conn = self._add(sock)
        self._adopted[conn] = rpcsys
        self._await_end(conn, sock)
        return conn

    def take_back(self, descriptor: int) -> int:
        """Add a connection that a model host returns; its number. Raises `ProtocolError` for any other descriptor.

        Those of encrypted clients are the front's: a pair of local sockets.
        """
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            raise ProtocolError("no socket") from None
        if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            sock.detach()
            raise ProtocolError("no connection of a client")
        sock.setblocking(False)
        conn = self._add(sock)
        self._await_end(conn, sock)
        return conn

    def _add(self, sock: socket.socket) -> int:
        if not self._sockets:  # else short sessions, one after another, would be disturbed
            self._keep_at = self._loop.now() + KEEPALIVE_S
        self._last += 1
        self._sockets[self._last] = sock
        self._loop.call_at(self._keep_at, self._keep)
        return self._last

    def _remove(self, conn: int) -> socket.socket | None:
        """Stop watching a connection; its socket, None for an unknown number."""
        sock = self._sockets.pop(conn, None)
        self._adopted.pop(conn, None)
        if sock is not None:
            self._loop.remove(sock.fileno())
        if not self._sockets:
            self._loop.call_at(None, self._keep)
        return sock

    def release(self, conn: int) -> None:
        """Close a connection in this process only: another process serves it."""
        sock = self._remove(conn)
        if sock is not None:
            sock.close()

    def _read(self, conn: int, peer: str, sock: socket.socket, reader: OpeningReader, refusal: str) -> None:
        greeting = None
        try:
            while greeting is None:
                data = sock.recv(reader.needed)
                if not data:
                    self._loop.post(ev.Broken, conn)
                    return
                greeting = reader.receive(data)
        except BlockingIOError:
            return
        except (ProtocolError, OSError) as error:
            self._loop.remove(sock.fileno())
            if isinstance(error, OtherProtocol):
                with contextlib.suppress(OSError):
                    sock.send(answer(SERVER_PORT, error.kind), socket.MSG_DONTWAIT | NO_SIGNAL)
            self._loop.post(ev.Broken, conn, str(error) if isinstance(error, ProtocolError) else "")
            return
        self._loop.remove(sock.fileno())
        if refusal:
            self._turn_stranger_away(conn, greeting, refusal)
            return
        self._await_end(conn, sock)
        opts = greeting.options
        self._loop.post(ev.Opened, conn, peer, greeting.role, greeting.key, opts.session, opts.serve, opts.timeout_s)

    def _turn_stranger_away(self, conn: int, greeting: Greeting, refusal: str) -> None:
        """Refuse a client of a network that is not served; TVM's protocol has no sentence for it."""
        if greeting.options.session:
            self.send_error(conn, "ServerRefused", refusal, True)
        else:
            with contextlib.suppress(OSError):
                self._sockets[conn].send(encode_mismatch(), socket.MSG_DONTWAIT | NO_SIGNAL)
        self._loop.post(ev.Broken, conn, refusal)

    def _await_end(self, conn: int, sock: socket.socket) -> None:
        self._loop.add(sock.fileno(), lambda: self._gone(conn, sock), GONE)

    def _gone(self, conn: int, sock: socket.socket) -> None:
        self._loop.remove(sock.fileno())
        self._loop.post(ev.HungUp, conn)

    # The front

    def lend(self, conn: int) -> int:
        """The descriptor of a connection for the front, which sees its end from now on."""
        sock = self._sockets[conn]
        self._loop.remove(sock.fileno())
        return sock.fileno()

    def secured(self, conn: int, descriptor: int) -> bool:
        """Put the plain side of a connection in its place: its greeting is read and not answered. Whether it is known.

        Takes ``descriptor`` if it is.
        """
        if conn not in self._sockets:
            return False
        self._sockets.pop(conn).close()
        self._adopted.pop(conn, None)
        sock = self._sockets[conn] = socket.socket(fileno=descriptor)
        sock.setblocking(False)
        self._await_end(conn, sock)
        return True

    # Ending connections

    def descriptor(self, conn: int) -> int:
        return self._sockets[conn].fileno()

    def attach(self, send: Callable[..., bool], conn: int, child: int, peer: str) -> None:
        """Pass a connection to the process of a hold, by ``send``, and close it in this one."""
        fields = {"attach": peer, "reply": self.answer(conn, True).decode("latin-1")}
        if send(child, fields, self.descriptor(conn)):
            self.release(conn)
        else:
            self.turn_away(conn, "Busy", "the hold is over, or has no time for another; try again", True)

    def answer(self, conn: int, session: bool) -> bytes:
        """The first bytes that a session sends: the answer to the greeting; empty if a proxy has sent the answer."""
        return b"" if conn in self._adopted else self.success(session)

    def success(self, session: bool) -> bytes:
        """The answer that accepts a greeting; ``session``: for an rpcsys/1 client."""
        # TVM's client accepts any key after ``server:``, and ignores the options after the key.
        return encode_greeting(Greeting(SERVER, self._key, Options(session=SESSION if session else None)))

    def refuse(self, conn: int, how: str) -> None:
        """Answer ``mismatch``, or with our protocol's ``version``, and close."""
        if conn not in self._adopted:
            self.drop(conn, self.success(True) if how == "version" else encode_mismatch())
            return
        if self._adopted[conn]:  # the proxy has already accepted its greeting
            self.send_error(conn, "ServerRefused", REFUSED, False)
        self.drop(conn)

    def turn_away(self, conn: int, kind: str, text: str, unanswered: bool, pinned: str = "") -> None:
        """Send a client an error as :meth:`send_error` does, then close its connection."""
        self.send_error(conn, kind, text, unanswered, pinned)
        self.drop(conn)

    def send_error(self, conn: int, kind: str, text: str, unanswered: bool, pinned: str = "") -> None:
        """Send an rpcsys/1 client an error: its class and text. First answer its greeting, if that is ``unanswered``.

        A process that died may have answered it or not. The client of an encrypted session, with the match key
        ``pinned``, gets them as its last words.

        The session's process is dead. If it died within a frame, the client reads the error as part of that frame,
        and sees a broken connection. If the process sent the error itself, this send fails.
        """
        sock = self._sockets.get(conn)
        if sock is None:
            return
        unanswered = unanswered or not (pinned or has_sent(sock))
        greeting = self.answer(conn, True) if unanswered else b""
        pieces = [greeting, *((last_words(pinned, kind, text),) if pinned else _error_frame(kind, text))]
        with contextlib.suppress(OSError):
            sock.sendmsg(pieces, (), socket.MSG_DONTWAIT | NO_SIGNAL)

    def drop(self, conn: int, last_words: bytes = b"") -> None:
        """Send ``last_words``, then shut a connection down in every process that has a copy of it."""
        sock = self._remove(conn)
        if sock is not None:
            drain_and_close(sock, last_words)


def _error_frame(kind: str, text: str) -> list[Buffer]:
    from rpcsys.server.session.outgoing import error_frame

    return error_frame(0, kind, text, retryable=kind == "Busy")


def last_words(pinned: str, kind: str, text: str) -> bytes:
    """What the client of an encrypted connection, with the match key ``pinned``, is told of its end."""
    from rpcsys.wire import last_words as words  # with hmac, and so OpenSSL: in a lab only
    from rpcsys.wire import pinned_keys

    match_key = pinned_keys.parse(pinned)
    return b"" if match_key is None else words.encode(match_key, kind, text)
