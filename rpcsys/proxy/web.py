"""The WebSocket side: a socket pair stands between a WebSocket and the proxy, so that it is a stream like any other.

Bytes wait in the pair's buffers, a piece of each direction here, and otherwise where they came from: a slow end is
felt by the other, however they are connected, and a message has any length without being held. A WebSocket has no
half-close: the end of either direction closes it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.daemon.http import CountedStream, counted
from rpcsys.proxy.websocket import CHUNK, Refused, WebSocket
from rpcsys.serve import tune

Take = Callable[[socket.socket, Any], object]

PATH = "/ws"

STALLED_MS = 120_000
"""How long a WebSocket may take nothing: a page in the background is slow."""

_OPENING = 256
"""Connections of an address that have not become WebSockets yet: a page may open many at once."""

_OUTWARD = 256 << 10  # in one message: each costs a browser an event
_SILENCE_S = 10.0
_MAX_HEADERS = 16 << 10
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3


def serve_websockets(listener: socket.socket, take: Take, origins: tuple[str, ...] = ()) -> Acceptor:
    """Hand ``take(sock, address)`` a stream for each WebSocket; closing what is returned ends it.

    ``origins``: pages from where may open one, beside the proxy's own; programs that are no browsers always may.
    """
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    relays: set[asyncio.Task[None]] = set()
    server = HTTPServer(
        Application([(PATH, _Handler, {"take": take, "origins": origins, "relays": relays})]),
        idle_connection_timeout=_SILENCE_S,
        body_timeout=_SILENCE_S,
        max_header_size=_MAX_HEADERS,
        max_body_size=1 << 10,
    )

    def handle(stream: CountedStream, address: Any) -> None:
        tune(stream.socket)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
        server.handle_stream(stream, address)

    return Acceptor(listener, counted(handle, 2 * CHUNK, _OPENING))


class _Handler(RequestHandler):
    def initialize(self, take: Take, origins: tuple[str, ...], relays: set[asyncio.Task[None]]) -> None:
        self._take = take
        self._origins = origins
        self._relays = relays

    async def get(self) -> None:
        headers, connection = self.request.headers, self.request.connection
        asked = [word.strip().lower() for word in headers.get("Connection", "").split(",")]
        key = headers.get("Sec-WebSocket-Key")
        if headers.get("Upgrade", "").lower() != "websocket" or "upgrade" not in asked or not key:
            self.set_status(400)
            self.finish("this port takes WebSockets\n")
        elif headers.get("Sec-WebSocket-Version") not in ("7", "8", "13"):
            self.set_status(426)
            self.set_header("Sec-WebSocket-Version", "13")
            self.finish()
        elif not self._may_come_from(headers.get("Origin")):
            self.set_status(403)
            self.finish("pages from there may not: see --web-origin\n")
        else:
            address = getattr(connection, "context").address  # noqa: B009 (the protocol's type hides it)
            relay = asyncio.ensure_future(self._relay(self._accept(key), address))
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)

    def _may_come_from(self, origin: str | None) -> bool:
        return origin is None or origin in self._origins or urlparse(origin).netloc == self.request.host

    def _accept(self, key: str) -> IOStream:
        digest = hashlib.sha1(key.encode() + _GUID).digest()
        self.set_status(101)
        self.set_header("Upgrade", "websocket")
        self.set_header("Connection", "Upgrade")
        self.set_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        self.finish()
        stream = self.detach()
        assert isinstance(stream, CountedStream)
        stream.uncount()  # the proxy's own bounds hold for it from now on
        return stream

    async def _relay(self, stream: IOStream, address: Any) -> None:
        websocket = WebSocket(stream)
        inner, outer = socket.socketpair()
        for sock in (inner, outer):
            sock.setblocking(False)
        self._take(outer, address)
        outward = asyncio.ensure_future(_outward(websocket, inner))
        await _inward(websocket, inner)
        with contextlib.suppress(OSError):
            inner.shutdown(socket.SHUT_RDWR)  # which ends the other direction
        await outward
        inner.close()
        await websocket.close()


async def _inward(websocket: WebSocket, inner: socket.socket) -> None:
    """Pass on what comes, until the WebSocket is over."""
    loop = asyncio.get_running_loop()
    wanted = True
    with contextlib.suppress(OSError):
        try:
            async for piece in websocket.pieces():
                try:
                    if wanted:
                        await loop.sock_sendall(inner, piece)
                except OSError:
                    wanted = False  # the peer is being told; until it has read that, it may go on
        except Refused as problem:
            await websocket.tell_end(problem.code, str(problem))


async def _outward(websocket: WebSocket, inner: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # either end is gone
        while data := await loop.sock_recv(inner, _OUTWARD):
            await websocket.send(data)
    with contextlib.suppress(OSError):
        await websocket.tell_end()
