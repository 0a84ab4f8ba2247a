"""Serves read-only pages over HTTP for people and probes, on the daemon's own loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from rpcsys.daemon.acceptor import Acceptor, ConnectionLimit, descriptor_limit
from rpcsys.daemon.certificate import Certificate
from rpcsys.daemon.guard import Guard, PageRequest
from rpcsys.daemon.web_streams import Counted, CountedStream, CountedTlsStream, tell_apart

log = logging.getLogger(__name__)

Content = tuple[str, bytes]
#: Makes a page for a request: its content type and its body. May raise `NoPage`.
Page = Callable[[], Content | Awaitable[Content]]

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


class NoPage(Exception):
    """A page cannot be made: the HTTP status of the answer, and a sentence."""


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


def counted(
    handle: Callable[[Counted, Any], object], max_buffer_size: int, of_address: int = MAX_OF_ADDRESS,
    certificate: Certificate | None = None,
) -> Callable[[socket.socket, Any], None]:  # fmt: skip
    """A function for an `Acceptor` that handles HTTP connections up to a limit, and closes all beyond it.

    With a certificate, a connection may also begin with TLS.
    """
    most = descriptor_limit()
    total = MAX_CONNECTIONS if most is None else min(MAX_CONNECTIONS, most // _SHARE)
    limit = ConnectionLimit(of_address, total, log, _ADVICE)

    def begin(sock: socket.socket, address: Any) -> None:
        handle(CountedStream(sock, address[0], limit, max_buffer_size=max_buffer_size), address)

    def begin_tls(certificate: Certificate, sock: socket.socket, address: Any) -> None:
        try:
            sealed = certificate.context().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # the connection has ended
            limit.leave(address[0])
            sock.close()
            return
        handle(CountedTlsStream(sealed, address[0], limit, max_buffer_size=max_buffer_size), address)

    def take(sock: socket.socket, address: Any) -> None:
        if not limit.admit(address[0], time.monotonic()):
            sock.close()
        elif certificate is None:
            begin(sock, address)
        else:
            ways = (lambda: begin(sock, address), lambda: begin_tls(certificate, sock, address))
            tell_apart(sock, REQUEST_TIMEOUT_S, *ways, lambda: limit.leave(address[0]))

    return take


def serve_pages(
    listener: socket.socket,
    pages: Mapping[str, Page],
    guard: Guard | None = None,
    certificate: Certificate | None = None,
) -> Acceptor:
    """Serve pages by path on a listening socket, until the returned acceptor is closed.

    ``guard``: who is answered; None: everybody. ``certificate``: for connections that begin with TLS.
    """
    return Acceptor(listener, page_server(pages, guard, certificate))


def page_server(
    pages: Mapping[str, Page], guard: Guard | None = None, certificate: Certificate | None = None
) -> Callable[[socket.socket, Any], None]:
    """A function for an `Acceptor` that serves pages, as `serve_pages`."""
    server = http_server([(".*", _PageHandler, {"pages": pages, "guard": guard, "unread": Unread()})])
    return counted(server.handle_stream, 8 * _MAX_HEADERS, certificate=certificate)


def http_server(routes: Sequence[tuple[str, type[RequestHandler], dict[str, Any]]]) -> HTTPServer:
    """A server of ``routes``: paths, handlers and the handlers' arguments."""
    # Requests are not logged, as a URL may have a secret in it, nor are errors in what strangers send.
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    return HTTPServer(
        Application(list(routes), log_function=lambda _: None), max_header_size=_MAX_HEADERS, max_body_size=_MAX_BODY,
        idle_connection_timeout=REQUEST_TIMEOUT_S, body_timeout=REQUEST_TIMEOUT_S,
    )  # fmt: skip


class Unread:
    """How many bytes of pages are under way."""

    bytes = 0


class _PageHandler(RequestHandler):
    def initialize(self, pages: Mapping[str, Page], guard: Guard | None, unread: Unread) -> None:
        self._pages = pages
        self._guard = guard
        self._unread = unread

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    async def prepare(self) -> None:
        if self.request.method not in ("GET", "HEAD"):
            self._refuse(405, "only GET and HEAD: nothing can be changed here")
            return
        refused = None if self._guard is None else await self._guard(PageRequest.of(self.request))
        if refused is not None:
            self._refuse(refused.status, refused.text)
        elif self.request.path not in self._pages:
            self._refuse(404, f"there are: {' '.join(self._pages)}")

    async def get(self) -> None:
        if self._unread.bytes >= MAX_UNREAD:
            self.set_header("Retry-After", "5")
            self._refuse(503, "too many pages are under way")
            return
        try:
            content = self._pages[self.request.path]()
            kind, body = content if isinstance(content, tuple) else await content
        except NoPage as problem:
            self._refuse(*problem.args)
            return
        self.set_header("Content-Type", kind)
        self._unread.bytes += len(body)
        try:
            await asyncio.wait_for(self.finish(body), SEND_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError):  # the client hung up or does not read: not logged
            stream = getattr(self.request.connection, "stream", None)
            if stream is not None:
                stream.close()
        finally:
            self._unread.bytes -= len(body)

    async def head(self) -> None:
        await self.get()

    def _refuse(self, status: int, text: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        elif status == 405:
            self.set_header("Allow", "GET, HEAD")
        self.finish(text + "\n")

    def write_error(self, status_code: int, **_: Any) -> None:
        """An answer to what no page could be made for, or a method that HTTP does not have."""
        self._refuse(status_code, "only GET and HEAD: nothing can be changed here" if status_code == 405 else "failed")

    def log_exception(self, *error: Any) -> None:
        """Log a page that could not be made, without the URL."""
        log.error("a page could not be made", exc_info=error)
