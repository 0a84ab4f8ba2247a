"""Runs a daemon on an event loop: uvloop's if it is installed, otherwise asyncio's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from rpcsys import logs
from rpcsys.daemon.log_handler import BatchLogHandler
from rpcsys.errors import ConfigError
from rpcsys.link import ciphers
from rpcsys.serve import Signals, Watchdog, end_without_memory, notify
from rpcsys.serve import run as run_main

SWITCH_S = 0.001  # longest time that a thread keeps the interpreter from the loop; Python's default is 5 ms
#: New objects before the garbage collector runs. Daemons make few cycles, and their records live long: with Python's
#: default of 700, scanning the records again and again takes an eighth of a busy tracker's time. The queued lines of
#: its log and its history are fewer objects than this, so the collector never scans them.
COLLECT_AFTER = 100_000


def run_daemon(
    name: str, parse: Callable[[Sequence[str] | None], Any], serve: Callable[[Any], Coroutine[Any, Any, int]],
    arguments: Sequence[str] | None,
) -> int:  # fmt: skip
    """Parse ``arguments`` (None: the process's own), set up logging and serve; the exit status.

    ``serve`` imports what needs ``ssl``: without it, that is said before.
    """

    def main() -> int:
        config = parse(arguments)
        if importlib.util.find_spec("_ssl") is None:
            raise ConfigError(ciphers.no_ssl(name))
        logs.setup(name, silent=config.silent, form=config.log_format)
        return run(serve(config))

    return run_main(main, name)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine to its end on a new loop; its result (an exit status)."""
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # imported modules never become garbage
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
    """End the process on a MemoryError that would only be logged: in callbacks, tasks, threads and destructors.

    A daemon that goes on has lost part of its work, and mostly fails again at once. `rpcsys.daemon.log_handler` ends
    the process on a MemoryError that a library catches and logs.
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
    """Notify the service manager's watchdog every ``every_s`` seconds from the loop, so that it detects a hang."""
    notify("WATCHDOG=1")
    loop.call_later(every_s, _notify_watchdog, loop, every_s)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Signals, contextlib.ExitStack]]:
    """The signals of a daemon, and what it closes at its end, the last first; its log is written after that."""
    log_handler = BatchLogHandler()
    try:
        with contextlib.ExitStack() as closing:
            yield closing.enter_context(contextlib.closing(Signals())), closing
    finally:
        await asyncio.sleep(0)  # cancelled tasks end in the loop's next turn
        log_handler.close()


async def until_signal(signals: Signals, stopped: asyncio.Event) -> None:
    """Return when SIGTERM or SIGINT arrives, or ``stopped`` is set."""
    loop = asyncio.get_running_loop()
    loop.add_reader(signals.fileno(), stopped.set)
    try:
        await stopped.wait()
    finally:
        loop.remove_reader(signals.fileno())
