"""Times a function on the device, and records the board's state before and after, and the energy that it took."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.module import running_call
from rpcsys.server.session.board_state import board_state, changes, disturbances, since
from rpcsys.server.session.energy import EnergyCount
from rpcsys.wire.checks import shown

MAX_NUMBER = 10_000_000  # calls in one repeat: a mistake in min_repeat_ms must not run for days
MAX_REPEAT = 30_000  # one head returns all figures, at most 25 bytes each
MAX_FLUSH = 256 << 20  # bytes: larger than any CPU's caches, small for any memory
PAUSE_S = 0.25  # of a cooldown, between two looks at whether the call was stopped


def measure(call: Callable[[], Any], options: dict[str, Any]) -> dict[str, Any]:
    """Run `evaluate`; add the board's state before and after, and warnings of what makes the figures doubtful.

    Where a meter can be read, ``joules`` is the energy of one call, as in `EnergyCount.report`.
    """
    before = board_state()
    with EnergyCount() as energy:
        results = evaluate(call, options, energy)
    after = since(before, board_state())
    warnings = changes(before, after) + disturbances(before, after)
    return {"results": results, "board": {"before": before, "after": after}, "warnings": warnings, **energy.report()}


def evaluate(call: Callable[[], Any], options: dict[str, Any], energy: EnergyCount | None = None) -> list[float]:
    """Return the mean seconds of one call, for each repeat. A first call is not timed.

    ``options``: ``number`` calls are timed together, ``repeat`` times; more calls if these take less than
    ``min_repeat_ms``. ``cooldown_s`` seconds pass between repeats. Before each measurement, ``cache_flush_bytes`` of
    other memory are read and written. ``energy`` counts the energy of the timed calls. Raises `RemoteArgumentError` for
    options out of range.
    """
    number = _whole(options, "number", 10, 1, MAX_NUMBER)
    repeat = _whole(options, "repeat", 1, 1, MAX_REPEAT)
    shortest = _seconds(options, "min_repeat_ms", 1e-3)
    cooldown = _seconds(options, "cooldown_s", 1.0)
    flush = _flusher(_whole(options, "cache_flush_bytes", 0, 0, MAX_FLUSH))
    counted = energy or EnergyCount(meters=())
    stopped = threading.Event()
    results: list[float] = []

    def run() -> float:
        flush()
        counted.begin()
        elapsed = _run(call, number)
        counted.end(number)
        return elapsed

    with running_call.stopped_by(stopped.set):
        call()
        while len(results) < repeat:
            if results and cooldown:
                _pause(cooldown, stopped)
            if stopped.is_set():
                raise RemoteArgumentError("the measurement was stopped")
            elapsed = run()
            while elapsed < shortest and number < MAX_NUMBER:
                # Estimated from the last measurement, and at least half as many again.
                guess = math.ceil(number * shortest / elapsed) if elapsed else number * 10
                number = min(max(guess, number * 3 // 2 + 1), MAX_NUMBER)
                elapsed = run()
            results.append(elapsed / number)
    return results


def _pause(seconds: float, stopped: threading.Event) -> None:
    """Sleep, but not much longer than until the call is ``stopped``."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0 and not stopped.is_set():
        time.sleep(min(left, PAUSE_S))


def _flusher(size: int) -> Callable[[], None]:
    """A function that fills the CPU's caches with ``size`` bytes of other data."""
    source, target = memoryview(bytearray(size)), memoryview(bytearray(size))
    return functools.partial(target.__setitem__, slice(None), source)


def _run(call: Callable[[], Any], number: int) -> float:
    """Return the seconds that ``number`` calls take."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start


def _whole(options: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise RemoteArgumentError(f"{name} must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def _seconds(options: dict[str, Any], name: str, scale: float) -> float:
    value = options.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= 3600 / scale:
        raise RemoteArgumentError(f"{name} must be from 0 to an hour, not {shown(value)}")
    return float(value * scale)
