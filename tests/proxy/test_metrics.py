"""The proxy's metrics."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from rpcsys.daemon.relay import BUFFER, BufferPool, Pair, Relay
from rpcsys.daemon.sockets import Sockets
from rpcsys.proxy.config import ProxyConfig
from rpcsys.proxy.events import StreamOpened
from rpcsys.proxy.metrics import LINK, MAX_KEYS, OTHER, SESSION, ProxyMetrics
from rpcsys.proxy.state import ProxyState
from tests.live.daemons import free_port, wait_until
from tests.proxy.streams import Stream, joined


def collected(metrics: ProxyMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


def value(metrics: ProxyMetrics, name: str, **labels: str) -> float | None:
    return collected(metrics).get_sample_value(f"rpcsys_proxy_{name}", labels)


def test_moved_bytes_are_counted_during_and_after_a_pair() -> None:
    async def main() -> None:
        relay = Relay(Sockets())
        pairs: dict[Pair, str] = {}
        metrics = ProxyMetrics(ProxyState(ProxyConfig()), (), pairs, relay.pool)

        def ended(pair: Pair) -> None:
            metrics.ended(pairs.pop(pair), pair)

        for kind, data in ((SESSION, b"twelve bytes"), (LINK, b"four")):
            (left, inner_left), (right, inner_right) = socket.socketpair(), socket.socketpair()
            inner_left.setblocking(False)
            inner_right.setblocking(False)
            pair = Pair(relay, inner_left, inner_right, ended)
            pairs[pair] = kind
            pair.start()
            left.sendall(data)
            await asyncio.sleep(0.1)
            for end in (left, right):
                end.close()
        assert value(metrics, "bytes_total", kind=SESSION) == 12
        await asyncio.sleep(0.1)
        assert not pairs
        assert value(metrics, "bytes_total", kind=SESSION) == 12
        assert value(metrics, "bytes_total", kind=LINK) == 4
        assert value(metrics, "pairs", kind=SESSION) == 0
        relay.sockets.close()

    asyncio.run(main())


@pytest.fixture
def metrics() -> ProxyMetrics:
    state = ProxyState(ProxyConfig())
    for conn in range(3):
        state.apply(StreamOpened(0.0, conn, "10.0.0.7", "server", "k", server="7"))
    pool = BufferPool()
    pool.keep(0, BUFFER)
    return ProxyMetrics(state, ["one opening"], {}, pool)


def test_waiting_streams_are_counted_by_role_and_key(metrics: ProxyMetrics) -> None:
    assert value(metrics, "waiting", role="server", key="k") == 3
    assert value(metrics, "strangers") == 1
    assert value(metrics, "buffers_kept") == 1
    assert value(metrics, "tracker_up") is None


def test_every_metric_has_values_before_anything_happens() -> None:
    idle = ProxyMetrics(ProxyState(ProxyConfig()), (), {}, BufferPool())
    assert value(idle, "waiting", role="server", key=OTHER) == value(idle, "waiting", role="client", key=OTHER) == 0
    assert value(idle, "pairings_total", key=OTHER) == 0
    for answer in ("duplicate", "mismatch", "closed"):
        assert value(idle, "streams_refused_total", answer=answer) == 0


def test_the_number_of_keys_is_bounded(metrics: ProxyMetrics) -> None:
    for number in range(MAX_KEYS + 3):
        metrics.joined(str(number))
    metrics.joined("0")
    assert len(metrics._joined) == MAX_KEYS + 1
    assert (metrics._joined["0"], metrics._joined[OTHER]) == (2, 3)


@pytest.mark.live
def test_the_pages_show_health_and_metrics(daemons) -> None:
    port = free_port()
    proxy = daemons.proxy("--http-port", str(port), "--log-format", "json")
    client, server = joined(proxy, "a:b")
    client.socket.sendall(bytes(1000))
    server.read(1000)
    parked = Stream(proxy.address, "server:c")
    assert fetch(port, "/healthz") == "ok\n"
    wait_until(lambda: 'rpcsys_proxy_waiting{key="c",role="server"} 1.0' in fetch(port, "/metrics"), 5, "c waits")
    page = fetch(port, "/metrics")
    for line in (
        'rpcsys_proxy_pairings_total{key="a:b"} 1.0',
        'rpcsys_proxy_bytes_total{kind="session"} 1000.0',
        'rpcsys_proxy_pairs{kind="session"} 1.0',
        "rpcsys_proxy_streams_total 3.0",
    ):
        assert line in page
    client.close()
    server.close()
    wait_until(lambda: 'rpcsys_proxy_pairs{kind="session"} 0.0' in fetch(port, "/metrics"), 5, "the pair is over")
    assert 'rpcsys_proxy_bytes_total{kind="session"} 1000.0' in fetch(port, "/metrics")
    wait_until(lambda: '"joined"' in proxy.stderr(), 5, "the log")
    lines = [json.loads(line) for line in proxy.stderr().splitlines()]
    (line,) = [line for line in lines if line.get("event") == "joined"]
    assert line["key"] == "a:b"
    parked.close()


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        return reply.read().decode()
