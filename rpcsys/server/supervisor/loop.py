"""The server's event loop: descriptors and times, what to call then, and what has happened.

On epoll itself rather than on :mod:`selectors`, because a client's hang-up has to be noticed while its data,
which are the session process's, lie unread: EPOLLRDHUP.
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

#: The other end has closed, or has said that it will send no more. (Errors are always told.)
READ = select.EPOLLIN
WRITE = select.EPOLLOUT
GONE = select.EPOLLRDHUP


class Loop:
    """Which descriptor and which time wants which callable. ``events``: for the state; ``now``: the clock, in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.events: collections.deque[Event] = collections.deque()
        self.timers: dict[Callable[[], object], float] = {}
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def post(
        self, kind: Callable[Concatenate[float, Fields], Event], *args: Fields.args, **kwargs: Fields.kwargs
    ) -> None:
        """Something has happened now: an event of this kind, with these fields."""
        self.events.append(kind(self.now(), *args, **kwargs))

    def add(self, descriptor: int, callback: Callable[[], object], events: int = READ) -> None:
        """Call ``callback`` whenever ``descriptor`` is ready."""
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def remove(self, descriptor: int) -> None:
        """Forget a descriptor, which may be unknown. To be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def call_at(self, when: float | None, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, at ``when``; what was set for it before is void. None: not at all."""
        if when is None:
            self.timers.pop(callback, None)
        else:
            self.timers[callback] = when

    def run_once(self, timeout: float | None = None) -> None:
        """Wait for descriptors and times, at most ``timeout`` seconds (None: for ever), and call what is ready."""
        if self.timers:
            left = max(0.0, min(self.timers.values()) - self.now())
            timeout = left if timeout is None else min(left, timeout)
        for descriptor, _ in self._epoll.poll(timeout):
            callback = self._callbacks.get(descriptor)
            # One that another callback of this round has removed is skipped. A new descriptor with its number
            # may be called for nothing: callbacks never block, and take "nothing there" for an answer.
            if callback is not None:
                callback()
        now = self.now()
        for callback in [callback for callback, when in self.timers.items() if when <= now]:
            if self.timers.get(callback, now + 1.0) <= now:  # another one may have set it anew
                del self.timers[callback]
                callback()

    def close(self) -> None:
        self._epoll.close()
