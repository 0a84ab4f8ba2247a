"""Returns results in the order of the frames, for plain loops and event loops.

A separate thread takes the frames, so that a result never waits for the source's next frame, such as a camera's. The
thread takes a frame only when the pipeline has capacity for it. It ends with the loop, unless the source blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

from rpcsys.errors import FrameError

Submit: TypeAlias = "Callable[[Any], Future[Any]]"

_JOIN_TIMEOUT_S = 1.0  # seconds that a source may take for its current frame after the loop has ended


class _SourceError(NamedTuple):
    """The exception that the source raised, or that submitting a frame raised; it takes the frame's place."""

    error: BaseException


_Item: TypeAlias = "Future[Any] | _SourceError | None"  # a frame under way; the error that ended them; None: no more


_Feed: TypeAlias = tuple[Callable[[], None], Callable[[], object]]  # allows one more frame; stops the feed


class _Feeder:
    """Takes frames and submits them, at most ``limit`` ahead of the results; passes each future to ``put``."""

    def __init__(self, submit: Submit, frames: Iterable[Any], limit: int, put: Callable[[_Item], None]) -> None:
        self._submit = submit
        self._frames = frames
        self._put = put
        self._capacity = threading.Semaphore(limit)
        self.allow_next = self._capacity.release
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="frames", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._capacity.release()

    def join(self) -> None:
        self._thread.join(_JOIN_TIMEOUT_S)

    def _feed(self) -> None:
        try:
            for future in self._futures():
                self._put(future)
                if self._stopped.is_set():
                    future.cancel()
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's loop
            self._put(_SourceError(error))
        else:
            self._put(None)

    def _futures(self) -> Iterator[Future[Any]]:
        source = iter(self._frames)
        while self._capacity.acquire() and not self._stopped.is_set():
            try:
                future = self._submit(next(source))
            except StopIteration:
                return
            yield future


def results(submit: Submit, frames: Iterable[Any], limit: int, stop_on_error: bool) -> Iterator[Any]:
    """Yield the outcome of each frame, in their order: its result, or its `FrameError`.

    ``stop_on_error`` raises the `FrameError`. An exception of the source is raised after the outcomes of the frames
    before it. Ending the loop early cancels the frames under way.
    """
    under_way: SimpleQueue[_Item] = SimpleQueue()
    feeder = _Feeder(submit, frames, limit, under_way.put)
    item: _Item = None
    try:
        while (item := under_way.get()) is not None:
            outcome = _outcome(item, stop_on_error)
            feeder.allow_next()
            yield outcome
    finally:
        feeder.stop()
        _cancel(item)
        with contextlib.suppress(Empty):
            while True:
                _cancel(under_way.get_nowait())
        feeder.join()


async def results_async(
    submit: Submit, submit_async: Callable[[Any], Any], frames: Iterable[Any] | AsyncIterable[Any], limit: int,
    stop_on_error: bool,
) -> AsyncIterator[Any]:  # fmt: skip
    """`results` for an event loop, without blocking it; frames of an async iterable go to ``submit_async``."""
    under_way: asyncio.Queue[_Item] = asyncio.Queue()
    allow_next, stop = (
        _fed_by_task(submit_async, frames, limit, under_way.put_nowait)
        if isinstance(frames, AsyncIterable)
        else _fed_by_thread(submit, frames, limit, under_way.put_nowait)
    )
    item: _Item = None
    try:
        while (item := await under_way.get()) is not None:
            if isinstance(item, Future):
                await _ended(item)
            outcome = _outcome(item, stop_on_error)
            allow_next()
            yield outcome
    finally:
        stop()
        _cancel(item)
        while not under_way.empty():
            _cancel(under_way.get_nowait())


def _fed_by_thread(submit: Submit, frames: Iterable[Any], limit: int, put: Callable[[_Item], None]) -> _Feed:
    loop = asyncio.get_running_loop()

    def put_there(item: _Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: no result is needed
            loop.call_soon_threadsafe(put, item)

    feeder = _Feeder(submit, frames, limit, put_there)
    return feeder.allow_next, feeder.stop


def _fed_by_task(
    submit: Callable[[Any], Any], frames: AsyncIterable[Any], limit: int, put: Callable[[_Item], None]
) -> _Feed:
    capacity = asyncio.Semaphore(limit)

    async def feed() -> None:
        try:
            source = aiter(frames)
            while await capacity.acquire():
                put(await submit(await anext(source)))
        except StopAsyncIteration:
            put(None)
        except Exception as error:  # noqa: BLE001 - it is raised in the caller's loop
            put(_SourceError(error))

    task = asyncio.create_task(feed())
    return capacity.release, task.cancel


async def _ended(future: Future[Any]) -> None:
    """Wait until the future has a result or an error, or is cancelled."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # mark it as retrieved, or asyncio logs that it never was


def _outcome(item: Future[Any] | _SourceError, stop_on_error: bool) -> Any:
    if isinstance(item, _SourceError):
        raise item.error
    try:
        return item.result()
    except FrameError as error:
        if stop_on_error:
            raise
        return error


def _cancel(item: _Item) -> None:
    if isinstance(item, Future):
        item.cancel()
