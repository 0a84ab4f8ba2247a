"""Serves read-only pages over HTTP for people and probes, on the daemon's own loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from rpcsys.daemon.acceptor import Acceptor, ConnectionLimit, descriptor_limit
from rpcsys.wire.first_bytes import PAGE, answer, kind_of

log = logging.getLogger(__name__)

Content = tuple[str, bytes]
Page = Callable[[], Content | Awaitable[Content]]  # makes a page for a request: its content type and its body

#: A page may load only what this port serves, so a name shown in a page cannot inject code.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}
REQUEST_TIMEOUT_S = 10.0  # longest wait for a whole request, before the connection is closed
MAX_CONNECTIONS, MAX_OF_ADDRESS = 512, 128  # for pages: a browser opens six, a lab's HTTP proxy dozens
_SHARE = 8  # pages get one in 8 of a daemon's descriptors: the others are for boards and clients
_ADVICE = "see which program there requests pages and keeps its connections open"
_MAX_HEADERS = 16 << 10
_MAX_BODY = 1 << 10  # requests for pages have no body
MAX_UNREAD = 64 << 20  # bytes of unsent pages in all: beyond it, requests get 503 with Retry-After
SEND_TIMEOUT_S = 30.0  # longest time to send a page


def metrics_page(collector: Collector) -> Page:
    """A page of ``collector``'s metrics, and of the process's own, in Prometheus's text format.

    They are collected on the loop and formatted in a thread, which takes 20 us for each.
    """
    process = ProcessCollector(registry=None)

    async def page() -> Content:
        collected = _Collected([*collector.collect()], process)
        text = await asyncio.get_running_loop().run_in_executor(None, generate_latest, collected)
        return CONTENT_TYPE_LATEST, text

    return shared(page)


class _Collected(CollectorRegistry):
    """Collected metrics in the form of the registry that prometheus_client requires."""

    def __init__(self, metrics: list[Metric], process: Collector) -> None:
        super().__init__()
        self._metrics = metrics
        self._process = process

    def collect(self) -> Iterator[Metric]:
        return itertools.chain(self._metrics, self._process.collect())


def shared(make: Callable[[], Awaitable[Content]]) -> Page:
    """A page that takes long to make: requests that arrive while it is made share the result."""
    making: asyncio.Future[Content] | None = None

    async def page() -> Content:
        nonlocal making
        if making is None or making.done():
            making = asyncio.ensure_future(make())
        return await asyncio.shield(making)

    return page


def health_page() -> tuple[str, bytes]:
    """Answer ``ok``: the answer itself shows that the loop runs."""
    return "text/plain; charset=utf-8", b"ok\n"


class CountedStream(IOStream):
    """A connection that is counted until it is closed, or `uncount` is called.

    A peer that wanted a tracker or a server here gets an answer at once, as it waits for one.
    """

    def __init__(self, sock: socket.socket, address: str, limit: ConnectionLimit, max_buffer_size: int) -> None:
        self._limit: ConnectionLimit | None = limit
        self._address = address
        self._begun = False
        super().__init__(sock, max_buffer_size=max_buffer_size)

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        count = super().read_from_fd(buf)
        if not self._begun and count:
            self._begun = True
            refusal = answer(PAGE, kind_of(buf[: min(count, 4)]))
            if refusal:
                self.write_to_fd(memoryview(refusal))
                return 0  # as at the peer's end: the stream is closed
        return count

    def uncount(self) -> None:
        """Stop counting this connection."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.leave(self._address)

    def close_fd(self) -> None:
        self.uncount()
        super().close_fd()


def counted(
    handle: Callable[[CountedStream, Any], object], max_buffer_size: int, of_address: int = MAX_OF_ADDRESS
) -> Callable[[socket.socket, Any], None]:
    """A function for an `Acceptor` that handles HTTP connections up to a limit, and closes all beyond it."""
    most = descriptor_limit()
    total = MAX_CONNECTIONS if most is None else min(MAX_CONNECTIONS, most // _SHARE)
    limit = ConnectionLimit(of_address, total, log, _ADVICE)

    def take(sock: socket.socket, address: Any) -> None:
        if limit.admit(address[0], time.monotonic()):
            handle(CountedStream(sock, address[0], limit, max_buffer_size), address)
        else:
            sock.close()

    return take


def serve_pages(listener: socket.socket, pages: dict[str, Page]) -> Acceptor:
    """Serve pages by path on a listening socket, until the returned acceptor is closed."""
    unread: Counter[str] = Counter()
    server = http_server([(path, _PageHandler, {"page": page, "unread": unread}) for path, page in pages.items()])
    return Acceptor(listener, counted(server.handle_stream, 8 * _MAX_HEADERS))


def http_server(routes: Sequence[tuple[str, type[RequestHandler], dict[str, Any]]]) -> HTTPServer:
    """A server of ``routes``: paths, handlers and the handlers' arguments."""
    # Requests are not logged, nor are errors in what strangers send.
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    return HTTPServer(
        Application(list(routes)), idle_connection_timeout=REQUEST_TIMEOUT_S, body_timeout=REQUEST_TIMEOUT_S,
        max_header_size=_MAX_HEADERS, max_body_size=_MAX_BODY,
    )  # fmt: skip


class _PageHandler(RequestHandler):
    def initialize(self, page: Page, unread: Counter[str]) -> None:
        self._page = page
        self._unread = unread  # bytes, by path

    async def get(self) -> None:
        if self._unread.total() >= MAX_UNREAD:
            self.set_status(503)
            self.set_header("Retry-After", "5")
            self.finish("too many pages are under way\n")
            return
        content = self._page()
        kind, body = content if isinstance(content, tuple) else await content
        self.set_header("Content-Type", kind)
        for name, value in _HEADERS.items():
            self.set_header(name, value)
        self._unread[self.request.path] += len(body)
        try:
            await asyncio.wait_for(self.finish(body), SEND_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError):  # the client hung up or does not read: not logged
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        finally:
            self._unread[self.request.path] -= len(body)

    async def head(self) -> None:
        await self.get()
