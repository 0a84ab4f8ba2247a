"""Running a daemon on an event loop: uvloop's where it exists, asyncio's own where not."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rpcsys import logs
from rpcsys.serve import Signals, Watchdog, end_without_memory, notify
from rpcsys.serve import run as run_main

SWITCH_S = 0.001  # how long a thread beside the loop may keep the interpreter from it; Python's default is 5 ms
#: Objects made before the collector looks for cycles. Daemons make few of them, and their records live for long:
#: with Python's default of 700, looking at those again and again takes an eighth of a busy tracker's time. What a
#: busy tracker has under way to its log and its history is less than this, and is never looked at.
COLLECT_AFTER = 100_000


def run_daemon(
    name: str, parse: Callable[[Sequence[str] | None], Any], serve: Callable[[Any], Coroutine[Any, Any, int]],
    arguments: Sequence[str] | None,
) -> int:  # fmt: skip
    """Parse ``arguments`` (the process's own for None), set up logging as they ask and serve; the exit status."""

    def main() -> int:
        config = parse(arguments)
        logs.setup(name, silent=config.silent, form=config.log_format)
        return run(serve(config))

    return run_main(main, name)


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
            _notify_watchdog(loop, every)
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def end_without_memory_anywhere(loop: asyncio.AbstractEventLoop) -> None:
    """End the process where a MemoryError would be logged and forgotten: in callbacks, tasks, threads and destructors.

    A daemon that goes on after one has lost a part of what it was doing, and mostly meets the next one at once. What is
    swallowed elsewhere is found where it is logged, see `rpcsys.daemon.log_handler`.
    """

    def check(error: BaseException | None, report: Callable[[Any], object], argument: Any) -> None:
        if isinstance(error, MemoryError):
            end_without_memory()
        report(argument)

    report = loop.default_exception_handler
    loop.set_exception_handler(lambda _, context: check(context.get("exception"), report, context))
    threading.excepthook = lambda args: check(args.exc_value, threading.__excepthook__, args)
    sys.unraisablehook = lambda args: check(args.exc_value, sys.__unraisablehook__, args)


def _notify_watchdog(loop: asyncio.AbstractEventLoop, every_s: float) -> None:
    """Tell a service manager's watchdog every ``every_s``, from the loop: one that hangs is noticed."""
    notify("WATCHDOG=1")
    loop.call_later(every_s, _notify_watchdog, loop, every_s)


async def until_signal(signals: Signals, stopped: asyncio.Event) -> None:
    """Return when SIGTERM or SIGINT comes, or ``stopped`` is set."""
    loop = asyncio.get_running_loop()
    loop.add_reader(signals.fileno(), stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_reader(signals.fileno())
