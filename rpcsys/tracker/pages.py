"""The tracker's pages: figures for Prometheus, and the summary as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.tracker import views
from rpcsys.tracker.records import Peer

if TYPE_CHECKING:
    from rpcsys.tracker.service import Service

_VIEWER = Peer(0, "127.0.0.1", "127.0.0.1")


class Figures(Collector):
    """What the tracker can be measured by, read when Prometheus asks: counting costs the tracker nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """The figures at this moment."""
        service, state = self._service, self._service.state
        frames = CounterMetricFamily("rpcsys_tracker_frames", "Frames by direction.", labels=["direction"])
        frames.add_metric(["in"], service.frames_in)
        frames.add_metric(["out"], service.frames_out)
        yield frames
        yield GaugeMetricFamily("rpcsys_tracker_connections", "Open connections.", len(service.connections))
        yield GaugeMetricFamily("rpcsys_tracker_servers", "Registered servers.", len(state.server_names))
        yield GaugeMetricFamily("rpcsys_tracker_leases", "Leases that are out.", len(state.leases))
        pending = GaugeMetricFamily("rpcsys_tracker_pending", "Requests that wait, by key.", labels=["key"])
        free = GaugeMetricFamily("rpcsys_tracker_free", "Match keys on offer, by key.", labels=["key"])
        for key, queue in state.queues.items():
            pending.add_metric([key], len(queue.waiting))
            free.add_metric([key], state.pool.count(key))
        yield pending
        yield free


def summary_page(service: Service) -> tuple[str, bytes]:
    """The summary that clients of ours get, as JSON."""
    summary = views.summary(service.state, service.clock.now(), _VIEWER)
    return "application/json", json.dumps(summary).encode()
