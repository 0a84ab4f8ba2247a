"""The server's event loop: descriptors, and what to call when they are ready.

On epoll itself rather than on :mod:`selectors`, because a client's hang-up has to be noticed while its data,
which are the session process's, lie unread: EPOLLRDHUP.
"""

from __future__ import annotations

import select
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
GONE = select.EPOLLRDHUP
"""The other end has closed, or has said that it will send no more. (Errors are always told.)"""


class Loop:
    """Which descriptor wants which callable."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def add(self, descriptor: int, callback: Callable[[], object], events: int = READ) -> None:
        """Call ``callback`` whenever ``descriptor`` is ready."""
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, which may be unknown. To be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def run_once(self, timeout: float | None) -> None:
        """Wait at most ``timeout`` seconds (None: for ever) and call what is ready."""
        for descriptor, _ in self._epoll.poll(timeout):
            callback = self._callbacks.get(descriptor)
            # One that another callback of this round has removed is skipped. A new descriptor with its number
            # may be called for nothing: callbacks never block, and take "nothing there" for an answer.
            if callback is not None:
                callback()

    def close(self) -> None:
        """Let go of everything."""
        self._epoll.close()
