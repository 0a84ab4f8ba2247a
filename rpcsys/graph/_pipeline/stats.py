"""Measures a pipeline: counters of its stages, a trace of their runs, a progress bar on a terminal.

The trace is in the Trace Event Format of Chrome and Perfetto (https://ui.perfetto.dev): complete events ("X"), times
in microseconds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import click

from rpcsys import notebook
from rpcsys.errors import UsageError
from rpcsys.progress import in_terminal

TRACED_RUNS = 1 << 16  # a trace holds this many runs of stages, the newest ones


class StageRun(NamedTuple):
    """One frame in one replica of a stage; times in seconds of one clock, ``idle_since``: when the replica was free."""

    stage: str
    replica: int
    frame: int
    idle_since: float
    began: float
    ended: float
    nbytes: int
    error: str = ""


class DeviceTurn(NamedTuple):
    """One turn of a call on a board's device, in the clock of `StageRun`; ``name``: of the stage, or of the call."""

    name: str
    began: float
    ended: float


class DeviceRow(NamedTuple):
    """A device of a leased board, as a row of the trace."""

    name: str
    turns: Sequence[DeviceTurn]


@dataclass
class StageStats:
    """Counters of one stage, over all of its replicas.

    ``frames``: how many it ran, and ``failed``: how many of them failed. ``busy_s``: seconds in its function, and
    ``waiting_s``: seconds between two frames, both summed over its threads. ``bytes``: of the tensors it returned, if
    they have ``nbytes``. ``active_s``: seconds with at least one call under way (a call counts when it has ended).
    """

    frames: int = 0
    failed: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    bytes: int = 0
    active_s: float = 0.0


Stats = Mapping[str, StageStats]


class PipelineFigures(dict[str, StageStats]):
    """The counters of a pipeline's stages, by name."""

    def _repr_html_(self) -> str:
        head = ["stage", "frames", "failed", "busy", "waiting", "active", "MB"]
        rows = [
            [name, each.frames, each.failed, *(f"{seconds:.3f} s" for seconds in
             (each.busy_s, each.waiting_s, each.active_s)), f"{each.bytes / 1e6:.1f}"]
            for name, each in self.items()
        ]  # fmt: skip
        return notebook.block("stages of a pipeline", notebook.table(head, rows))


class PipelineStats:
    """Counters and trace of a pipeline, given the replicas of each stage. Several threads may use it."""

    def __init__(self, stages: Mapping[str, int]) -> None:
        self._lock = threading.Lock()
        self._stages = {name: StageStats() for name in stages}
        self._rows = [(name, replica) for name, count in stages.items() for replica in range(count)]
        self._runs: deque[StageRun] = deque(maxlen=TRACED_RUNS)
        self._inside = dict.fromkeys(stages, 0)
        self._active_since = dict.fromkeys(stages, 0.0)

    def begin(self, stage: str, began: float) -> None:
        """A run of a stage has begun."""
        with self._lock:
            if not self._inside[stage]:
                self._active_since[stage] = began
            self._inside[stage] += 1

    def add(self, run: StageRun) -> None:
        """Count one run of a stage; `begin` came before."""
        with self._lock:
            self._inside[run.stage] -= 1
            stats = self._stages[run.stage]
            stats.frames += 1
            stats.failed += bool(run.error)
            stats.busy_s += run.ended - run.began
            stats.waiting_s += run.began - run.idle_since
            stats.bytes += run.nbytes
            since = self._active_since[run.stage]
            stats.active_s += max(0.0, run.ended - since)
            self._active_since[run.stage] = max(run.ended, since)
            self._runs.append(run)

    def now(self) -> dict[str, StageStats]:
        """The current counters by stage."""
        with self._lock:
            return {name: replace(stats) for name, stats in self._stages.items()}

    def runs(self) -> list[StageRun]:
        """The newest runs."""
        with self._lock:
            return list(self._runs)

    def save_trace(self, path: str | os.PathLike[str], devices: Sequence[DeviceRow] = ()) -> None:
        """Write the trace as JSON, with rows for ``devices``. Raises `UsageError` if the file cannot be written."""
        runs = self.runs()
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": _events(self._rows, runs, devices), "displayTimeUnit": "ms"}, file)
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None


def size(values: Iterable[Any]) -> int:
    """Bytes of the tensors among ``values`` that have ``nbytes``."""
    return sum(getattr(value, "nbytes", 0) for value in values)


def _events(
    rows: Sequence[tuple[str, int]], runs: Sequence[StageRun], devices: Sequence[DeviceRow]
) -> list[dict[str, Any]]:
    threads = {row: number for number, row in enumerate(rows, 1)}
    start = min((run.began for run in runs), default=0.0)
    events = [_metadata("process_name", 0, name="pipeline")]
    names = [*(f"{stage} #{replica}" for stage, replica in rows), *(device.name for device in devices)]
    for number, name in enumerate(names, 1):
        events.append(_metadata("thread_name", number, name=name))
        events.append(_metadata("thread_sort_index", number, sort_index=number))
    for run in runs:
        args = {"frame": run.frame, "bytes": run.nbytes, **({"error": run.error} if run.error else {})}
        named = {"name": f"frame {run.frame}", "cat": run.stage, "args": args}
        events.append(_complete(threads[run.stage, run.replica], run.began - start, run.ended - start, **named))
    for number, device in enumerate(devices, len(rows) + 1):
        for turn in device.turns:
            if turn.began >= start:  # the trace has no earlier run of a stage
                named = {"name": turn.name, "cat": device.name, "args": {}}
                events.append(_complete(number, turn.began - start, turn.ended - start, **named))
    return events


def _complete(thread: int, began: float, ended: float, **more: Any) -> dict[str, Any]:
    return {**more, "ph": "X", "pid": 1, "tid": thread, "ts": began * 1e6, "dur": (ended - began) * 1e6}


def _metadata(what: str, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": args}


def with_progress(outcomes: Iterator[Any], frames: Iterable[Any], figures: Callable[[], Stats]) -> Iterator[Any]:
    """Yield ``outcomes``, with a progress bar of ``frames``' length if standard error is a terminal."""
    if not in_terminal():
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


def pace(before: Stats, now: Stats, seconds: float) -> str:
    """The progress text for these seconds: ``51.2 frames/s, stage1 busy 98 %``, plus the number of failed frames."""
    seconds = max(seconds, 1e-9)
    busy = {name: (now[name].active_s - before[name].active_s) / seconds for name in now}
    slowest = max(busy, key=lambda name: busy[name])
    done = min(now[name].frames - before[name].frames for name in now)
    failed = sum(now[name].failed - before[name].failed for name in now)
    text = f"{done / seconds:.1f} frames/s, {slowest} busy {min(busy[slowest], 1):.0%}"
    return f"{text}, {failed} failed" if failed else text
