"""Running a daemon's event loop: uvloop's where it exists, asyncio's own where not."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Coroutine
from typing import Any

from rpcsys.serve import Signals, Watchdog, end_without_memory, notify

SWITCH_S = 0.001
"""How long a thread beside the loop may keep the interpreter from it at a time; Python's default is 5 ms."""

COLLECT_AFTER = 100_000
"""Objects made before the collector looks for cycles. Daemons make few of them, and their records live for long: with
Python's default of 700, looking at those again and again takes an eighth of a busy tracker's time. What a busy tracker
has under way to its log and its history is less than this, and is never looked at."""


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine to its end on a new loop; what it returns (an exit status)."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # the modules, which are never garbage
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    try:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    end_without_memory_anywhere(loop)
    try:
        asyncio.set_event_loop(loop)
        every = Watchdog().every
        if every is not None:
            _show_life(loop, every)
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def end_without_memory_anywhere(loop: asyncio.AbstractEventLoop) -> None:
    """End the process where a MemoryError would be logged and forgotten: in callbacks, tasks, threads and destructors.

    A daemon that goes on after one has lost a part of what it was doing, and mostly meets the next one at once. What is
    swallowed elsewhere is found where it is logged, see `rpcsys.daemon.journal`.
    """

    def of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        _look(context.get("exception"))
        loop.default_exception_handler(context)

    def of_thread(error: threading.ExceptHookArgs) -> None:
        _look(error.exc_value)
        threading.__excepthook__(error)

    def of_destructor(error: Any) -> None:
        _look(error.exc_value)
        sys.__unraisablehook__(error)

    loop.set_exception_handler(of_loop)
    threading.excepthook = of_thread
    sys.unraisablehook = of_destructor


def _look(error: BaseException | None) -> None:
    if isinstance(error, MemoryError):
        end_without_memory()


def _show_life(loop: asyncio.AbstractEventLoop, every_s: float) -> None:
    """Now and ever after, for a service manager's watchdog: from the loop, so that one that hangs is found out."""
    notify("WATCHDOG=1")
    loop.call_later(every_s, _show_life, loop, every_s)


async def until_signal(signals: Signals, stopped: asyncio.Event) -> None:
    """Return when SIGTERM or SIGINT comes, or ``stopped`` is set."""
    loop = asyncio.get_running_loop()
    loop.add_reader(signals.fileno(), stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_reader(signals.fileno())
