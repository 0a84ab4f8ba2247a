"""The WebSocket side: a socket pair stands between a WebSocket and the proxy, so that it is a stream like any other.

Bytes wait in the pair's buffers, a message of each direction here, and otherwise where they came from: a slow end is
felt by the other, however they are connected. A WebSocket has no half-close: the end of either direction closes it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import tune

Take = Callable[[socket.socket, Any], object]

PATH = "/ws"

MAX_MESSAGE = 64 << 20
"""TVM's server sends an array as one message. Its own proxy refuses more than 10 MiB."""

STALLED_MS = 120_000
"""How long a WebSocket may take nothing: a page in the background is slow."""

_CHUNK = 256 << 10
_SILENCE_S = 10.0
_MAX_HEADERS = 16 << 10


def serve_websockets(listener: socket.socket, take: Take, origins: tuple[str, ...] = ()) -> Acceptor:
    """Hand ``take(sock, address)`` a stream for each WebSocket; closing what is returned ends it.

    ``origins``: pages from where may open one, beside the proxy's own; programs that are no browsers always may.
    """
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    server = HTTPServer(
        Application(
            [(PATH, _Handler, {"take": take, "origins": origins})], websocket_max_message_size=MAX_MESSAGE
        ),
        idle_connection_timeout=_SILENCE_S,
        body_timeout=_SILENCE_S,
        max_header_size=_MAX_HEADERS,
        max_body_size=1 << 10,
    )

    def greet(sock: socket.socket, address: Any) -> None:
        tune(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        server.handle_stream(IOStream(sock, max_buffer_size=MAX_MESSAGE + _CHUNK), address)

    return Acceptor(listener, greet)


class _Handler(WebSocketHandler):
    def initialize(self, take: Take, origins: tuple[str, ...]) -> None:
        self._take = take
        self._origins = origins
        self._inner: socket.socket | None = None
        self._sending = asyncio.Lock()

    def check_origin(self, origin: str) -> bool:
        return origin in self._origins or urlparse(origin).netloc == self.request.host

    def open(self, *_: str, **__: str) -> None:
        connection: Any = self.request.connection
        inner, outer = socket.socketpair()
        for sock in (inner, outer):
            sock.setblocking(False)
        self._inner = inner
        self._outward = asyncio.ensure_future(self._send_outward(inner))
        self._take(outer, connection.context.address)

    async def on_message(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.close(1003, "binary messages only")
            return
        async with self._sending:
            try:
                if self._inner is not None:
                    await asyncio.get_running_loop().sock_sendall(self._inner, message)
            except OSError:
                self.close()

    async def _send_outward(self, inner: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(inner, _CHUNK):
                await self.write_message(data, binary=True)
        except (OSError, WebSocketClosedError):
            pass  # either end is gone: what is left of it is closed
        self.close()
        async with (
            self._sending
        ):  # closed under a sender, its number might be another's by the time it looks again
            self._inner = None
            inner.close()

    def on_close(self) -> None:
        if self._inner is not None:
            self._inner.shutdown(socket.SHUT_RDWR)  # which ends both of the above
