"""The proxy's metrics, for Prometheus; docs/proxy.md lists the names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from itertools import islice, product
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.daemon.relay import BufferPool, Pair
from rpcsys.proxy.state import DUPLICATE, MISMATCH, ProxyState
from rpcsys.proxy.tracker_link import ProxyTrackerLink
from rpcsys.wire.handshake import CLIENT, SERVER

MAX_KEYS = 500  # keys with metrics of their own: clients may request any key, and each costs memory for good
OTHER = "(other)"
CLOSED = "closed"  # the answer to a stream that is refused without a word
#: Kinds of pairs: a client with its server, a server's link to the tracker, any stream to the next proxy.
SESSION, LINK, CHAINED = KINDS = ("session", "link", "chained")


class ProxyMetrics(Collector):
    """Counts events. Gauges are read from the service's parts at each request of Prometheus."""

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
        self._joined[key if key in self._joined or len(self._joined) < MAX_KEYS else OTHER] += 1

    def ended(self, kind: str, pair: Pair) -> None:
        self._bytes[kind] += sum(flow.moved for flow in pair.flows)

    def collect(self) -> Iterator[Metric]:
        moved, running, stuck = Counter(self._bytes), Counter(self._pairs.values()), 0
        for pair, kind in self._pairs.items():
            moved[kind] += sum(flow.moved for flow in pair.flows)
            stuck += sum(flow.stuck for flow in pair.flows)
        counts = self._state.counts()
        keys = islice(dict.fromkeys([OTHER, *(key for _, key in counts)]), MAX_KEYS + 1)
        waiting = {(role, key): counts[role, key] for role, key in product((CLIENT, SERVER), keys)}
        # What has not happened has a value of 0: no alert can use a metric that is absent.
        refused = {answer: self.refused[answer] for answer in (DUPLICATE, MISMATCH, CLOSED)}
        joined = {OTHER: 0, **self._joined}
        yield _counter("streams", "Streams accepted.", self.accepted)
        yield _counter("streams_dropped", "Streams that broke the protocol, or whose opening was late.", self.dropped)
        yield _counter("streams_refused", "Streams refused, by the answer they got.", refused, "answer")
        yield _counter("pairings", "Clients joined with servers.", joined, "key")
        yield _counter("bytes", "Bytes relayed.", {kind: moved[kind] for kind in KINDS}, "kind")
        yield _gauge("pairs", "Pairs of streams.", {kind: running[kind] for kind in KINDS}, "kind")
        yield _gauge("flows_stuck", "Directions whose receiver takes nothing now.", stuck)
        yield _gauge("buffers_kept", "Buffers of 1 MiB kept for stuck flows.", self._pool.kept)
        yield _gauge("waiting", "Streams that wait for their other half.", waiting, "role", "key")
        yield _gauge("strangers", "Streams whose opening is not whole.", len(self._openings))
        if self.tracker is not None:
            yield _gauge("tracker_up", "Whether the tracker answers.", self.tracker.up)


Family = Callable[..., CounterMetricFamily | GaugeMetricFamily]


def _family(kind: Family, name: str, text: str, values: Mapping[Any, float] | float, *labels: str) -> Metric:
    """A metric with one value, or with a mapping from its label's value (several labels: a tuple) to the value."""
    if not isinstance(values, Mapping):
        return kind("rpcsys_proxy_" + name, text, value=values)
    family = kind("rpcsys_proxy_" + name, text, labels=labels)
    for value, count in values.items():
        family.add_metric([value] if isinstance(value, str) else value, count)
    return family


_counter, _gauge = partial(_family, CounterMetricFamily), partial(_family, GaugeMetricFamily)
