"""Profiles a module's function on the device: calls it, and packs what its runtime says of the operators."""

from __future__ import annotations

import json
import threading
import time
import zlib
from typing import Any, Callable, Iterable, Sequence

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.module import running_call
from rpcsys.module.profiler import OperatorRun, Profiler, check_count
from rpcsys.wire.checks import shown

MAX_RUNS = 1000
MAX_BYTES = 64 << 20  # of a profile that is not packed; a client takes no more
_MAX_TEXT = 400  # characters of a name and of shapes: fused operators have long ones
_LEVEL = 6  # of zlib


def profile(profiler: Profiler, plain: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> bytes:
    """Call both with ``args``; return a profile as JSON, packed by zlib (`packed`).

    ``options``: ``runs`` calls are profiled, after ``warm_up`` others. ``plain``, the function without a profiler, is
    called as often. Raises `RemoteArgumentError` for options out of range, and for more than fits.
    """
    runs, warm_up = _whole(options, "runs", 10, 1), _whole(options, "warm_up", 2, 0)
    stopped = threading.Event()
    with running_call.stopped_by(stopped.set):
        profiled = _timed(lambda: profiler.call(*args), runs, warm_up, stopped)
        unprofiled = _timed(lambda: plain(*args), runs, warm_up, stopped)
    operators = profiler.runs(warm_up)
    if len(operators) < runs:
        why = f"{_fewer(runs)}, or free some space on the board"
        raise RemoteArgumentError(f"{profiler.runtime} noted {len(operators)} of {runs} calls; {why}")
    return packed(profiler.runtime, profiled, sum(end - begin for begin, end in unprofiled) / runs, operators)


def _timed(call: Callable[[], Any], runs: int, warm_up: int, stopped: threading.Event) -> list[tuple[float, float]]:
    """Begin and end of each call behind the first ``warm_up``, in seconds since the first of them."""
    times = []
    for _ in range(warm_up + runs):
        if stopped.is_set():
            raise RemoteArgumentError("the profile was stopped")
        begin = time.perf_counter()
        call()
        times.append((begin, time.perf_counter()))
    first = times[warm_up][0]
    return [(begin - first, end - first) for begin, end in times[warm_up:]]


def packed(
    runtime: str, calls: Sequence[tuple[float, float]], plain_s: float, operators: Iterable[Sequence[OperatorRun]]
) -> bytes:
    """JSON, packed: ``runtime``, ``plain_s`` (mean of a call without a profiler), and of the profile

    - ``calls``: begin and duration of each call,
    - ``operators``: name, type, provider and shapes of each,
    - ``runs``: the operator's index, the call's index, the thread, and begin and duration.

    Times are microseconds since the first call. Raises `RemoteArgumentError` for more than fits.
    """
    places: dict[tuple[str, ...], int] = {}
    shapes: list[str] = []  # of each operator's first run
    rows: list[tuple[Any, ...]] = []
    for call, ((begin, _), ran) in enumerate(zip(calls, operators)):
        check_count(len(rows) + len(ran))
        for each in ran:
            about = each.name[:_MAX_TEXT], each.type[:_MAX_TEXT], each.provider[:_MAX_TEXT]
            place = places.setdefault(about, len(shapes))
            if place == len(shapes):
                shapes.append(each.shapes[:_MAX_TEXT])
            rows.append((place, call, each.thread, round(begin * 1e6 + each.begin, 2), round(each.duration, 2)))
    spans = [(round(begin * 1e6, 2), round((end - begin) * 1e6, 2)) for begin, end in calls]
    described = [(*about, shape) for about, shape in zip(places, shapes)]
    found = {"runtime": runtime, "plain_s": plain_s, "calls": spans, "operators": described, "runs": rows}
    text = json.dumps(found, separators=(",", ":")).encode()
    if len(text) > MAX_BYTES:
        most = f"{MAX_BYTES >> 20} MB"
        raise RemoteArgumentError(f"the profile of {len(calls)} calls is more than {most}; {_fewer(len(calls))}")
    return zlib.compress(text, _LEVEL)


def _fewer(runs: int) -> str:
    return f"take fewer runs than {runs}" if runs > 1 else "one call is too much: take a smaller input"


def _whole(options: dict[str, Any], name: str, default: int, least: int) -> int:
    value = options.get(name, default)
    if type(value) is not int or not least <= value <= MAX_RUNS:
        raise RemoteArgumentError(f"{name} must be a whole number from {least} to {MAX_RUNS}, not {shown(value)}")
    return value
