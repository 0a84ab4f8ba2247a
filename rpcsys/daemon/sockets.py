"""Many sockets in an epoll of their own, which the loop watches as one descriptor (Linux).

From the loop to a readable socket's protocol is as long a way as deciding about what was read; from here it is one
call, and what is read in a turn can be handled together after it, which takes a tenth less time. And the loop does not
know that a stream which nobody reads has ended or broken.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT  # what a socket can be watched for; that it is broken is always told
FAILED, BROKEN = select.EPOLLERR, select.EPOLLERR | select.EPOLLHUP
ENDED = select.EPOLLRDHUP | select.EPOLLET  # its end, told once, without reading it
BREAKS = select.EPOLLET  # nothing but that it is broken, told once
BATCH = 128  # sockets served in one turn; the loop then serves everything else
Callback = Callable[[int], None]  # takes what is so of its socket, as bits


class Sockets:
    """Calls back when sockets are readable, writable, ended or broken. To be made inside the event loop.

    ``after`` is called when all that was found in a turn has been told.
    """

    def __init__(self, after: Callable[[], None] | None = None) -> None:
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def add(self, number: int, callback: Callback, wanted: int = READ) -> None:
        """Watch the socket with this descriptor. Raises OSError: the kernel has no room for it."""
        self._epoll.register(number, wanted)
        self._callbacks[number] = callback

    def expect(self, number: int, wanted: int) -> None:
        """Watch it for something else, which may be 0."""
        self._epoll.modify(number, wanted)

    def remove(self, number: int) -> None:
        """Watch it no more, if it is watched; it is still open."""
        if self._callbacks.pop(number, None) is not None:
            self._epoll.unregister(number)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _turn(self) -> None:
        callbacks = self._callbacks
        for number, found in self._epoll.poll(0, BATCH):
            callback = callbacks.get(number)  # None if what came just before has removed it
            if callback is not None:
                callback(found)
        if self._after is not None:
            self._after()
