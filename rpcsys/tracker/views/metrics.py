"""The tracker's metrics, for Prometheus: counted with each entry, or read from the records for each scrape.

Names and labels are public, as alert rules use them: docs/monitoring.md lists them. What may happen has a value of 0
before it does: no alert can use a metric that is absent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import accumulate, islice, product
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rpcsys.tracker.board_speed import SLOW, WELL
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.views import rows
from rpcsys.wire.outcomes import OUTCOMES

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records

#: Upper bounds of the histograms' buckets.
WAITS_S = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0)
LEASES_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
LAGS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Keys with metrics of their own. TVM's clients may request any key, and each would take memory until the end.
MAX_KEYS = 500
OTHER = "(other)"
#: How a request leaves the queue without a device (`rpcsys.tracker.events`), and the states of a server.
WHYS = ("cancelled", "timeout", "unknown", "left")
STATES = ("free", "busy", "partly busy", "preparing", "drained", "set aside", "unhealthy")
#: Why a lab's tracker does not let a peer in: no valid credential, no credential in the clear, no TLS, nothing said.
UNAUTHORIZED = ("credential", "clear", "tls", "silent")
HANDSHAKES = ("done", "failed")
WEBHOOK_OUTCOMES = ("sent", "failed", "dropped")
_FIRST = 32  # requests searched for the oldest one: they are nearly in the order of their arrival


class Histogram:
    """Counts of values up to each of ``bounds`` and beyond, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, and how many values lie below each."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


@dataclass(slots=True)
class LabCounts:
    """Counts of who came to a lab's tracker: who was not let in, by why, and handshakes of TLS, by their outcome."""

    unauthorized: Counter[str] = field(default_factory=Counter)
    handshakes: Counter[str] = field(default_factory=Counter)
    encrypted: int = 0  # open connections


@dataclass(slots=True)
class SiteCounts:
    """Counts of a tracker's peer sites, by site."""

    reached: dict[str, bool] = field(default_factory=dict)  # whether it can be reached now
    lent: Counter[str] = field(default_factory=Counter)  # leases of this site that its clients were granted
    borrowed: Counter[str] = field(default_factory=Counter)  # leases of it that clients of this site were granted


@dataclass(slots=True)
class WebhookCounts:
    """Counts of the events for one receiver of webhooks."""

    sent: int = 0
    failed: int = 0  # refused, or not accepted in time
    dropped: int = 0  # too many waited, or the tracker ended
    waiting: int = 0  # now


@dataclass(slots=True)
class FrameCounts:
    """Counts of frames, and the open connections."""

    connections: Sized
    frames_in: int = 0
    frames_out: int = 0
    lab: LabCounts | None = None
    sites: SiteCounts | None = None
    webhooks: Mapping[str, WebhookCounts] | None = None  # by receiver


class Metrics(Collector):
    """The metrics of a tracker."""

    def __init__(
        self,
        records: Records,
        now: Callable[[], float],
        counts: FrameCounts,
        pass_on: Callable[[], None],  # called before each scrape, so that the last entries are counted
        writable: Callable[[], bool] | None,  # whether the history can be written; None without a state directory
    ) -> None:
        self._records = records
        self._now = now
        self._counts = counts
        self._pass_on = pass_on
        self._writable = writable
        self._waits: dict[str, Histogram] = {}
        self._leases: dict[str, Histogram] = {}
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._faults: Counter[str] = Counter()
        self._unserved: Counter[str] = Counter()
        self.lag = Histogram(LAGS_S)

    def note(self, *records: HistoryEntry) -> None:
        """Count entries."""
        for record in records:
            details = record.details
            if record.kind == "granted":
                self._of(self._waits, details["key"], WAITS_S).observe(details["waited_s"])
            elif record.kind == "over":
                self._of(self._leases, details["key"], LEASES_S).observe(details["held_s"])
                key = details["key"] if details["key"] in self._leases else OTHER
                self._outcomes[key, details["outcome"]] += 1
                if details["fault"]:
                    self._faults[key] += 1
            elif record.kind == "waited" and details["why"] != "granted":
                self._unserved[details["why"]] += 1

    def _of(self, table: dict[str, Histogram], key: str, bounds: Sequence[float]) -> Histogram:
        found = table.get(key)
        return found or table.setdefault(key if len(table) < MAX_KEYS else OTHER, Histogram(bounds))

    def collect(self) -> Iterator[Metric]:
        """The metrics at this moment."""
        self._pass_on()
        yield from self._connections()
        yield from self._queues()
        yield self._by_state()
        yield self._gone()
        yield from self._speeds()
        keys = self._keys()
        waits = {**dict.fromkeys(keys, Histogram(WAITS_S)), **self._waits}
        leases = {**dict.fromkeys(keys, Histogram(LEASES_S)), **self._leases}
        yield _by_key("rpcsys_tracker_wait_seconds", "From request to lease.", waits)
        yield _by_key("rpcsys_tracker_lease_seconds", "From the beginning of a lease to its end.", leases)
        outcomes = {**dict.fromkeys(product(keys, OUTCOMES), 0), **self._outcomes}
        yield _counter("sessions", "Leases that are over, by how they ended.", ["key", "outcome"], outcomes)
        faults = {(key,): self._faults[key] for key in keys}
        yield _counter("faults", "Leases that ended by the server's own fault.", ["key"], faults)
        unserved = {(why,): self._unserved[why] for why in (*WHYS, *self._unserved)}
        yield _counter("unserved", "Requests that left the queue without a device, by why.", ["why"], unserved)

    def _keys(self) -> list[str]:
        """The keys with values of their own: those that were counted, then those that are served or waited for now."""
        keys = dict.fromkeys(self._leases)
        keys |= dict.fromkeys(islice(filter(None, self._records.queues), max(0, MAX_KEYS - len(keys))))
        return [*keys, *({OTHER} - keys.keys())]

    def _connections(self) -> Iterator[Metric]:
        counts = self._counts
        frames = {("in",): counts.frames_in, ("out",): counts.frames_out}
        yield _counter("frames", "Frames by direction.", ["direction"], frames)
        yield GaugeMetricFamily("rpcsys_tracker_connections", "Open connections.", len(counts.connections))
        if counts.lab is not None:
            yield from _of_lab(counts.lab)
        if counts.sites is not None:
            yield from _of_sites(counts.sites)
        if counts.webhooks is not None:
            yield from _of_webhooks(counts.webhooks)
        text = "How late the event loop runs a timer, measured twice a second."
        lag = HistogramMetricFamily("rpcsys_tracker_loop_lag_seconds", text)
        lag.add_metric([], self.lag.buckets(), self.lag.sum)
        yield lag
        if self._writable is not None:
            text = "1 while history is written, 0 while it cannot be."
            yield GaugeMetricFamily("rpcsys_tracker_history_writable", text, self._writable())

    def _queues(self) -> Iterator[Metric]:
        records, now = self._records, self._now()
        gauges = [
            GaugeMetricFamily(f"rpcsys_tracker_{name}", text, labels=["key"])
            for name, text in (
                ("pending", "Requests that wait, by key."),
                ("oldest_wait_seconds", "How long the oldest of them has waited."),
                ("free", "Match keys on offer, by key."),
                ("leases", "Running leases, by key."),
                ("slots", "Sessions that the servers can run at once."),
            )
        ]
        for key, queue in islice(records.queues.items(), MAX_KEYS):
            since = min((request.since for request in islice(queue.waiting.values(), _FIRST)), default=now)
            slots = sum(records.peers[conn].slots for conn in queue.servers)
            values = (len(queue.waiting), now - since, records.free(key), len(queue.leases), slots)
            for gauge, value in zip(gauges, values, strict=True):
                gauge.add_metric([key], value)
        yield from gauges

    def _by_state(self) -> Metric:
        records, now = self._records, self._now()
        counts = Counter(
            (rows.state_word(peer, rows.health(records, now, peer)["state"]), ",".join(peer.serves))
            for peer in records.peers.values()
            if peer.name
        )
        keys = dict.fromkeys([*self._keys(), *(key for _, key in counts)])
        family = GaugeMetricFamily("rpcsys_tracker_servers", "Servers by key and state.", labels=["key", "state"])
        for key, condition in product(islice(keys, MAX_KEYS + 1), STATES):
            family.add_metric([key, condition], counts[condition, key])
        return family

    def _speeds(self) -> Iterator[Metric]:
        records = self._records
        boards = [records.speeds.get(name) for name in records.server_names]
        judged = Counter((board.key, board.state) for board in boards if board is not None)
        keys = dict.fromkeys([*self._keys(), *(key for key, _ in judged)])
        checked = "Servers whose canary tells their speed, slow ones too."
        states = {"slow": ("Servers that their canary finds slow.", (SLOW,)), "checked": (checked, (SLOW, WELL))}
        for name, (text, counted) in states.items():
            family = GaugeMetricFamily(f"rpcsys_tracker_{name}_servers", text, labels=["key"])
            for key in islice(keys, MAX_KEYS + 1):
                family.add_metric([key], sum(judged[key, state] for state in counted))
            yield family

    def _gone(self) -> Metric:
        counts = Counter(gone.key for gone in self._records.gone_lately(self._now()).values())
        text = "Servers that have left within a week and are not back."
        family = GaugeMetricFamily("rpcsys_tracker_gone_servers", text, labels=["key"])
        for key in dict.fromkeys([*self._keys(), *counts]):
            family.add_metric([key], counts[key])
        return family


def _of_lab(counts: LabCounts) -> Iterator[Metric]:
    unauthorized = {(why,): counts.unauthorized[why] for why in UNAUTHORIZED}
    yield _counter("unauthorized", "Peers that were not let in, by why.", ["why"], unauthorized)
    handshakes = {(outcome,): counts.handshakes[outcome] for outcome in HANDSHAKES}
    yield _counter("handshakes", "TLS handshakes, by their outcome.", ["outcome"], handshakes)
    yield GaugeMetricFamily("rpcsys_tracker_tls_connections", "Open connections inside TLS.", counts.encrypted)


def _of_sites(counts: SiteCounts) -> Iterator[Metric]:
    family = GaugeMetricFamily("rpcsys_tracker_site_reached", "1 while a peer site can be reached.", labels=["site"])
    for site, reached in counts.reached.items():
        family.add_metric([site], reached)
    yield family
    lent, borrowed = ({(site,): each[site] for site in counts.reached} for each in (counts.lent, counts.borrowed))
    yield _counter("site_lent", "Leases of this site that a peer site's clients were granted.", ["site"], lent)
    yield _counter("site_borrowed", "Leases of a peer site that clients were granted.", ["site"], borrowed)


def _of_webhooks(receivers: Mapping[str, WebhookCounts]) -> Iterator[Metric]:
    ended = {(name, each): getattr(receivers[name], each) for name, each in product(receivers, WEBHOOK_OUTCOMES)}
    text = "Events for receivers of webhooks, by what has become of them."
    yield _counter("webhook_events", text, ["receiver", "outcome"], ended)
    text = "Events that wait for a receiver of webhooks."
    family = GaugeMetricFamily("rpcsys_tracker_webhook_waiting", text, labels=["receiver"])
    for name, counts in receivers.items():
        family.add_metric([name], counts.waiting)
    yield family


def _by_key(name: str, text: str, table: dict[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["key"])
    for key, histogram in table.items():
        family.add_metric([key], histogram.buckets(), histogram.sum)
    return family


def _counter(name: str, text: str, labels: Sequence[str], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"rpcsys_tracker_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
