"""What the stages of a pipeline did: counters, and a trace for Perfetto (https://ui.perfetto.dev).

The trace is in the Trace Event Format that Chrome and Perfetto read: complete events ("X"), times in microseconds.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rpcsys.errors import UsageError

#: Runs of stages that a trace remembers: of more, the newest.
REMEMBERED = 1 << 16


class Run(NamedTuple):
    """One frame in one replica of a stage; times in seconds of one clock. ``idle_since`` is when the replica was free."""

    stage: str
    replica: int
    frame: int
    idle_since: float
    began: float
    ended: float
    nbytes: int
    error: str = ""


@dataclass
class StageFigures:
    """Counters of one stage, its replicas together.

    Attributes
    ----------
    frames, failed : how many it ran, and how many of those failed
    busy_s, waiting_s : seconds in its function, and between two frames; of each of its threads, added up
    bytes : of the tensors it gave, where they say their size
    active_s : seconds in which one frame or more was in its function; a call that runs counts when it has ended
    """

    frames: int = 0
    failed: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    bytes: int = 0
    active_s: float = 0.0


class Figures:
    """Counters and trace of a pipeline. May be used by several threads."""

    def __init__(self, stages: Mapping[str, int]) -> None:
        """``stages``: each one's replicas."""
        self._lock = threading.Lock()
        self._stages = {name: StageFigures() for name in stages}
        self._rows = [(name, replica) for name, count in stages.items() for replica in range(count)]
        self._runs: deque[Run] = deque(maxlen=REMEMBERED)
        self._inside = dict.fromkeys(stages, 0)
        self._active_since = dict.fromkeys(stages, 0.0)

    def begin(self, stage: str, began: float) -> None:
        """A run of a stage begins."""
        with self._lock:
            if not self._inside[stage]:
                self._active_since[stage] = began
            self._inside[stage] += 1

    def add(self, run: Run) -> None:
        """Count one run of a stage, which had begun."""
        with self._lock:
            self._inside[run.stage] -= 1
            figures = self._stages[run.stage]
            figures.frames += 1
            figures.failed += bool(run.error)
            figures.busy_s += run.ended - run.began
            figures.waiting_s += run.began - run.idle_since
            figures.bytes += run.nbytes
            since = self._active_since[run.stage]
            figures.active_s += max(0.0, run.ended - since)
            self._active_since[run.stage] = max(run.ended, since)
            self._runs.append(run)

    def now(self) -> dict[str, StageFigures]:
        """The counters by stage, as they are now."""
        with self._lock:
            return {name: StageFigures(**vars(figures)) for name, figures in self._stages.items()}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace. Raises `UsageError` where that cannot be."""
        with self._lock:
            runs = list(self._runs)
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(_trace(self._rows, runs), file)
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None


def size(values: Iterable[Any]) -> int:
    """Bytes of the tensors among ``values`` that say their size."""
    return sum(getattr(value, "nbytes", 0) for value in values)


def _trace(rows: Sequence[tuple[str, int]], runs: Sequence[Run]) -> dict[str, Any]:
    """A row for each replica of each stage, in the stages' order."""
    threads = {row: number for number, row in enumerate(rows, 1)}
    start = min((run.began for run in runs), default=0.0)
    events = [_named("process_name", 0, name="pipeline")]
    for (stage, replica), number in threads.items():
        events.append(_named("thread_name", number, name=f"{stage} #{replica}"))
        events.append(_named("thread_sort_index", number, sort_index=number))
    for run in runs:
        about = {"frame": run.frame, "bytes": run.nbytes, **({"error": run.error} if run.error else {})}
        events.append(
            {
                "name": f"frame {run.frame}",
                "cat": run.stage,
                "ph": "X",
                "pid": 1,
                "tid": threads[run.stage, run.replica],
                "ts": (run.began - start) * 1e6,
                "dur": (run.ended - run.began) * 1e6,
                "args": about,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, thread: int, **args: Any) -> dict[str, Any]:
    """A metadata event: what a row is called, or where it stands."""
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": args}
