"""Results of frames in the frames' order, for plain loops and event loops.

A thread of its own takes the frames, so that a result never waits for the next frame, a camera's say. It takes frames
only as there is room, and ends with the loop, unless the source blocks.
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

_JOIN_TIMEOUT_S = 1.0  # seconds for a source to hand over the frame it is at when its loop is left


class _SourceError(NamedTuple):
    """In the place of a frame: what the source, or submitting a frame, raised."""

    error: BaseException


_Item: TypeAlias = "Future[Any] | _SourceError | None"  # a frame under way; what ended the frames; None behind the last


_Feed: TypeAlias = tuple[Callable[[], None], Callable[[], object]]  # makes room for one more frame; leaves


class _Feeder:
    """Takes frames and submits them, at most ``limit`` ahead of the results taken; ``put`` gets each one's future."""

    def __init__(self, submit: Submit, frames: Iterable[Any], limit: int, put: Callable[[_Item], None]) -> None:
        self._submit = submit
        self._frames = frames
        self._put = put
        self._room = threading.Semaphore(limit)
        self.make_room = self._room.release
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="frames", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._left.set()
        self._room.release()

    def join(self) -> None:
        self._thread.join(_JOIN_TIMEOUT_S)

    def _feed(self) -> None:
        try:
            for future in self._futures():
                self._put(future)
                if self._left.is_set():
                    future.cancel()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to who runs the loop
            self._put(_SourceError(error))
        else:
            self._put(None)

    def _futures(self) -> Iterator[Future[Any]]:
        source = iter(self._frames)
        while self._room.acquire() and not self._left.is_set():
            try:
                future = self._submit(next(source))
            except StopIteration:
                return
            yield future


def results(submit: Submit, frames: Iterable[Any], limit: int, stop_on_error: bool) -> Iterator[Any]:
    """The outcome of each frame, in their order: its result, or its `FrameError`, raised with ``stop_on_error``.

    What the source raises comes behind the outcomes of the frames before. What is under way when the loop is left is
    cancelled.
    """
    under_way: SimpleQueue[_Item] = SimpleQueue()
    feeder = _Feeder(submit, frames, limit, under_way.put)
    item: _Item = None
    try:
        while (item := under_way.get()) is not None:
            outcome = _outcome(item, stop_on_error)
            feeder.make_room()
            yield outcome
    finally:
        feeder.leave()
        _cancel(item)
        with contextlib.suppress(Empty):
            while True:
                _cancel(under_way.get_nowait())
        feeder.join()


async def results_async(
    submit: Submit, submit_async: Callable[[Any], Any], frames: Iterable[Any] | AsyncIterable[Any], limit: int,
    stop_on_error: bool,
) -> AsyncIterator[Any]:  # fmt: skip
    """`results` for an event loop, which is never blocked; frames of an async iterable go to ``submit_async``."""
    under_way: asyncio.Queue[_Item] = asyncio.Queue()
    make_room, leave = (
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
            make_room()
            yield outcome
    finally:
        leave()
        _cancel(item)
        while not under_way.empty():
            _cancel(under_way.get_nowait())


def _fed_by_thread(submit: Submit, frames: Iterable[Any], limit: int, put: Callable[[_Item], None]) -> _Feed:
    loop = asyncio.get_running_loop()

    def put_there(item: _Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, with whoever would take it
            loop.call_soon_threadsafe(put, item)

    feeder = _Feeder(submit, frames, limit, put_there)
    return feeder.make_room, feeder.leave


def _fed_by_task(
    submit: Callable[[Any], Any], frames: AsyncIterable[Any], limit: int, put: Callable[[_Item], None]
) -> _Feed:
    room = asyncio.Semaphore(limit)

    async def feed() -> None:
        try:
            source = aiter(frames)
            while await room.acquire():
                put(await submit(await anext(source)))
        except StopAsyncIteration:
            put(None)
        except Exception as error:  # noqa: BLE001 - it belongs to who runs the loop
            put(_SourceError(error))

    task = asyncio.create_task(feed())
    return room.release, task.cancel


async def _ended(future: Future[Any]) -> None:
    """Wait until it has a result or an error, or is cancelled."""
    waiting = asyncio.wrap_future(future)
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # asked for, or the loop would complain that nobody did


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
