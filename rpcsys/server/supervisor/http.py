"""A few small pages over HTTP/1, on the server's own loop: for probes, and for nobody else.

Whoever asks slowly, or for much, or does not read what he asked for, is dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Callable, Tuple

from rpcsys.server.supervisor.loop import Loop

MAX_HEAD = 8 << 10  # bytes of a request: probes send a few hundred
MAX_ASKING = 16  # connections at a time; the one that has been there longest gives way
REQUEST_TIMEOUT_S = 5.0

#: Makes a page when it is asked for: its content type and its body, small enough for a socket's buffer.
Page = Callable[[], Tuple[str, bytes]]


class Web:
    """Serves ``pages`` by path on a listening socket, which it owns."""

    def __init__(self, loop: Loop, listener: socket.socket, pages: Mapping[str, Page]) -> None:
        self._loop = loop
        self._listener = listener
        self._pages = pages
        #: What each has said, and what drops it when its time is over.
        self._asking: dict[socket.socket, tuple[bytearray, Callable[[], None]]] = {}
        loop.add(listener.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove(self._listener.fileno())
        self._listener.close()
        for sock in list(self._asking):
            self._drop(sock)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # gone again, or nothing is left to take it with: a probe will come again
        sock.setblocking(False)
        while len(self._asking) >= MAX_ASKING:
            self._drop(next(iter(self._asking)))
        self._asking[sock] = bytearray(), lambda: self._drop(sock)
        self._loop.add(sock.fileno(), lambda: self._read(sock))
        self._loop.call_at(self._loop.now() + REQUEST_TIMEOUT_S, self._asking[sock][1])

    def _read(self, sock: socket.socket) -> None:
        if sock not in self._asking:
            return
        head = self._asking[sock][0]
        try:
            data = sock.recv(MAX_HEAD)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        head += data
        whole = b"\r\n\r\n" in head
        if whole:
            try:
                sock.send(self._reply(bytes(head)))
            except OSError:
                pass  # it has left
        if whole or not data or len(head) > MAX_HEAD:
            self._drop(sock)

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        page = self._pages.get(path)
        if method not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
        elif page is None:
            status, kind, body = "404 Not Found", "text/plain", " ".join(self._pages).encode() + b"\n"
        else:
            status = "200 OK"
            kind, body = page()
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)

    def _drop(self, sock: socket.socket) -> None:
        self._loop.call_at(None, self._asking.pop(sock)[1])
        self._loop.remove(sock.fileno())
        sock.close()
