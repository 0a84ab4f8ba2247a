"""Timing a function on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import RemoteArgumentError

#: Calls in one repeat: a mistake in min_repeat_ms must not run for days.
MAX_NUMBER = 10_000_000
#: All figures go back in one head, at most 25 bytes each.
MAX_REPEAT = 30_000


def evaluate(call: Callable[[], Any], options: dict[str, Any]) -> list[float]:
    """Mean seconds of one call, for each repeat.

    ``options``: ``number`` calls are timed together, ``repeat`` times, and more than ``number`` where
    they take less than ``min_repeat_ms``; ``cooldown_s`` seconds pass between repeats. One call first
    is not counted. Raises `RemoteArgumentError` for options out of range.
    """
    number = _whole(options, "number", 10, MAX_NUMBER)
    repeat = _whole(options, "repeat", 1, MAX_REPEAT)
    least = _seconds(options, "min_repeat_ms", 1e-3)
    cooldown = _seconds(options, "cooldown_s", 1.0)
    call()
    results = []
    for index in range(repeat):
        if index and cooldown:
            time.sleep(cooldown)
        elapsed = _run(call, number)
        while elapsed < least and number < MAX_NUMBER:
            # A first guess from what was just measured, and never less than half as many again.
            guess = math.ceil(number * least / elapsed) if elapsed else number * 10
            number = min(max(guess, number * 3 // 2 + 1), MAX_NUMBER)
            elapsed = _run(call, number)
        results.append(elapsed / number)
    return results


def _run(call: Callable[[], Any], number: int) -> float:
    """Seconds that ``number`` calls take."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start


def _whole(options: dict[str, Any], name: str, default: int, most: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise _refusal(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    return value


def _seconds(options: dict[str, Any], name: str, scale: float) -> float:
    value = options.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value * scale <= 3600:
        raise _refusal(f"{name} must be from 0 to an hour, not {value!r}")
    return float(value * scale)


def _refusal(message: str) -> RemoteArgumentError:
    return RemoteArgumentError(message, type="RemoteArgumentError")
