"""What a proxy can be measured by, for Prometheus; docs/proxy.md lists the names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.daemon.http import Page, health_page, metrics_page
from rpcsys.proxy.relay import Pair

if TYPE_CHECKING:
    from rpcsys.proxy.service import Service

MAX_KEYS = 500
OTHER = "(other)"
"""Keys with figures of their own: strangers may say any key, and each would cost memory for ever."""

KINDS = ("session", "link", "chained")


class Figures(Collector):
    """The figures of a service."""

    def __init__(self, service: Service) -> None:
        self.accepted = 0
        self.dropped = 0
        self.refused: Counter[str] = Counter()
        self._service = service
        self._joined: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def pages(self) -> dict[str, Page]:
        """What is served by HTTP."""
        return {"/healthz": health_page, "/metrics": metrics_page(self)}

    def joined(self, key: str) -> None:
        """A client and a server of ``key`` were joined."""
        self._joined[key if key in self._joined or len(self._joined) < MAX_KEYS else OTHER] += 1

    def ended(self, kind: str, pair: Pair) -> None:
        """A pair has ended."""
        self._bytes[kind] += sum(flow.moved for flow in pair.flows)

    def collect(self) -> Iterator[Metric]:
        """The figures at this moment."""
        yield _counter("streams", "Streams accepted.", self.accepted)
        yield _counter("streams_dropped", "Streams that broke the protocol or said too little.", self.dropped)
        refused = CounterMetricFamily(
            "rpcsys_proxy_streams_refused", "Streams refused, by the answer they got.", labels=["answer"]
        )
        for answer, count in self.refused.items():
            refused.add_metric([answer], count)
        yield refused
        joined = CounterMetricFamily("rpcsys_proxy_pairings", "Clients joined with servers.", labels=["key"])
        for key, count in self._joined.items():
            joined.add_metric([key], count)
        yield joined
        yield from self._traffic()
        yield from self._present()

    def _traffic(self) -> Iterator[Metric]:
        moved = Counter(self._bytes)
        running = Counter(self._service.pairs.values())
        stuck = 0
        for pair, kind in self._service.pairs.items():
            for flow in pair.flows:
                moved[kind] += flow.moved
                stuck += flow.stuck
        total = CounterMetricFamily("rpcsys_proxy_bytes", "Bytes relayed.", labels=["kind"])
        pairs = GaugeMetricFamily("rpcsys_proxy_pairs", "Pairs of streams.", labels=["kind"])
        for kind in KINDS:
            total.add_metric([kind], moved[kind])
            pairs.add_metric([kind], running[kind])
        yield total
        yield pairs
        yield _gauge("flows_stuck", "Directions whose receiver takes nothing now.", stuck)
        yield _gauge("buffers_kept", "Buffers of 1 MiB kept for such.", self._service.relay.pool.kept)

    def _present(self) -> Iterator[Metric]:
        service = self._service
        waiting = GaugeMetricFamily(
            "rpcsys_proxy_waiting", "Streams that wait for their other half.", labels=["role", "key"]
        )
        for (role, key), count in list(service.state.counts().items())[:MAX_KEYS]:
            waiting.add_metric([role, key], count)
        yield waiting
        yield _gauge("strangers", "Streams whose opening is not whole.", len(service.strangers))
        if service.tracker is not None:
            yield _gauge("tracker_up", "Whether the tracker answers.", service.tracker.up)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily("rpcsys_proxy_" + name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily("rpcsys_proxy_" + name, text, value=value)
