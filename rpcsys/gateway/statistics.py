"""What a gateway counts of a model's calls: behind the protocol's statistics, and the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

#: Why calls fail, in the words of the metrics that the field's dashboards read.
REJECTED, CANCELED, BACKEND, OTHER = "REJECTED", "CANCELED", "BACKEND", "OTHER"
REASONS = (REJECTED, CANCELED, BACKEND, OTHER)


class Duration:
    """How often something took time, and how long in all, in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        self.ns += int(seconds * 1e9)


class Times(NamedTuple):
    """Of one call, in seconds: in all, of that in queues and on the way, and in the model's function."""

    total: float
    queue: float
    compute: float


class ModelStatistics:
    """Counts of one model since the gateway found it.

    ``inferences``: rows that were answered, 1 for a call without a batch; ``executions``: runs of the function;
    ``batches``: of these by rows; ``failures``: calls by reason; ``last``: the latest answer, monotonic seconds.
    ``compute``: as the host says it, else the time from sending the call to its answer. ``queue``: the rest.
    ``repeats``: calls that were sent again after their replica was lost.
    """

    def __init__(self) -> None:
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute = Duration()
        self.inferences = 0
        self.executions = 0
        self.repeats = 0
        self.last = 0.0
        self.batches: dict[int, Duration] = {}
        self.failures: Counter[str] = Counter()

    def ran(self, rows: int, seconds: float) -> None:
        """The function was run for ``rows`` and has answered."""
        self.executions += 1
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = Duration()
        batch.add(seconds)

    def succeeded(self, rows: int, times: Times, now: float) -> None:
        """One call was answered."""
        self.last = now
        self.inferences += rows
        self.success.add(times.total)
        self.queue.add(times.queue)
        self.compute.add(times.compute)

    def failed(self, reason: str, seconds: float = 0.0) -> None:
        """One call failed, or was not taken. ``reason``: one of `REASONS`."""
        self.failures[reason] += 1
        self.fail.add(seconds)

    def to_json(self, name: str, version: str, last_ms: int) -> dict[str, Any]:
        """The row of the protocol's ``model_stats``. ``last_ms``: the latest answer in milliseconds since 1970."""
        nothing = Duration()
        parts = {
            "success": self.success,
            "fail": self.fail,
            "queue": self.queue,
            "compute_input": nothing,
            "compute_infer": self.compute,
            "compute_output": nothing,
            "cache_hit": nothing,
            "cache_miss": nothing,
        }
        return {
            "name": name,
            "version": version,
            "last_inference": last_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {part: _pair(duration) for part, duration in parts.items()},
            "response_stats": {},
            "batch_stats": [_batch(rows, duration) for rows, duration in sorted(self.batches.items())],
            "memory_usage": [],
        }


def _pair(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def _batch(rows: int, compute: Duration) -> dict[str, Any]:
    nothing = {"count": compute.count, "ns": 0}
    return {"batch_size": rows, "compute_input": nothing, "compute_infer": _pair(compute), "compute_output": nothing}
