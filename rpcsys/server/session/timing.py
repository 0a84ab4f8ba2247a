"""Times a function on the device, and records the board's state before and after.

The state comes from ``/sys`` and ``/proc``. Values that a board does not provide are absent.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.module import running_call
from rpcsys.wire.checks import shown

MAX_NUMBER = 10_000_000  # calls in one repeat: a mistake in min_repeat_ms must not run for days
MAX_REPEAT = 30_000  # one head returns all figures, at most 25 bytes each
MAX_FLUSH = 256 << 20  # bytes: larger than any CPU's caches, small for any memory
PAUSE_S = 0.25  # of a cooldown, between two looks at whether the call was stopped
FREQUENCY_SHARE = 0.05  # a larger change of frequency makes timings doubtful; governors step by more, noise is less
TEMPERATURE_K = 10.0  # after a larger rise a small board without a fan is soon throttled


def measure(call: Callable[[], Any], options: dict[str, Any]) -> dict[str, Any]:
    """Run `evaluate`; add the board's state before and after, and warnings of changes that make figures doubtful."""
    before = board_state()
    results = evaluate(call, options)
    after = board_state()
    return {"results": results, "board": {"before": before, "after": after}, "warnings": changes(before, after)}


def evaluate(call: Callable[[], Any], options: dict[str, Any]) -> list[float]:
    """Return the mean seconds of one call, for each repeat. A first call is not timed.

    ``options``: ``number`` calls are timed together, ``repeat`` times; more calls if these take less than
    ``min_repeat_ms``. ``cooldown_s`` seconds pass between repeats. Before each measurement, ``cache_flush_bytes`` of
    other memory are read and written. Raises `RemoteArgumentError` for options out of range.
    """
    number = _whole(options, "number", 10, 1, MAX_NUMBER)
    repeat = _whole(options, "repeat", 1, 1, MAX_REPEAT)
    shortest = _seconds(options, "min_repeat_ms", 1e-3)
    cooldown = _seconds(options, "cooldown_s", 1.0)
    flush = _flusher(_whole(options, "cache_flush_bytes", 0, 0, MAX_FLUSH))
    stopped = threading.Event()
    results: list[float] = []
    with running_call.stopped_by(stopped.set):
        call()
        while len(results) < repeat:
            if results and cooldown:
                _pause(cooldown, stopped)
            if stopped.is_set():
                raise RemoteArgumentError("the measurement was stopped")
            elapsed = _run(call, number, flush)
            while elapsed < shortest and number < MAX_NUMBER:
                # Estimated from the last measurement, and at least half as many again.
                guess = math.ceil(number * shortest / elapsed) if elapsed else number * 10
                number = min(max(guess, number * 3 // 2 + 1), MAX_NUMBER)
                elapsed = _run(call, number, flush)
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


def _run(call: Callable[[], Any], number: int, flush: Callable[[], None]) -> float:
    """Return the seconds that ``number`` calls take."""
    flush()
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


def board_state(root: str = "/") -> dict[str, Any]:
    """Any of ``cpu_mhz`` and ``governor``, by CPU, ``temperature_c`` of the hottest zone, and ``load``."""
    frequencies, governors = {}, {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = os.path.join(root, f"sys/devices/system/cpu/cpu{cpu}/cpufreq")
        frequencies[str(cpu)] = _thousandths(os.path.join(folder, "scaling_cur_freq"))  # Linux has kHz
        governors[str(cpu)] = _text(os.path.join(folder, "scaling_governor"))
    zones = glob.glob(os.path.join(glob.escape(root), "sys/class/thermal/thermal_zone*/temp"))
    load = _text(os.path.join(root, "proc/loadavg"))
    state = {
        "cpu_mhz": {cpu: mhz for cpu, mhz in frequencies.items() if mhz is not None},
        "governor": {cpu: governor for cpu, governor in governors.items() if governor},
        "temperature_c": max((value for value in map(_thousandths, zones) if value is not None), default=None),
        "load": float(load.split()[0]) if load else None,
    }
    return {name: value for name, value in state.items() if value is not None and value != {}}


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Changes between two states that make timings doubtful; one line each."""
    found = []
    for cpu, mhz in before.get("cpu_mhz", {}).items():
        now = after.get("cpu_mhz", {}).get(cpu, mhz)
        if abs(now - mhz) > FREQUENCY_SHARE * max(now, mhz):
            found.append(f"CPU {cpu} went from {mhz:.0f} to {now:.0f} MHz during the measurement")
    for cpu, governor in before.get("governor", {}).items():
        now = after.get("governor", {}).get(cpu, governor)
        if now != governor:
            found.append(f"the governor of CPU {cpu} went from {governor} to {now} during the measurement")
    rise = after.get("temperature_c", 0.0) - before.get("temperature_c", after.get("temperature_c", 0.0))
    if rise > TEMPERATURE_K:
        found.append(f"the board warmed by {rise:.0f} degrees during the measurement; add cooldown_s")
    return found


def _text(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path) as stream:
        return stream.read(4096).strip()
    return None


def _thousandths(path: str) -> float | None:
    """The number in a file, divided by 1000; None where there is none."""
    with contextlib.suppress(ValueError):
        return float(_text(path) or "") / 1000
    return None
