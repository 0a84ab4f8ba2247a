"""The server's event loop: calls back on ready descriptors and due timers, and queues events for the state.

It uses epoll rather than :mod:`selectors` for EPOLLRDHUP: it must notice a client's hang-up although the client's
data, which only the session's process may read, are unread.
"""

from __future__ import annotations

import collections
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rpcsys.server.supervisor.events import Event

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    Fields = ParamSpec("Fields")

#: GONE: the peer has closed, or shut down its sending side. (epoll always reports errors.)
READ = select.EPOLLIN
WRITE = select.EPOLLOUT
GONE = select.EPOLLRDHUP


class Loop:
    """Callbacks by descriptor and by time. ``events``: the queue for the state; ``now``: the clock, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.events: collections.deque[Event] = collections.deque()
        self.timers: dict[Callable[[], object], float] = {}
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def post(
        self, kind: Callable[Concatenate[float, Fields], Event], *args: Fields.args, **kwargs: Fields.kwargs
    ) -> None:
        """Queue an event of this kind with these fields, at the present time."""
        self.events.append(kind(self.now(), *args, **kwargs))

    def add(self, descriptor: int, callback: Callable[[], object], events: int = READ) -> None:
        """Call ``callback`` whenever ``descriptor`` is ready."""
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def remove(self, descriptor: int) -> None:
        """Stop watching a descriptor, which may be unknown. To be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def call_at(self, when: float | None, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, at ``when``, which replaces its earlier time. None cancels it."""
        if when is None:
            self.timers.pop(callback, None)
        else:
            self.timers[callback] = when

    def run_once(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds (None: no limit) for descriptors and timers, then call what is due."""
        if self.timers:
            left = max(0.0, min(self.timers.values()) - self.now())
            timeout = left if timeout is None else min(left, timeout)
        for descriptor, _ in self._epoll.poll(timeout):
            callback = self._callbacks.get(descriptor)
            # A callback of this round may have removed it. If a new descriptor has taken its number, the call may be
            # spurious: callbacks never block, and accept that nothing is there.
            if callback is not None:
                callback()
        now = self.now()
        for callback in [callback for callback, when in self.timers.items() if when <= now]:
            if self.timers.get(callback, now + 1.0) <= now:  # another callback may have changed its time
                del self.timers[callback]
                callback()

    def close(self) -> None:
        self._epoll.close()
