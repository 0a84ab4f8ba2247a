"""The access of tasks to a tracker: its queues and leases, and devices on request."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from rpcsys.aio.session import AsyncServedModule, AsyncSession
from rpcsys.aio.threads import AsyncCloseable, in_loop, in_thread, threaded
from rpcsys.client import tracker as blocking_tracker
from rpcsys.client.session import Session
from rpcsys.client.tracker import Address, Tracker
from rpcsys.client.waiting import OnQueued
from rpcsys.errors import Cancelled
from rpcsys.link.link import Closeable, Link


async def connect_tracker(address: Address = None, *, user: str | None = None, timeout: float = 5.0) -> AsyncTracker:
    """Connect to a tracker. Arguments and errors as for `rpcsys.connect_tracker`."""
    connect = functools.partial(blocking_tracker.connect_tracker, address, user=user, timeout=timeout)
    return AsyncTracker(await in_thread(connect, drop=Closeable.close))


class AsyncTracker(AsyncCloseable):
    """A tracker, for any number of tasks. ``blocking``: the client's `Tracker`, for threads."""

    def __init__(self, tracker: Tracker) -> None:
        self.blocking = tracker
        self.address = tracker.address
        self.user = tracker.user

    def __repr__(self) -> str:
        return f"<async {repr(self.blocking)[1:]}"

    summary = threaded(Tracker.summary)
    text_summary = threaded(Tracker.text_summary)
    history = threaded(Tracker.history)
    usage = threaded(Tracker.usage)
    resolve = threaded(Tracker.resolve)
    leases = threaded(Tracker.leases)
    why = threaded(Tracker.why)
    end_lease = threaded(Tracker.end_lease)
    drain = threaded(Tracker.drain)
    enable = threaded(Tracker.enable)

    @overload
    async def request(  # type: ignore[overload-overlap]  # 1 is an int, too; the first match counts
        self,
        key: str | None = ...,
        priority: float = ...,
        session_timeout: float | None = ...,
        wait_timeout: float | None = ...,
        *,
        labels: Mapping[str, str] | None = ...,
        count: Literal[1] = ...,
        wait_for_key: bool = ...,
        on_queued: OnQueued | None = ...,
    ) -> AsyncSession: ...

    @overload
    async def request(
        self,
        key: str | None = ...,
        priority: float = ...,
        session_timeout: float | None = ...,
        wait_timeout: float | None = ...,
        *,
        labels: Mapping[str, str] | None = ...,
        count: int,
        wait_for_key: bool = ...,
        on_queued: OnQueued | None = ...,
    ) -> tuple[AsyncSession, ...]: ...

    async def request(
        self,
        key: str | None = None,
        priority: float = 1,
        session_timeout: float | None = None,
        wait_timeout: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        count: int = 1,
        wait_for_key: bool = False,
        on_queued: OnQueued | None = None,
    ) -> AsyncSession | tuple[AsyncSession, ...]:
        """Lease a device of ``key`` and open a session with it; arguments and errors as for `Tracker.request`.

        The loop calls ``on_queued``. A cancelled request leaves the queue at once.
        """
        places = {"labels": labels, "count": count, "wait_for_key": wait_for_key}
        limits = {"priority": priority, "session_timeout": session_timeout, "wait_timeout": wait_timeout}
        request = SingleRequest(self.blocking)
        ask: Callable[[], Session | tuple[Session, ...]] = functools.partial(
            request.made, key, on_queued=on_queued and in_loop(on_queued), **places, **limits
        )
        opened = await in_thread(ask, stop=request.cancel, drop=_close)
        return AsyncSession(opened) if isinstance(opened, Session) else tuple(map(AsyncSession, opened))

    async def serve(self, name: str, *, timeout: float = 60.0) -> AsyncServedModule:
        """Connect to the deployed module ``name``, as `Tracker.serve`."""
        serve = functools.partial(self.blocking.serve, name, timeout=timeout)
        return AsyncServedModule(await in_thread(serve, drop=Closeable.close))

    async def renew(self, lease: AsyncSession | str, session_timeout: float | None = None) -> float | None:
        """Have a lease end ``session_timeout`` seconds from now, as `Tracker.renew`."""
        of = lease if isinstance(lease, str) else lease.blocking
        return await in_thread(lambda: self.blocking.renew(of, session_timeout))

    async def close(self) -> None:
        """Close the idle connections. Sessions go on."""
        self.blocking.close()


class SingleRequest(Tracker):
    """One request at a tracker, on a connection of its own: with that, the request ends."""

    def __init__(self, tracker: Tracker) -> None:
        super().__init__(tracker.address, tracker.user, tracker._timeout)
        self._target = tracker._target
        self._link_now: Link | None = None
        self._cancelled = False

    def made(self, *args: Any, **more: Any) -> Any:
        """Make the request, as `Tracker.request`."""
        with self:
            return self.request(*args, **more)

    def cancel(self) -> None:
        """Withdraw the request, or end its leases. For any thread; does not block."""
        self._cancelled = True
        if self._link_now is not None:
            self._link_now.hang_up()

    def _open(self, timeout: float) -> Link:
        link = self._link_now = super()._open(timeout)
        if self._cancelled:  # meanwhile: `cancel` may have seen no link
            link.close()
            raise Cancelled("the request was cancelled")
        return link


def _close(opened: Session | tuple[Session, ...]) -> None:
    for session in (opened,) if isinstance(opened, Session) else opened:
        session.close()
