"""Timing a function on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import RemoteArgumentError
from rpcsys.server.session import board_state
from rpcsys.wire.checks import shown

#: Calls in one repeat: a mistake in min_repeat_ms must not run for days.
MAX_NUMBER = 10_000_000
#: All figures go back in one head, at most 25 bytes each.
MAX_REPEAT = 30_000
#: Larger than the caches of any board or server, and no strain on its memory.
MAX_FLUSH = 256 << 20


def measure(call: Callable[[], Any], options: dict[str, Any]) -> dict[str, Any]:
    """`evaluate`, with the board's state before and after, and what of it makes the figures doubtful."""
    before = board_state.read()
    results = evaluate(call, options)
    after = board_state.read()
    return {
        "results": results,
        "board": {"before": before, "after": after},
        "warnings": board_state.changes(before, after),
    }


def evaluate(call: Callable[[], Any], options: dict[str, Any]) -> list[float]:
    """Mean seconds of one call, for each repeat.

    ``options``: ``number`` calls are timed together, ``repeat`` times, and more than ``number`` where
    they take less than ``min_repeat_ms``; ``cooldown_s`` seconds pass between repeats; before each time
    that is taken, ``cache_flush_bytes`` of other memory are read and written. One call first is not counted. Raises `RemoteArgumentError` for options out of range.
    """
    number = _whole(options, "number", 10, MAX_NUMBER)
    repeat = _whole(options, "repeat", 1, MAX_REPEAT)
    least = _seconds(options, "min_repeat_ms", 1e-3)
    cooldown = _seconds(options, "cooldown_s", 1.0)
    flush = _flusher(_whole(options, "cache_flush_bytes", 0, MAX_FLUSH, least=0))
    call()
    results = []
    for index in range(repeat):
        if index and cooldown:
            time.sleep(cooldown)
        elapsed = _run(call, number, flush)
        while elapsed < least and number < MAX_NUMBER:
            # A first guess from what was just measured, and never less than half as many again.
            guess = math.ceil(number * least / elapsed) if elapsed else number * 10
            number = min(max(guess, number * 3 // 2 + 1), MAX_NUMBER)
            elapsed = _run(call, number, flush)
        results.append(elapsed / number)
    return results


def _flusher(size: int) -> Callable[[], None]:
    """What fills the CPU's caches with other data."""
    if not size:
        return lambda: None
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))

    def flush() -> None:
        target[:] = source

    return flush


def _run(call: Callable[[], Any], number: int, flush: Callable[[], None]) -> float:
    """Seconds that ``number`` calls take."""
    flush()
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start


def _whole(options: dict[str, Any], name: str, default: int, most: int, least: int = 1) -> int:
    value = options.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise RemoteArgumentError(f"{name} must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def _seconds(options: dict[str, Any], name: str, scale: float) -> float:
    value = options.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= 3600 / scale:
        raise RemoteArgumentError(f"{name} must be from 0 to an hour, not {shown(value)}")
    return float(value * scale)
