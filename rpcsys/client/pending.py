"""A call under way, and its future."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from rpcsys.wire.frames import Frame

if TYPE_CHECKING:
    from rpcsys.client.channel import Channel

_log = logging.getLogger("rpcsys.session")


class Pending:
    """One call under way. ``frame`` is its reply, ``error`` why there will be none.

    ``failed``: its future has no result. ``runs_since``: when it became the oldest, if it has a deadline.
    """

    # What most calls leave as it is costs nothing as long as it stands here.
    done = failed = False
    frame: Optional[Frame] = None
    error: Optional[BaseException] = None
    future: Optional[CallFuture] = None
    sink: Optional[Callable[[Frame], None]] = None
    wake: Optional[threading.Lock] = None
    bytes = 0
    deadline_s: Optional[float] = None
    runs_since: Optional[float] = None

    def __init__(self, call_id: int, convert: Callable[[Frame], Any]) -> None:
        self.call_id = call_id
        self.convert = convert


class CallFuture(concurrent.futures.Future):  # type: ignore[type-arg]  # not subscriptable on 3.8
    """The future of one submitted call. Waiting for it reads the session."""

    # What Future's own constructor sets, but for the condition: making one costs as much as the rest of a call,
    # and since waiting for a future reads the session, futures of one session can share it.
    _state = "PENDING"
    _result = None
    _exception = None

    def __init__(self, channel: Channel, pending: Pending) -> None:
        self._condition = channel.condition
        self._waiters: List[Any] = []
        self._done_callbacks: List[Callable[[Any], Any]] = []
        self._channel = channel
        self._pending = pending

    def result(self, timeout: Optional[float] = None) -> Any:
        """The call's result. ``timeout`` in seconds; `concurrent.futures.TimeoutError` when it is over.

        Raises `concurrent.futures.CancelledError` after `cancel`.
        """
        pending = self._pending
        if not pending.done:
            self._channel.wait(pending, timeout)
        return super().result(0) if pending.failed else self._result

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """The call's error, or None if it succeeded. ``timeout`` and errors as for `result`."""
        self._channel.wait(self._pending, timeout)
        return super().exception(0)

    def cancel(self) -> bool:
        """Give the call up; False if it is done already.

        A call that waits on the device is dropped, and nothing else. One that runs is really stopped: its
        process is ended, and the session with it, since nothing else stops native code.
        """
        if not self._channel.cancel(self._pending):
            return self.cancelled()
        super().cancel()
        self.set_running_or_notify_cancel()  # for those in concurrent.futures.wait
        self._pending.failed = self._pending.done = True
        wake(self._pending)
        return True

    def set_result(self, result: Any) -> None:
        """As `concurrent.futures.Future`'s, but that nobody sleeps on the condition: `result` reads the session."""
        with self._condition:
            if self._state != "PENDING":
                raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")
            self._result = result
            self._state = "FINISHED"
            for waiter in self._waiters:
                waiter.add_result(self)
        if self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]  # all that follows from a result

    def running(self) -> bool:
        """Whether the call is under way, on the device or on its way there."""
        return not self._pending.done

    def done(self) -> bool:
        """Whether the reply is here; takes what has arrived, without waiting."""
        if not self._pending.done:
            self._channel.drain()
        return super().done()

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Call ``fn`` with this future when the reply is here, in a thread of its own: it may use the session."""
        super().add_done_callback(functools.partial(self._channel.call_back, fn))


def wake(pending: Pending) -> None:
    """Have a thread that sleeps until ``pending`` is done look again."""
    lock = pending.wake
    if lock is not None and lock.locked():
        try:
            lock.release()
        except RuntimeError:
            pass  # two wakers met; one is enough


def settle(future: CallFuture, pending: Pending) -> None:
    """Give a future its result; what goes wrong in converting a reply is its error."""
    error = pending.error
    if error is None:
        assert pending.frame is not None
        try:
            future.set_result(pending.convert(pending.frame))
            return
        except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to the future
            error = problem
    pending.failed = True
    future.set_exception(error)


def call(callback: Callable[[Any], Any], what: Any) -> None:
    """Call a user's function with ``what``; what it raises is logged, and nobody's end, as with `concurrent.futures`."""
    try:
        callback(what)
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("a callback of %r raised", what)
