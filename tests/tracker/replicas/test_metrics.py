"""The metrics of a replica in Prometheus's form."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.tracker.replicas.metrics import ReplicaCounts, ReplicaMetrics


class OfTracker(Collector):
    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("rpcsys_tracker_of_the_tracker", "A metric.", value=3)


def text(counts: ReplicaCounts, led: Collector | None = None) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ReplicaMetrics(counts, lambda: led))
    return generate_latest(registry).decode().splitlines()


def test_what_a_replica_counts_is_shown() -> None:
    counts = ReplicaCounts(True, 41, 3, True, 1000, 2000, {"lab-2:9190": 1.5})
    counts.commits.observe(0.003)
    lines = text(counts)
    for line in (
        "rpcsys_tracker_leading 1.0",
        "rpcsys_tracker_term 41.0",
        "rpcsys_tracker_replicas 1.0",
        'rpcsys_tracker_behind_seconds{replica="lab-2:9190"} 1.5',
        "rpcsys_tracker_failovers_total 3.0",
        "rpcsys_tracker_engine_up 1.0",
        "rpcsys_tracker_engine_bytes 1000.0",
        "rpcsys_tracker_engine_quota_bytes 2000.0",
        'rpcsys_tracker_commit_seconds_bucket{le="0.002"} 0.0',
        'rpcsys_tracker_commit_seconds_bucket{le="0.005"} 1.0',
    ):
        assert line in lines
    assert not [line for line in lines if "of_the_tracker" in line]


def test_they_have_prometheuss_form() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here: it is in Debian's package prometheus")
    counts = ReplicaCounts(behind_s={'lab "2"\\:9190': 1.5})
    command, asked = [promtool, "check", "metrics"], "\n".join([*text(counts), ""])
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=60.0, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_leader_has_those_of_the_tracker_beside_them() -> None:
    lines = text(ReplicaCounts(), OfTracker())
    assert "rpcsys_tracker_of_the_tracker 3.0" in lines
    assert "rpcsys_tracker_leading 0.0" in lines
