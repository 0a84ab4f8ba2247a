"""The front: the process of a closed lab's server that ends TLS for clients whose session's process cannot.

Those are clients of TVM's protocol, and of deployed modules, which are handed from process to process. The supervisor
gives it each connection whose outer greeting it has read, with the private key and the match key that belong to it. It
gets back a plain socket, on which the client's greeting counts as read and not answered.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
from typing import Any, Dict, Optional, Tuple

from rpcsys.errors import one_line, printable
from rpcsys.link import identity, tls
from rpcsys.link.openssl import ssl
from rpcsys.link.tcp import NO_SIGNAL
from rpcsys.link.termination import READ
from rpcsys.link.terminator import LIMIT, TICK_S, Terminator
from rpcsys.server.sandbox import messages, processes
from rpcsys.wire.checks import MAX_TEXT
from rpcsys.wire.handshake import Greeting
from rpcsys.wire.pinned_keys import public_name

_OWN = 64  # descriptors that are no client's


def serve(control: socket.socket) -> str:
    """Serve until the supervisor is gone; the outcome."""
    processes.set_name("rpcsys-front")
    processes.set_dumpable(False)  # it has the keys of sessions that begin
    Front(control).run()
    return "closed"


class Front:
    """One terminator, and the supervisor's orders on ``control``.

    An order is ``{"secure": connection, "matchkey": text, "seed": hexadecimal, "answer": text}`` with the connection's
    descriptor; `messages.OF_FRONT` has the answers. With a public name as its match key, clients may say any secret:
    the supervisor decides, and may order ``{"end": connections, "words": text}``, the last that clients hear.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._terminator = Terminator(_limit())
        self._terminator.watch(control.fileno(), self._take, READ)
        self._members: Dict[int, socket.socket] = {}  # open connections whose secret the supervisor has judged
        self._own: Optional[Tuple[str, ssl.SSLContext]] = None  # that of deployed modules, with its private key
        self._over = False

    def run(self) -> None:
        """Serve until the supervisor is gone."""
        while not self._over:
            self._terminator.turn(TICK_S)

    def _take(self, _: int) -> None:
        data, descriptor = messages.receive(self._control)
        self._over = not data
        order = json.loads(data) if data else {}
        if order:
            messages.send_json(self._control, took=True)
        for conn in order.get("end", ()):
            self._end(conn, order["words"].encode("latin-1"))
        if descriptor is None:
            return
        conn, sock, matchkey = order["secure"], socket.socket(fileno=descriptor), order["matchkey"]

        def opened(greeting: Greeting, plain: socket.socket) -> None:
            options = greeting.options
            fields = {"session": options.session, "serve": options.serve, "timeout_s": options.timeout_s}
            if public_name(matchkey) == matchkey:
                self._members[conn] = sock
                fields["said"] = greeting.key
            known = {name: _line(value) for name, value in fields.items() if value is not None}
            with plain:
                messages.send_json(self._control, plain.fileno(), secured=conn, **known)
            pending.clear()

        def ended(error: Optional[Exception]) -> None:
            if pending:  # the supervisor sees the end of an open connection itself
                messages.send_json(self._control, refused=conn, why=one_line(error) if error else "the front ends")
            elif self._members.pop(conn, None) is not None:
                messages.send_json(self._control, closed=conn)

        pending = [conn]
        context = self._context(order["seed"], kept=public_name(matchkey) == matchkey)
        answer = order["answer"].encode("latin-1")
        self._terminator.serve(sock, context, [matchkey], answer, opened, ended)

    def _context(self, seed: str, kept: bool) -> ssl.SSLContext:
        """The server's end with a private key. Only the one of many connections is ``kept``: to make it takes 1 ms."""
        if self._own is not None and self._own[0] == seed:
            return self._own[1]
        context = tls.server_context(identity.from_seed(bytes.fromhex(seed)))
        if kept:
            self._own = seed, context
        return context

    def _end(self, conn: int, words: bytes) -> None:
        sock = self._members.get(conn)
        if sock is not None:
            with contextlib.suppress(OSError):  # it takes nothing more, or is closed already
                sock.send(words, socket.MSG_DONTWAIT | NO_SIGNAL)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _line(value: Any) -> Any:
    """A value as a message may have it: anybody may have said it who knows a public name."""
    return printable(value)[:MAX_TEXT] if isinstance(value, str) else value


def _limit() -> int:
    """Connections that this process has descriptors for: each takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * LIMIT + _OWN
    soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (soft - _OWN) // 2
