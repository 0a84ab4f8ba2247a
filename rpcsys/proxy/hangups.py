"""Noticing that a stream has ended or broken, without reading it.

What a stream that waits has said belongs to whoever it will be joined with, and one that is not read because its receiver is
slow can break all the same. The loop knows readable and writable only, so streams are in an epoll of their own as well
(Linux), which the loop watches in turn.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

ENDED, BROKEN = select.EPOLLRDHUP, 0
"""What to watch for: a stream's end, or only that it is broken, which the kernel tells unasked."""

_BATCH = 256


class Hangups:
    """Calls back, once, when a stream has ended or broken. To be made inside the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def add(self, sock: socket.socket, wanted: int, callback: Callable[[], None]) -> None:
        """Call back when the stream breaks, or when ``wanted`` is so."""
        self._watched[sock.fileno()] = callback
        self._epoll.register(sock.fileno(), wanted | select.EPOLLET)

    def remove(self, sock: socket.socket) -> None:
        """Watch it no more."""
        if self._watched.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for number, events in self._epoll.poll(0, _BATCH):
            callback = self._watched.get(number)
            if callback is not None and events & (select.EPOLLERR | ENDED):
                callback()
