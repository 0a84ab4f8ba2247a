"""The future of one submitted call."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any, Callable, List, Optional

from rpcsys.client.calls.channel import Channel
from rpcsys.client.calls.receiver import PendingCall
from rpcsys.wire.frames import Frame


class CallFuture(PendingCall, concurrent.futures.Future):  # type: ignore[type-arg]  # not subscriptable on 3.8
    """The future of one submitted call. Waiting for it reads the session."""

    # The attributes of Future's own constructor, except the condition, which costs as much as the rest of a call. The
    # futures of one session share it: a thread that waits for one of them reads the session.
    _state = "PENDING"
    _result = None
    _exception = None

    submitted = True
    _failed = False

    def __init__(self, channel: Channel, convert: Callable[[Frame], Any]) -> None:
        self._condition = channel.condition
        self._waiters: List[Any] = []
        self._done_callbacks: List[Callable[[Any], Any]] = []
        self._channel = channel
        self._convert = convert

    def result(self, timeout: Optional[float] = None) -> Any:
        """The call's result. ``timeout`` in seconds; `concurrent.futures.TimeoutError` when it is over.

        Raises `concurrent.futures.CancelledError` after `cancel`. After Ctrl-C in here, the device drops the call if it
        waits or can be stopped: `Cancelled` then. Any other call goes on, and its result can be waited for again.
        """
        if not self.answered:
            self._channel.wait(self, timeout)
        return super().result(0) if self._failed else self._result

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """The call's error, or None if it succeeded. ``timeout`` and errors as for `result`."""
        if not self.answered:
            self._channel.wait(self, timeout)
        return super().exception(0)

    def cancel(self) -> bool:
        """Cancel the call; False if it is done already.

        The device drops a call that waits, and stops one that runs in onnxruntime. Any other call that runs ends with
        the session's process, and with it the session: nothing else stops native code.
        """
        if not self._channel.cancel(self):
            return self.cancelled()
        super().cancel()
        self.set_running_or_notify_cancel()  # for those in concurrent.futures.wait
        self._failed = self.answered = True
        self.wake()
        return True

    def complete(self, frame: Optional[Frame], error: Optional[BaseException] = None) -> None:
        """Set the call's reply. An error in its conversion becomes the call's error."""
        if self.span is not None:
            self.span.end(frame, error)
        result = None
        if error is None:
            try:
                result = self._convert(frame)  # type: ignore[arg-type]  # it is one or the other
            except Exception as problem:  # noqa: BLE001 - whatever it is, it belongs to the future
                error = problem
        # As `set_result` and `set_exception`, but no thread sleeps on the condition: `result` reads the session.
        with self._channel.futures_lock:
            self._result, self._exception = result, error
            self._failed = error is not None
            self._state = "FINISHED"
            for waiter in self._waiters:
                waiter.add_exception(self) if error is not None else waiter.add_result(self)
        self.answered = True  # last: a thread that reads it takes the result at once
        if self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]  # all that follows from a result
        if self.sleeper is not None:
            self.wake()

    def running(self) -> bool:
        """Whether the call is under way, on the device or on its way there."""
        return not self.answered

    def done(self) -> bool:
        """Whether the reply is here; reads what has arrived, without waiting."""
        if not self.answered:
            self._channel.drain()
        return super().done()

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Call ``fn`` with this future when the reply is here, in a thread of its own: it may use the session."""
        super().add_done_callback(functools.partial(self._channel.call_back, fn))
