"""HTTP for people and probes: a few read-only pages, on the daemon's own loop."""

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

log = logging.getLogger(__name__)

Content = tuple[str, bytes]
Page = Callable[[], Content | Awaitable[Content]]  # makes a page when it is asked for: its content type and its body

#: What a page of ours may load is what this port serves: a name in it cannot bring code along.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}
REQUEST_TIMEOUT_S = 10.0  # a connection whose next request is not whole after so long is closed
MAX_CONNECTIONS, MAX_OF_ADDRESS = 512, 128  # for pages: a browser has six, a proxy in front of a lab's people dozens
_SHARE = 8  # of a daemon's descriptors, pages get one in so many: the others are for boards and clients
_ADVICE = "see what asks there for pages and keeps its connections open"
_MAX_HEADERS = 16 << 10
_MAX_BODY = 1 << 10  # there is nothing to send here
MAX_UNREAD = 64 << 20  # bytes of pages not taken yet, in all: who comes then is told to come again
SEND_TIMEOUT_S = 30.0  # how long a client may take for a page


def metrics_page(collector: Collector) -> Page:
    """A page of ``collector``'s metrics, and of the process's own, in Prometheus's text format.

    They are collected on the loop and written down beside it: that takes 20 us for each.
    """
    process = ProcessCollector(registry=None)

    async def page() -> Content:
        collected = _Collected([*collector.collect()], process)
        text = await asyncio.get_running_loop().run_in_executor(None, generate_latest, collected)
        return CONTENT_TYPE_LATEST, text

    return shared(page)


class _Collected(CollectorRegistry):
    """Metrics that have been collected, where prometheus_client looks for a registry."""

    def __init__(self, metrics: list[Metric], process: Collector) -> None:
        super().__init__()
        self._metrics = metrics
        self._process = process

    def collect(self) -> Iterator[Metric]:
        return itertools.chain(self._metrics, self._process.collect())


def shared(make: Callable[[], Awaitable[Content]]) -> Page:
    """A page that takes a while: whoever asks while it is being made gets the same one."""
    making: asyncio.Future[Content] | None = None

    async def page() -> Content:
        nonlocal making
        if making is None or making.done():
            making = asyncio.ensure_future(make())
        return await asyncio.shield(making)

    return page


def health_page() -> tuple[str, bytes]:
    """The loop runs, or nobody would read this."""
    return "text/plain; charset=utf-8", b"ok\n"


class CountedStream(IOStream):
    """A connection that is counted until it is closed, or `uncount` is called."""

    def __init__(self, sock: socket.socket, address: str, limit: ConnectionLimit, max_buffer_size: int) -> None:
        self._limit: ConnectionLimit | None = limit
        self._address = address
        super().__init__(sock, max_buffer_size=max_buffer_size)

    def uncount(self) -> None:
        """It takes nobody's place any more."""
        limit, self._limit = self._limit, None
        if limit is not None:
            limit.leave(self._address)

    def close_fd(self) -> None:
        """Called once, when it is closed, whoever closes it."""
        self.uncount()
        super().close_fd()


def counted(
    handle: Callable[[CountedStream, Any], object], max_buffer_size: int, of_address: int = MAX_OF_ADDRESS
) -> Callable[[socket.socket, Any], None]:
    """What an `Acceptor` gives connections to that speak HTTP: as many as may come are handled, others are closed."""
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
    """Serve pages by path on a listening socket; closing what is returned ends it."""
    unread: Counter[str] = Counter()
    server = http_server([(path, _PageHandler, {"page": page, "unread": unread}) for path, page in pages.items()])
    return Acceptor(listener, counted(server.handle_stream, 8 * _MAX_HEADERS))


def http_server(routes: Sequence[tuple[str, type[RequestHandler], dict[str, Any]]]) -> HTTPServer:
    """A server of ``routes``: paths, handlers and the handlers' arguments."""
    # Requests are no news, and what strangers send is their own fault.
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
        except (OSError, asyncio.TimeoutError):  # a client that has left, or does not read, is no news
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        finally:
            self._unread[self.request.path] -= len(body)

    async def head(self) -> None:
        await self.get()
