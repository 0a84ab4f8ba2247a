"""The calls of one session, for any number of tasks: a thread sends them, another one reads the replies.

The loop sends nothing itself, since a send may wait for the device. A call under way costs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rpcsys.aio.threads import OrderedThread, in_thread, start_thread, tell
from rpcsys.client.calls import CallFuture, Channel
from rpcsys.client.session import Session
from rpcsys.errors import RpcsysError, SessionClosed

#: Sends a call of the blocking client.
Start = Callable[[], CallFuture]


class AsyncCall(asyncio.Future[Any]):
    """The result of one call. Cancelling it cancels the call, as `CallFuture.cancel`."""

    call: CallFuture | None = None  # once it is sent


class AsyncCalls:
    """Makes the calls of ``session``. ``convert`` makes a result for tasks, in the thread that reads."""

    def __init__(self, session: Session, convert: Callable[[AsyncCalls, Any], Any]) -> None:
        self.session = session
        self._convert = convert
        # A part of the device's window stays free: where it is full, a sender waits, and so do cancellations behind it.
        self._space = asyncio.Semaphore(max(1, session.info["window"].get("calls", 64) * 3 // 4))
        self._sender = OrderedThread("rpcsys-aio-send")
        self._reader = OrderedThread("rpcsys-aio-read")
        self._closing = False
        self._traced = session._channel.traced

    async def run(self, start: Start) -> Any:
        """Make a call and wait for its result. Raises what the call raises, or a `SessionError`."""
        return await (await self._begin(start, None))

    async def submit(self, start: Start) -> AsyncCall:
        """Make a call; returns when it is sent, and its arguments are free. Waits while too many are under way."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer = await self._begin(start, sent)
        try:
            await sent
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def builtin(self, name: str, *args: Any, deadline_s: float | None = None) -> Any:
        """Call a built-in function of the session."""
        return await self.run(functools.partial(self.session._submit_builtin, name, *args, deadline_s=deadline_s))

    async def close(self) -> None:
        """Close the session and end the threads. Calls under way end with `SessionClosed`."""
        self._closing = True  # first: nothing follows the threads' last function
        await in_thread(self._end)

    def _end(self) -> None:
        self.session.close()
        self._sender.close()
        self._reader.close()

    async def _begin(self, start: Start, sent: asyncio.Future[None] | None) -> AsyncCall:
        """Have a call sent. An error before that is for ``sent``, if there is one."""
        if self._traced:
            start = functools.partial(contextvars.copy_context().run, start)
        await self._space.acquire()
        answer = AsyncCall(loop=asyncio.get_running_loop())
        answer.add_done_callback(self._done)
        if self._closing:
            tell(sent or answer, None, self.session.closed or SessionClosed("the session is closed; open a new one"))
        else:
            self._sender.run(functools.partial(self._send, answer, start, sent))
        return answer

    def _send(self, answer: AsyncCall, start: Start, sent: asyncio.Future[None] | None) -> None:
        if answer.cancelled():
            return
        try:
            call = answer.call = start()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the task
            tell(sent or answer, None, error)
            return
        if answer.cancelled():  # meanwhile: `_done` may have seen no call
            call.cancel()
        # Not with CallFuture's own method, which would call it in one more thread.
        Future.add_done_callback(call, functools.partial(self._deliver, answer))
        self._reader.run(functools.partial(_read, self.session._channel, call))
        if sent is not None:
            tell(sent, None)

    def _deliver(self, answer: AsyncCall, call: CallFuture) -> None:
        """Take the reply, in the thread that has read it."""
        answer.call = None  # with the callback it would be a cycle, and keep the session open
        if call.cancelled():
            return
        error = call.exception()
        tell(answer, None if error is not None else self._convert(self, call.result()), error)

    def _done(self, answer: AsyncCall) -> None:
        self._space.release()
        call = answer.call
        if answer.cancelled() and call is not None:
            start_thread(call.cancel)


def _read(channel: Channel, call: CallFuture) -> None:
    """Read replies until ``call`` has its own. Others are taken as they come."""
    with contextlib.suppress(RpcsysError):  # which is the outcome of the call, too
        channel.wait(call)
