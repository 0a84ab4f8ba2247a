"""The metrics of a replica; beside them, while it leads, those of the tracker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_COMMIT_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass
class ReplicaCounts:
    """What a replica counts. Times are seconds."""

    leading: bool = False
    term: int = 0
    failovers: int = 0  # changes of the leader that it has seen
    engine_up: bool = False
    engine_bytes: int = 0
    engine_quota: int = 0
    behind_s: Mapping[str, float] = field(default_factory=dict)  # by the replica's address
    commits: Histogram = field(
        default_factory=lambda: Histogram(
            "rpcsys_tracker_commit_seconds",
            "From a decision's first request to the engine until the engine has it.",
            registry=None,
            buckets=_COMMIT_S,
        )
    )


class ReplicaMetrics(Collector):
    """``led``: the metrics of the tracker while it leads, None while it does not."""

    def __init__(self, counts: ReplicaCounts, led: Callable[[], Collector | None]) -> None:
        self._counts = counts
        self._led = led

    def collect(self) -> Iterable[Metric]:
        """All metrics at this moment."""
        led = self._led()
        return itertools.chain(() if led is None else led.collect(), self._own(), self._counts.commits.collect())

    def _own(self) -> Iterable[Metric]:
        counts = self._counts
        gauges = {
            "leading": ("Whether this tracker leads its replicas.", counts.leading),
            "term": ("The highest term that this tracker has seen.", counts.term),
            "replicas": ("The replicas that have said lately that they are there.", len(counts.behind_s)),
            "engine_up": ("Whether the replicas' engine has answered this tracker last.", counts.engine_up),
            "engine_bytes": ("Bytes of the engine's data.", counts.engine_bytes),
            "engine_quota_bytes": ("Bytes at which the engine takes no more data.", counts.engine_quota),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"rpcsys_tracker_{name}", text, value=float(value))
        behind = GaugeMetricFamily(
            "rpcsys_tracker_behind_seconds", "Since when a replica lacks an entry of the journal.", labels=["replica"]
        )
        for replica, seconds in counts.behind_s.items():
            behind.add_metric([replica], seconds)
        yield behind
        yield CounterMetricFamily(
            "rpcsys_tracker_failovers", "Changes of the leader that this tracker has seen.", value=counts.failovers
        )
