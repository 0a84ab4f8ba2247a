"""How far a pipeline is, on a terminal: a bar, the pace, and the stage that sets it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from rpcsys.graph._pipeline.stats import StageStats

StatsNow = Callable[[], Mapping[str, StageStats]]


def shown(outcomes: Iterator[Any], frames: Iterable[Any], figures: StatsNow) -> Iterator[Any]:
    """``outcomes`` as they come, with a bar on standard error; without one where that is no terminal.

    ``frames`` is asked for nothing but how many they are.
    """
    if not sys.stderr.isatty():
        yield from outcomes
        return
    begun, before = time.monotonic(), figures()

    def text(_: object) -> str:
        return pace(before, figures(), time.monotonic() - begun)

    try:
        length = len(frames)  # type: ignore[arg-type]
    except TypeError:
        length = None
    with click.progressbar(outcomes, length=length, file=sys.stderr, item_show_func=text) as bar:
        yield from bar


def pace(before: Mapping[str, StageStats], now: Mapping[str, StageStats], seconds: float) -> str:
    """What a pipeline did in these seconds: ``51.2 frames/s, stage1 busy 98 %``; and how many frames failed, if any."""
    busy = {name: (now[name].active_s - before[name].active_s) / max(seconds, 1e-9) for name in now}
    slowest = max(busy, key=lambda name: busy[name])
    done = min(now[name].frames - before[name].frames for name in now)
    failed = sum(now[name].failed - before[name].failed for name in now)
    said = f"{done / max(seconds, 1e-9):.1f} frames/s, {slowest} busy {min(busy[slowest], 1):.0%}"
    return f"{said}, {failed} failed" if failed else said
