"""The server's end of its clients' connections: accepting, reading greetings and no more, watching for their end.

A descriptor of every session's connection stays here, to see the client hang up, to keep one that takes nothing, and to
shut the connection down when the session is over, whoever else may have inherited it.
"""

from __future__ import annotations

import errno
import socket

from rpcsys.errors import ProtocolError
from rpcsys.link import KEEPALIVE_S, drain_and_close, keep_alive, tune
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import GONE, Loop
from rpcsys.wire.handshake import SERVER, SESSION, Greeting, OpeningReader, Options, encode_greeting, encode_mismatch

BURST = 64  # connections accepted in one wake-up; others have their turn between
PAUSE_S = 0.5  # when descriptors or memory run out, for sessions to end
REFUSED = (
    "the server does not take this session: its key has been used, or its board is not fit; request another, "
    "or see query_tracker"
)

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Clients:
    """Connections by number; ``key``: what clients are told."""

    def __init__(self, loop: Loop, listener: socket.socket | None, key: str) -> None:
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
        """Keep the connections of clients that take nothing."""
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
                if error.errno in _EXHAUSTED:  # at once again it would fail at once again, for ever
                    self._loop.remove(self._listener.fileno())
                    self._loop.call_at(self._loop.now() + PAUSE_S, self._listen)
                return  # otherwise the connection broke before it was taken
            self._take(sock, f"{address[0]}:{address[1]}")

    def _take(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        tune(sock)
        conn, reader = self._add(sock), OpeningReader()
        self._loop.add(sock.fileno(), lambda: self._read(conn, peer, sock, reader))
        self._loop.post(ev.Accepted, conn, peer)

    def adopt(self, sock: socket.socket, rpcsys: bool) -> int:
        """Take over a connection whose handshake is done, at a proxy; ``rpcsys``: of an rpcsys/1 client."""
        conn = self._add(sock)
        self._adopted[conn] = rpcsys
        self._await_end(conn, sock)
        return conn

    def take_back(self, descriptor: int) -> int:
        """Take over a connection that another process of ours had. Raises `ProtocolError` for any other descriptor."""
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            raise ProtocolError("no socket") from None
        if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
            sock.detach()
            raise ProtocolError("no connection of a client")
        sock.setblocking(False)
        conn = self._add(sock)
        self._await_end(conn, sock)
        return conn

    def _add(self, sock: socket.socket) -> int:
        self._last += 1
        self._sockets[self._last] = sock
        self._loop.call_at(self._keep_at, self._keep)
        return self._last

    def _remove(self, conn: int) -> socket.socket | None:
        """Forget a connection; its socket, if it is known."""
        sock = self._sockets.pop(conn, None)
        self._adopted.pop(conn, None)
        if sock is not None:
            self._loop.remove(sock.fileno())
        if not self._sockets:
            self._loop.call_at(None, self._keep)
        return sock

    def release(self, conn: int) -> None:
        """Close a connection here only: another process has it now."""
        sock = self._remove(conn)
        if sock is not None:
            sock.close()

    def _read(self, conn: int, peer: str, sock: socket.socket, reader: OpeningReader) -> None:
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
            self._loop.post(ev.Broken, conn, str(error) if isinstance(error, ProtocolError) else "")
            return
        self._loop.remove(sock.fileno())
        self._await_end(conn, sock)
        said = greeting.options
        self._loop.post(ev.Opened, conn, peer, greeting.role, greeting.key, said.session, said.serve, said.timeout_s)

    def _await_end(self, conn: int, sock: socket.socket) -> None:
        self._loop.add(sock.fileno(), lambda: self._gone(conn, sock), GONE)

    def _gone(self, conn: int, sock: socket.socket) -> None:
        self._loop.remove(sock.fileno())
        self._loop.post(ev.HungUp, conn)

    # Ending connections

    def descriptor(self, conn: int) -> int:
        """The descriptor of a connection, to hand to a child."""
        return self._sockets[conn].fileno()

    def answer(self, conn: int, session: bool) -> bytes:
        """What a session has to say first: the answer to its client's greeting, unless the proxy has given it."""
        return b"" if conn in self._adopted else self.success(session)

    def success(self, session: bool) -> bytes:
        """The answer to a greeting that is accepted; ``session``: for an rpcsys/1 client."""
        # TVM's client takes any key with a ``server:`` before it, and ignores options behind it.
        return encode_greeting(Greeting(SERVER, self._key, Options(session=SESSION if session else None)))

    def refuse(self, conn: int, how: str) -> None:
        """Answer ``mismatch``, or with the ``version`` we speak, and close."""
        if conn not in self._adopted:
            self.drop(conn, self.success(True) if how == "version" else encode_mismatch())
            return
        if self._adopted[conn]:  # a proxy has told it of success already
            self.send_error(conn, "ServerRefused", REFUSED, False)
        self.drop(conn)

    def turn_away(self, conn: int, kind: str, text: str, unanswered: bool) -> None:
        """Close a connection, having told its client why, as :meth:`send_error` does."""
        self.send_error(conn, kind, text, unanswered)
        self.drop(conn)

    def send_error(self, conn: int, kind: str, text: str, unanswered: bool) -> None:
        """Tell an rpcsys/1 client, whose greeting may be ``unanswered``, why it is ended: an error's class and text.

        Its process is dead. If that was in the middle of a frame, the client takes this for a part of it, and
        sees a broken connection; if the process has said it itself, nothing more can be sent.
        """
        from rpcsys.server.session.outgoing import error_frame

        greeting = self.answer(conn, True) if unanswered else b""
        pieces = [greeting, *error_frame(0, kind, text, retryable=kind == "Busy")]
        try:
            self._sockets[conn].sendmsg(pieces, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (KeyError, OSError):
            pass

    def drop(self, conn: int, last_words: bytes = b"") -> None:
        """Close a connection for everyone who holds a copy of it, after ``last_words``."""
        sock = self._remove(conn)
        if sock is not None:
            drain_and_close(sock, last_words)
