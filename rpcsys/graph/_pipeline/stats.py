"""Counters of a pipeline's stages, and the runs that its trace is made of."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.graph._pipeline.trace import StageRun, trace

#: Runs of stages that a trace remembers: of more, the newest.
TRACED_RUNS = 1 << 16


@dataclass
class StageStats:
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


class PipelineStats:
    """Counters and trace of a pipeline. May be used by several threads."""

    def __init__(self, stages: Mapping[str, int]) -> None:
        """``stages``: each one's replicas."""
        self._lock = threading.Lock()
        self._stages = {name: StageStats() for name in stages}
        self._rows = [(name, replica) for name, count in stages.items() for replica in range(count)]
        self._runs: deque[StageRun] = deque(maxlen=TRACED_RUNS)
        self._inside = dict.fromkeys(stages, 0)
        self._active_since = dict.fromkeys(stages, 0.0)

    def begin(self, stage: str, began: float) -> None:
        """A run of a stage begins."""
        with self._lock:
            if not self._inside[stage]:
                self._active_since[stage] = began
            self._inside[stage] += 1

    def add(self, run: StageRun) -> None:
        """Count one run of a stage, which had begun."""
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
        """The counters by stage, as they are now."""
        with self._lock:
            return {name: StageStats(**vars(stats)) for name, stats in self._stages.items()}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace. Raises `UsageError` where that cannot be."""
        with self._lock:
            runs = list(self._runs)
        try:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(trace(self._rows, runs), file)
        except OSError as error:
            raise UsageError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None


def size(values: Iterable[Any]) -> int:
    """Bytes of the tensors among ``values`` that say their size."""
    return sum(getattr(value, "nbytes", 0) for value in values)
