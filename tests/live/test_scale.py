"""A tracker with thousands of peers: each lease once, quick replies, and the same state after kills."""

import json
import resource
import statistics
import time
import urllib.request

import psutil
import pytest

from rpcsys.client import connect_tracker
from tests.live.daemons import free_port, rss_mb, wait_until
from tests.live.probe import TrackerProbe
from tests.live.simulated_peers import Client, Server, SimulatedPeers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MANY = 2000
KEYS = 20  # the queue of each key fits into one reply of `why`
BACK_S = 10.0
#: In the median, and at worst. The goal is 50 ms; a busy machine needs more.
ANSWER_S, SLOWEST_S = 1.0, 5.0


@pytest.fixture(autouse=True)
def descriptors():
    """Allow this process and its tracker enough sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * MANY:
        pytest.skip(f"at most {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * MANY), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answers(tracker, viewer, times=10):
    """The median and the slowest reply of each kind in seconds, by the tracker's protocol and by HTTP."""
    taken: dict[str, list[float]] = {}
    for _ in range(times):
        for what in ("summary", "/api/summary", "/api/lab", "/metrics"):
            before = time.monotonic()
            if what == "summary":
                viewer.summary()
            else:
                url = f"http://127.0.0.1:{tracker.ready['http_port']}{what}"
                with urllib.request.urlopen(url, timeout=30) as reply:
                    reply.read()
            taken.setdefault(what, []).append(time.monotonic() - before)
    return {what: (statistics.median(times), max(times)) for what, times in taken.items()}


def order(tracker):
    """The users that wait for each key, in order."""
    with TrackerProbe(tracker.address) as probe:
        probe.ask([1, {"op": "hello", "version": "0"}])
        told = [probe.ask({"op": "why", "id": number, "key": f"k{number}"}) for number in range(KEYS)]
    return [
        [one["user"] for one in row["why"]["queue"]] if "why" in row else [one["user"] for one in row["queue"]]
        for row in told
    ]


def test_two_thousand_servers_and_clients_survive_three_kills(daemons, tmp_path):
    http = str(free_port())
    flags = ("--state-dir", str(tmp_path / "state"), "--http-port", http)
    tracker = daemons.tracker(*flags)
    port = tracker.address[1]
    peers = SimulatedPeers(tracker.address, seed=1)
    servers = [Server(f"s{number}", f"k{number % KEYS}") for number in range(MANY)]
    clients = [Client(f"u{number}", f"k{number % KEYS}") for number in range(MANY)]
    peers.add([*servers, *clients])
    peers.start()
    try:
        wait_until(lambda: all(server.registered for server in servers), 120, "all servers registered")
        wait_until(lambda: all(client.queued for client in clients), 120, "all clients wait")
        figures = [answers(tracker, connect_tracker(tracker.address))]
        served = 0
        for turn in range(3):
            # Some clients get a device; the tracker is killed before it has stored that.
            some = servers[turn * 200 : (turn + 1) * 200]
            peers.call(lambda some=some: [server.offer() for server in some])
            served += len(some)
            wait_until(lambda served=served: sum(len(c.leases) for c in clients) == served, 60, "leases")
            wait_until(lambda some=some: all(server.lease for server in some), 60, "sessions")
            waiting = order(tracker)
            tracker.kill()
            for peer in peers.peers:
                if isinstance(peer, Server):
                    peer.registered = False
            for client in clients:
                client.queued = client.gone
            began = time.monotonic()
            tracker = daemons.tracker(*flags, port=port)
            wait_until(lambda: all(server.registered for server in servers), 60, "all servers are back")
            wait_until(lambda: all(c.queued or c.gone for c in clients), 60, "all clients are back")
            with connect_tracker(tracker.address) as viewer:
                wait_until(lambda served=served: len(viewer.summary()["leases"]) == served, 60, "all leases")
                back_s = time.monotonic() - began
                figures.append(answers(tracker, viewer))
            print(f"all back {back_s:.1f} s after the tracker was started again")
            assert order(tracker) == waiting
            assert back_s < BACK_S
        peers.call(lambda: [server.offer() for server in servers if server.lease is None])
        wait_until(lambda: all(client.leases for client in clients), 60, "all clients have a device")
    finally:
        peers.stop()
    print(json.dumps(figures, indent=1))
    given = [lease["matchkey"] for client in clients for lease in client.leases]
    assert len(given) == len(set(given)) == MANY
    assert sorted(given) == sorted(key for server in servers for key in server.taken)
    assert all(len(server.taken) == 1 for server in servers)
    assert not any(client.refused for client in clients)
    assert all(usual < ANSWER_S and worst < SLOWEST_S for taken in figures for usual, worst in taken.values())
    assert "Traceback" not in tracker.stderr()


def test_an_idle_connection_costs_less_than_6_kb(daemons):
    """In a fresh process; the kernel's memory for a socket does not count."""
    tracker = daemons.tracker()
    warm = [TrackerProbe(tracker.address) for _ in range(500)]
    before = rss_mb([tracker.pid])
    idle = [TrackerProbe(tracker.address) for _ in range(MANY)]
    for probe in idle:
        assert probe.ask([1]) == 0
    wait_until(lambda: len(psutil.Process(tracker.pid).net_connections("tcp")) > MANY, 30, "all are connected")
    each_kb = (rss_mb([tracker.pid]) - before) * 1000 / MANY
    print(f"{each_kb:.2f} kB for each idle connection")
    assert each_kb < 6
    for probe in (*warm, *idle):
        probe.close()
