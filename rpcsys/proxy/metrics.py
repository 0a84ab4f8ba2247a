"""The proxy's metrics, for Prometheus; docs/proxy.md lists the names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sized

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.proxy.relay import BufferPool, Pair
from rpcsys.proxy.state import ProxyState
from rpcsys.proxy.tracker_link import ProxyTrackerLink

#: Keys with metrics of their own: a client may ask for any key, and each would cost memory for ever.
MAX_KEYS = 500
OTHER = "(other)"
#: What is relayed: a client with its server, a server's link to the tracker, whatever there is to the next proxy.
SESSION, LINK, CHAINED = KINDS = ("session", "link", "chained")


class ProxyMetrics(Collector):
    """Counts what happens; what is so now is read from the service's parts when Prometheus asks."""

    def __init__(self, state: ProxyState, openings: Sized, pairs: Mapping[Pair, str], pool: BufferPool) -> None:
        self.accepted = 0
        self.dropped = 0
        self.refused: Counter[str] = Counter()
        self.tracker: ProxyTrackerLink | None = None
        self._state = state
        self._openings = openings
        self._pairs = pairs
        self._pool = pool
        self._joined: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def joined(self, key: str) -> None:
        """A client and a server of ``key`` were joined."""
        self._joined[key if key in self._joined or len(self._joined) < MAX_KEYS else OTHER] += 1

    def ended(self, kind: str, pair: Pair) -> None:
        """A pair has ended."""
        self._bytes[kind] += sum(flow.moved for flow in pair.flows)

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
        moved, running, stuck = Counter(self._bytes), Counter(self._pairs.values()), 0
        for pair, kind in self._pairs.items():
            moved[kind] += sum(flow.moved for flow in pair.flows)
            stuck += sum(flow.stuck for flow in pair.flows)
        waiting = dict(list(self._state.counts().items())[:MAX_KEYS])
        yield _counter("streams", "Streams accepted.", self.accepted)
        yield _counter("streams_dropped", "Streams that broke the protocol or said too little.", self.dropped)
        yield _counters("streams_refused", "Streams refused, by the answer they got.", "answer", self.refused)
        yield _counters("pairings", "Clients joined with servers.", "key", self._joined)
        yield _counters("bytes", "Bytes relayed.", "kind", {kind: moved[kind] for kind in KINDS})
        pairs = GaugeMetricFamily("rpcsys_proxy_pairs", "Pairs of streams.", labels=["kind"])
        for kind in KINDS:
            pairs.add_metric([kind], running[kind])
        yield pairs
        yield _gauge("flows_stuck", "Directions whose receiver takes nothing now.", stuck)
        yield _gauge("buffers_kept", "Buffers of 1 MiB kept for such.", self._pool.kept)
        by_key = GaugeMetricFamily(
            "rpcsys_proxy_waiting", "Streams that wait for their other half.", labels=["role", "key"]
        )
        for labels, count in waiting.items():
            by_key.add_metric(labels, count)
        yield by_key
        yield _gauge("strangers", "Streams whose opening is not whole.", len(self._openings))
        if self.tracker is not None:
            yield _gauge("tracker_up", "Whether the tracker answers.", self.tracker.up)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily("rpcsys_proxy_" + name, text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily("rpcsys_proxy_" + name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily("rpcsys_proxy_" + name, text, value=value)
