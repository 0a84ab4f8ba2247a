"""Connections over HTTP: counted until they end, and told apart from TLS by their first byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from tornado.iostream import IOStream, SSLIOStream

from rpcsys.daemon.acceptor import ConnectionLimit
from rpcsys.wire.first_bytes import PAGE, answer, kind_of
from rpcsys.wire.tracker import TLS_RECORD


class Counted(IOStream):
    """A connection that is counted until it is closed, or `uncount` is called."""

    def __init__(self, sock: socket.socket, address: str, limit: ConnectionLimit, **more: Any) -> None:
        self._limit: ConnectionLimit | None = limit
        self._address = address
        super().__init__(sock, **more)

    def uncount(self) -> None:
        """Stop counting this connection."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.leave(self._address)

    def close_fd(self) -> None:
        self.uncount()
        super().close_fd()


class CountedTlsStream(Counted, SSLIOStream):
    """One inside TLS; its socket has a context already."""


class CountedStream(Counted):
    """One in the clear. A peer that wanted a tracker or a server here gets an answer at once, as it waits for one."""

    def __init__(self, sock: socket.socket, address: str, limit: ConnectionLimit, **more: Any) -> None:
        self._begun = False
        super().__init__(sock, address, limit, **more)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        count = super().read_from_fd(buf)
        if not self._begun and count:
            self._begun = True
            refusal = answer(PAGE, kind_of(buf[: min(count, 4)]))
            if refusal:
                self.write_to_fd(memoryview(refusal))
                return 0  # as at the peer's end: the stream is closed
        return count


def tell_apart(
    sock: socket.socket, seconds: float, plain: Callable[[], None], tls: Callable[[], None], end: Callable[[], None]
) -> None:
    """Call ``tls`` or ``plain`` once the first byte of a new connection has come; it is not read.

    If none comes within ``seconds``, or the connection ends, it is closed, and ``end`` is called.
    """
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        stop()
        if first:
            (tls if first == TLS_RECORD[:1] else plain)()
        else:
            drop()

    def stop() -> None:
        timer.cancel()
        loop.remove_reader(sock.fileno())

    def drop() -> None:
        with contextlib.closing(sock):
            end()

    def late() -> None:
        stop()
        drop()

    timer = loop.call_later(seconds, late)
    loop.add_reader(sock.fileno(), look)
