"""HTTP/1.1 to one server: connections are kept for the next request. tornado's client makes one for each."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from rpcsys.link.address import address_text
from rpcsys.wire.http1 import CHUNKED, TO_THE_END, ChunkReader, HttpError, HttpLimits, make_request, parse_response

_PIECE = 64 << 10  # bytes of a body that are received at a time


class HttpReply(NamedTuple):
    """An answer, whole."""

    status: int
    body: bytes


class _Kept(NamedTuple):
    """A connection that waits for its next request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        """Whether the server has neither closed it nor sent what nobody asked for."""
        return not (self.reader.at_eof() or self.writer.is_closing())


class HttpServer:
    """A server, and the connections to it. As many are open as requests are under way."""

    def __init__(self, host: str, port: int, limits: HttpLimits, context: ssl.SSLContext | None = None) -> None:
        """``context``: for TLS; None: without."""
        self.host, self.port = host, port
        self.name = address_text(host, port)
        self._limits = limits
        self._context = context
        self._kept: list[_Kept] = []

    async def ask(
        self, target: str, body: bytes = b"", fields: Sequence[tuple[str, str]] = (), method: str = "POST"
    ) -> HttpReply:
        """Send a request, and receive its answer. A cancelled one closes its connection.

        Raises `OSError`, `EOFError`: no connection, or it was lost. Raises `HttpError`: the answer is not HTTP, or
        larger than the limits.
        """
        connection = await self._connection()
        kept = False
        try:
            connection.writer.write(make_request(method, target, self.name, fields, len(body)) + body)
            await connection.writer.drain()
            reply, kept = await self._reply(connection.reader, method)
        finally:
            if kept:
                self._kept.append(connection)
            else:
                connection.writer.transport.abort()
        return reply

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._kept:
            self._kept.pop().writer.transport.abort()

    async def _connection(self) -> _Kept:
        while self._kept:
            connection = self._kept.pop()
            if connection.usable:
                return connection
            connection.writer.transport.abort()
        return _Kept(*await asyncio.open_connection(self.host, self.port, ssl=self._context))

    async def _reply(self, reader: asyncio.StreamReader, method: str) -> tuple[HttpReply, bool]:
        """The answer, and whether the connection can be used again."""
        try:
            head = parse_response(await reader.readuntil(b"\r\n\r\n"), self._limits, method)
        except asyncio.LimitOverrunError:
            raise HttpError("an answer whose head does not end", 431) from None
        if head.length == CHUNKED:
            return HttpReply(head.status, *(await self._chunks(reader))), head.keep_alive
        if head.length == TO_THE_END:
            return HttpReply(head.status, await reader.read(_PIECE)), False
        return HttpReply(head.status, await reader.readexactly(head.length)), head.keep_alive

    async def _chunks(self, reader: asyncio.StreamReader) -> tuple[bytes]:
        chunks = ChunkReader(self._limits)
        while not chunks.done:
            piece = await reader.read(_PIECE)
            if not piece:
                raise EOFError("closed within an answer")
            if chunks.feed(piece) < len(piece):
                raise HttpError("more than was asked for")
        return (bytes(chunks.body),)
