"""WebSockets (RFC 6455, the server's side), each made an ordinary stream by a socket pair between it and the proxy.

Bytes wait in the pair's buffers, a piece of each direction here, and otherwise where they came from, so a slow end
slows the other, however they are connected. No message is gathered: a frame may be 2^63 bytes long and a message has
any number of them, so what has come of one is passed on in pieces of at most `CHUNK`. Nothing is compressed: a peer
cannot send little that becomes much. A WebSocket has no half-close: the end of either direction closes it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlparse

from tornado import util
from tornado.iostream import IOStream
from tornado.web import RequestHandler

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.daemon.http import CountedStream, counted, http_server
from rpcsys.link import tune

Take = Callable[[socket.socket, Any], object]

PATH = "/ws"
SEND_TIMEOUT_MS = 120_000  # how long a WebSocket may take nothing: a page in the background is slow
CHUNK = 64 << 10  # bytes of a message held at a time: more makes nothing faster
LINGER_S = 5.0  # for a peer to close after it was told: closed earlier, it might lose what it has not read yet

NORMAL, VIOLATION, NOT_BINARY = 1000, 1002, 1003

_OPENING = 256  # connections of an address that have not become WebSockets yet: a page may open many at once
_MESSAGE = 256 << 10  # bytes that are sent as one message at most: each costs a browser an event
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _MASKED, _LENGTH, _OPCODE, _RESERVED = 0x80, 0x80, 0x7F, 0x0F, 0x70
_CONTROL = 8  # opcodes from here on
_MAX_CONTROL = 125

# tornado's own, in C where it can be; no public name leads to it.
_masked: Any = util._websocket_mask


def serve_websockets(listener: socket.socket, take: Take, origins: tuple[str, ...] = ()) -> Acceptor:
    """Hand ``take(sock, address)`` a stream for each WebSocket; closing what is returned ends it.

    ``origins``: pages from where may open one, beside the proxy's own; programs that are no browsers always may.
    """
    relays: set[asyncio.Task[None]] = set()
    arguments = {"take": take, "origins": origins, "relays": relays}
    server = http_server([(PATH, _Handler, arguments)])

    def handle(stream: CountedStream, address: Any) -> None:
        tune(stream.socket)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SEND_TIMEOUT_MS)
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
            relay = asyncio.ensure_future(_relay(WebSocket(self._accept(key)), address, self._take))
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


async def _relay(websocket: WebSocket, address: Any, take: Take) -> None:
    """Have a stream taken, and pass on what comes in both directions until either ends."""
    inner, outer = socket.socketpair()
    inner.setblocking(False)
    outer.setblocking(False)
    take(outer, address)
    outward = asyncio.ensure_future(_outward(websocket, inner))
    await _inward(websocket, inner)
    with contextlib.suppress(OSError):
        inner.shutdown(socket.SHUT_RDWR)  # which ends the other direction
    await outward
    inner.close()
    await websocket.close()


async def _inward(websocket: WebSocket, inner: socket.socket) -> None:
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
        except WebSocketError as problem:
            await websocket.tell_end(problem.code, str(problem))


async def _outward(websocket: WebSocket, inner: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # either end is gone
        while data := await loop.sock_recv(inner, _MESSAGE):
            await websocket.send(data)
    with contextlib.suppress(OSError):
        await websocket.tell_end()


class WebSocketError(Exception):
    """The peer sends what it may not. ``code`` is what it is told."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class WebSocket:
    """A stream on which the WebSocket's opening handshake is over."""

    def __init__(self, stream: IOStream) -> None:
        self._stream = stream
        self._within = False  # a message of which more frames come
        self._told = self._closed = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of all binary messages, as they come, until the peer closes.

        Raises WebSocketError: it sends text, or what is no frame; OSError: the connection ended.
        """
        while True:
            opcode, length, mask = await self._head()
            if opcode < _CONTROL:
                async for piece in self._payload(length, mask):
                    yield piece
                continue
            data = _masked(mask, await self._stream.read_bytes(length)) if length else b""
            if opcode == _CLOSE:
                self._closed = True
                return
            if opcode == _PING:
                await self._stream.write(_head_of(_PONG, len(data)) + data)

    async def send(self, data: bytes) -> None:
        """Send a binary message; returns when the peer's side has taken it."""
        await self._stream.write(_head_of(_BINARY, len(data)) + data)

    async def tell_end(self, code: int = NORMAL, reason: str = "") -> None:
        """Say that nothing more comes, once; the peer has a moment to close, then it is closed."""
        if not self._told:
            self._told = True
            asyncio.get_running_loop().call_later(LINGER_S, self._stream.close)
            data = struct.pack(">H", code) + reason.encode()
            await self._stream.write(_head_of(_CLOSE, len(data)) + data)

    async def close(self) -> None:
        """Say so and close, at once if the peer has. Not to be called while `pieces` are waited for."""
        with contextlib.suppress(OSError):
            await self.tell_end()
            while not self._closed:
                await self._stream.read_bytes(CHUNK, partial=True)
        self._stream.close()

    async def _head(self) -> tuple[int, int, bytes]:
        """Opcode, length and mask of the next frame."""
        first, second = await self._stream.read_bytes(2)
        opcode, length = first & _OPCODE, second & _LENGTH
        self._check(opcode, bool(first & _FINAL), length)
        if first & _RESERVED or not second & _MASKED:
            raise WebSocketError(VIOLATION, "frames are masked, without extensions")
        if length > _MAX_CONTROL:
            size = 2 if length == _MAX_CONTROL + 1 else 8
            length = int.from_bytes(await self._stream.read_bytes(size), "big")
            if length >> 63:
                raise WebSocketError(VIOLATION, "no frame is so long")
        return opcode, length, await self._stream.read_bytes(4)

    def _check(self, opcode: int, final: bool, length: int) -> None:
        if opcode in (_CLOSE, _PING, _PONG):
            if not final or length > _MAX_CONTROL:
                raise WebSocketError(VIOLATION, "a control frame is short and whole")
            return
        if opcode == _TEXT:
            raise WebSocketError(NOT_BINARY, "binary messages only")
        if opcode != (_CONTINUED if self._within else _BINARY):
            raise WebSocketError(VIOLATION, "not the frame that comes next")
        self._within = not final

    async def _payload(self, length: int, mask: bytes) -> AsyncIterator[bytes]:
        while length:
            data = await self._stream.read_bytes(min(length, CHUNK), partial=True)
            yield _masked(mask, data)
            length -= len(data)
            turn = len(data) % 4
            mask = mask[turn:] + mask[:turn]


def _head_of(opcode: int, length: int) -> bytes:
    """The head of an unmasked frame that is a message of its own."""
    first = _FINAL | opcode
    if length <= _MAX_CONTROL:
        return bytes((first, length))
    if length < 1 << 16:
        return struct.pack(">BBH", first, _MAX_CONTROL + 1, length)
    return struct.pack(">BBQ", first, _MAX_CONTROL + 2, length)
