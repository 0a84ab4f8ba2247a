"""WebSockets (RFC 6455, the server's side). A socket pair makes each an ordinary stream of the proxy.

Bytes wait in the pair's buffers, one piece of each direction here, and the rest at their sender. So a slow receiver
slows its sender down, as on an ordinary stream. No message is gathered: a frame may have 2^63 bytes and a message any
number of frames, so received bytes are passed on in pieces of at most `CHUNK`. Compression is off, so that no small
message becomes a large one. A WebSocket has no half-close: the end of either direction closes it.
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
from rpcsys.daemon.http import counted, http_server
from rpcsys.daemon.web_streams import Counted
from rpcsys.link.tcp import tune

Take = Callable[[socket.socket, Any], object]

PATH = "/ws"
SEND_TIMEOUT_MS = 120_000  # longest time in which a WebSocket takes nothing: a page in the background is slow
CHUNK = 64 << 10  # bytes of a message held at a time: more is no faster
LINGER_S = 5.0  # time for a peer to close after our close frame: it might lose unread bytes if closed earlier

NORMAL, VIOLATION, NOT_BINARY = 1000, 1002, 1003

_OPENING = 256  # connections of an address that are not WebSockets yet: a page may open many at once
_MESSAGE = 256 << 10  # largest message that is sent, in bytes: each message costs a browser an event
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3

_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _MASKED, _LENGTH, _OPCODE, _RESERVED = 0x80, 0x80, 0x7F, 0x0F, 0x70
_CONTROL = 8  # opcodes from here on
_MAX_CONTROL = 125

# tornado's private function, in C where that is built; it has no public name.
_masked: Any = util._websocket_mask


def serve_websockets(listener: socket.socket, take: Take, origins: tuple[str, ...] = ()) -> Acceptor:
    """Call ``take(sock, address)`` with a stream for each WebSocket, until the returned acceptor is closed.

    ``origins``: whose pages may open WebSockets, beside the proxy's own. Clients that send no origin always may.
    """
    relays: set[asyncio.Task[None]] = set()
    arguments = {"take": take, "origins": origins, "relays": relays}
    server = http_server([(PATH, _Handler, arguments)])

    def handle(stream: Counted, address: Any) -> None:
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
            self.finish("pages of this origin may not open WebSockets: see --web-origin\n")
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
        assert isinstance(stream, Counted)
        stream.uncount()  # from now on the proxy's own limits hold for it
        return stream


async def _relay(websocket: WebSocket, address: Any, take: Take) -> None:
    """Hand the proxy a stream, and pass on the bytes of both directions until either ends."""
    inner, outer = socket.socketpair()
    inner.setblocking(False)
    outer.setblocking(False)
    take(outer, address)
    outward = asyncio.ensure_future(_outward(websocket, inner))
    await _inward(websocket, inner)
    with contextlib.suppress(OSError):
        inner.shutdown(socket.SHUT_RDWR)  # ends the other direction
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
                    wanted = False  # a close frame is on its way; the peer may send until it has read that
        except WebSocketError as problem:
            await websocket.tell_end(problem.code, str(problem))


async def _outward(websocket: WebSocket, inner: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # one end is closed
        while data := await loop.sock_recv(inner, _MESSAGE):
            await websocket.send(data)
    with contextlib.suppress(OSError):
        await websocket.tell_end()


class WebSocketError(Exception):
    """The peer breaks the protocol. ``code``: the close code to send to it."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class WebSocket:
    """A WebSocket on ``stream``, after the opening handshake."""

    def __init__(self, stream: IOStream) -> None:
        self._stream = stream
        self._within = False  # whether the present message has more frames
        self._told = self._closed = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of all binary messages, as they arrive, until the peer closes.

        Raises WebSocketError: the peer sends text or an invalid frame; OSError: the connection ended.
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
        """Send a binary message; returns when the kernel has taken it."""
        await self._stream.write(_head_of(_BINARY, len(data)) + data)

    async def tell_end(self, code: int = NORMAL, reason: str = "") -> None:
        """Send a close frame, once. The connection is closed `LINGER_S` later, if the peer does not close it before."""
        if not self._told:
            self._told = True
            asyncio.get_running_loop().call_later(LINGER_S, self._stream.close)
            data = struct.pack(">H", code) + reason.encode()
            await self._stream.write(_head_of(_CLOSE, len(data)) + data)

    async def close(self) -> None:
        """Send a close frame, wait for the peer's, and close. Not to be called while `pieces` is read."""
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
    """The head of an unmasked frame that is a whole message."""
    first = _FINAL | opcode
    if length <= _MAX_CONTROL:
        return bytes((first, length))
    if length < 1 << 16:
        return struct.pack(">BBH", first, _MAX_CONTROL + 1, length)
    return struct.pack(">BBQ", first, _MAX_CONTROL + 2, length)
