"""A WebSocket's frames (RFC 6455), the server's side, passed on as they come: no message is gathered.

A frame may be 2^63 bytes long and a message has any number of them, so what has come of one is handed on in pieces of
at most `CHUNK`. Nothing is compressed: a peer cannot send little that becomes much.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

from tornado import util
from tornado.iostream import IOStream

CHUNK = 64 << 10
"""Bytes of a message held at a time: more makes nothing faster."""

LINGER_S = 5.0
"""How long a peer may take to close after it was told: closed earlier, it might lose what it has not read yet."""

NORMAL, VIOLATION, NOT_BINARY = 1000, 1002, 1003

_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL, _MASKED, _LENGTH, _OPCODE, _RESERVED = 0x80, 0x80, 0x7F, 0x0F, 0x70
_CONTROL = 8  # opcodes from here on
_MAX_CONTROL = 125

# tornado's own, in C where it can be; no public name leads to it.
_masked: Any = util._websocket_mask


class Refused(Exception):
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

        Raises
        ------
        Refused: it sends text, or what is no frame. OSError: the connection ended.
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
            raise Refused(VIOLATION, "frames are masked, without extensions")
        if length > _MAX_CONTROL:
            size = 2 if length == _MAX_CONTROL + 1 else 8
            length = int.from_bytes(await self._stream.read_bytes(size), "big")
            if length >> 63:
                raise Refused(VIOLATION, "no frame is so long")
        return opcode, length, await self._stream.read_bytes(4)

    def _check(self, opcode: int, final: bool, length: int) -> None:
        if opcode in (_CLOSE, _PING, _PONG):
            if not final or length > _MAX_CONTROL:
                raise Refused(VIOLATION, "a control frame is short and whole")
            return
        if opcode == _TEXT:
            raise Refused(NOT_BINARY, "binary messages only")
        if opcode != (_CONTINUED if self._within else _BINARY):
            raise Refused(VIOLATION, "not the frame that comes next")
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
