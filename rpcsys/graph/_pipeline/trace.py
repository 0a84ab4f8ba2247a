"""Runs of stages as a trace for Perfetto (https://ui.perfetto.dev).

It is in the Trace Event Format that Chrome and Perfetto read: complete events ("X"), times in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class StageRun(NamedTuple):
    """One frame in one replica of a stage; times in seconds of one clock, ``idle_since`` when the replica was free."""

    stage: str
    replica: int
    frame: int
    idle_since: float
    began: float
    ended: float
    nbytes: int
    error: str = ""


def trace(rows: Sequence[tuple[str, int]], runs: Sequence[StageRun]) -> dict[str, Any]:
    """The trace as JSON, with a row for each replica of each stage, in the stages' order."""
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
