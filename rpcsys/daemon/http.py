"""HTTP for people and probes: a few read-only pages, on the daemon's own loop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

import prometheus_client
from prometheus_client.registry import Collector, CollectorRegistry
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler

from rpcsys.daemon.acceptor import Acceptor

Page = Callable[[], tuple[str, bytes]]
"""Makes a page when it is asked for: its content type and its body."""

_SILENCE_S = 10.0
"""A connection that asks nothing for so long is closed."""

_MAX_HEADERS = 16 << 10
_MAX_BODY = 1 << 10  # there is nothing to send here


def metrics_page(collector: Collector) -> Page:
    """A page of ``collector``'s figures in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return lambda: (prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(registry))


def health_page() -> tuple[str, bytes]:
    """The loop runs, or nobody would read this."""
    return "text/plain; charset=utf-8", b"ok\n"


def serve_pages(listener: socket.socket, pages: dict[str, Page]) -> Acceptor:
    """Serve pages by path on a listening socket; closing what is returned ends it."""
    routes: Iterable[Any] = [(path, _PageHandler, {"page": page}) for path, page in pages.items()]
    # Requests are no news, and what strangers send is their own fault.
    logging.getLogger("tornado.access").setLevel(logging.ERROR)
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    server = HTTPServer(
        Application(list(routes)),
        idle_connection_timeout=_SILENCE_S,
        body_timeout=_SILENCE_S,
        max_header_size=_MAX_HEADERS,
        max_body_size=_MAX_BODY,
        max_buffer_size=4 * _MAX_HEADERS,
    )
    return Acceptor(listener, lambda sock, address: server.handle_stream(IOStream(sock), address))


class _PageHandler(RequestHandler):
    def initialize(self, page: Page) -> None:
        self._page = page

    def get(self) -> None:
        kind, body = self._page()
        self.set_header("Content-Type", kind)
        self.set_header("Cache-Control", "no-store")
        self.finish(body)

    def head(self) -> None:
        self.get()
