"""Noticing that a stream has ended, without reading it: what it said belongs to whoever it will be joined with.

The loop knows readable and writable only, and a stream that has said something stays readable. So these streams are in
an epoll of their own (Linux), which the loop watches in turn.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

ENDED = select.EPOLLRDHUP
"""What to watch for in a stream that waits: its end. 0 notices a broken one only."""

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
