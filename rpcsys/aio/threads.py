"""What blocks runs in threads, so that the event loop never does.

Each blocking operation has a thread of its own. In a pool of threads a request that waits in the queue could keep the
very upload from running after which a device is free.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")
Params = ParamSpec("Params")
Function = Callable[[], object]
#: Seconds to wait for a thread whose session is closed. It takes milliseconds; a second where it sleeps.
END_S = 10.0


class AsyncCloseable:
    """An asynchronous context manager that closes itself."""

    async def close(self) -> None:
        """Release the resources. A second call does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class OrderedThread:
    """A thread that runs functions in order. The first one starts it; it ends with `close`, or when it is dropped."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._functions: queue.SimpleQueue[Function | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, function: Function) -> None:
        """Run a function, which must not raise, after those before it. For one thread at a time."""
        self._functions.put(function)
        if self._thread is None:
            self._thread = start_thread(functools.partial(_run_all, self._functions), self._name)

    def close(self) -> None:
        """End the thread after the last function, and wait for that."""
        self._functions.put(None)
        if self._thread is not None:
            self._thread.join(END_S)

    def __del__(self) -> None:
        self._functions.put(None)


def _run_all(functions: queue.SimpleQueue[Function | None]) -> None:
    while (function := functions.get()) is not None:
        function()
        del function  # what it refers to may be dropped while the thread waits


def start_thread(function: Function, name: str = "rpcsys-aio") -> threading.Thread:
    """Run ``function`` in a new thread, for which the end of the process does not wait."""
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


def tell(future: asyncio.Future[Any], value: object, error: BaseException | None = None) -> bool:
    """Set a future's outcome, from any thread, if it has none. False if its loop is closed."""
    try:
        future.get_loop().call_soon_threadsafe(_settle, future, value, error)
    except RuntimeError:
        return False
    return True


def _settle(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


async def in_thread(
    function: Callable[[], Result], *, stop: Function | None = None, drop: Callable[[Result], object] | None = None
) -> Result:
    """The result of ``function``, which runs in a thread of its own, with the task's context variables.

    A cancelled task does not wait for its end.

    ``stop`` is called when the task is cancelled, and must not block. ``drop`` is called in a thread with a result
    that comes nevertheless.
    """
    done: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
    kept: list[Result] = []  # the result, until the task or `drop` takes it

    def leave() -> None:
        try:
            result = kept.pop()
        except IndexError:  # it is taken
            return
        if drop is not None:
            drop(result)

    def run() -> None:
        error: BaseException | None = None
        try:
            kept.append(function())
        except BaseException as problem:  # noqa: BLE001 - whatever it is, it belongs to the task
            error = problem
        if not tell(done, kept, error) or done.cancelled():
            leave()

    start_thread(functools.partial(contextvars.copy_context().run, run))
    try:
        return (await done).pop()
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        if kept:
            start_thread(leave)
        raise


def threaded(
    method: Callable[Concatenate[Any, Params], Result],
) -> Callable[Concatenate[Any, Params], Coroutine[Any, Any, Result]]:
    """The ``method`` of a blocking class as a method of the class that has such an object as ``blocking``."""

    @functools.wraps(method)
    async def in_a_thread(self: Any, /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return await in_thread(functools.partial(method, self.blocking, *args, **kwargs))

    return in_a_thread


def in_loop(callback: Callable[Params, object]) -> Callable[Params, None]:
    """A function, for any thread, that has this task's loop call ``callback``."""
    loop = asyncio.get_running_loop()

    def call(*args: Params.args, **kwargs: Params.kwargs) -> None:
        loop.call_soon_threadsafe(functools.partial(callback, *args, **kwargs))

    return call
