"""A proxy as a process, met over sockets by peers of every manner."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from tests.live.daemons import ROOT, free_port, rss_mb, wait_until
from tests.live.probe import TRACKER_MAGIC, Probe, TrackerProbe
from tests.proxy.streams import DUPLICATE, MISMATCH, Stream, gone, joined, met, opening

pytestmark = pytest.mark.live

HELLO = [1, {"op": "hello", "version": "0"}]


def frame(value) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


def run_proxy(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "rpcsys.proxy", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# --- start and end -----------------------------------------------------------------------------


def test_the_ready_line_and_the_end(daemons) -> None:
    ports = [free_port(), free_port()]
    for number in (signal.SIGTERM, signal.SIGINT):
        proxy = daemons.proxy("--web-port", str(ports[0]), "--http-port", str(ports[1]))
        assert proxy.ready["ready"] == "proxy"
        assert (proxy.ready["web_port"], proxy.ready["http_port"]) == tuple(ports)
        assert proxy.ready["pid"] == proxy.pid
        waiting = Stream(proxy.address, "server:k")
        proxy.process.send_signal(number)
        assert proxy.process.wait(10) == 0
        gone(waiting, 5)
        assert proxy.stdout_path.read_text().count("\n") == 1
    assert daemons.proxy().ready["web_port"] is None


def test_no_port_is_one_line_and_status_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_proxy("--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1))
    assert done.returncode == 3
    assert done.stderr.startswith("rpcsys-proxy: error: no free port")
    assert done.stderr.count("\n") == 1


def test_sessions_have_the_grace_to_end(proxy) -> None:
    client, server = joined(proxy)
    parked = Stream(proxy.address, "server:other")
    proxy.process.terminate()
    gone(parked, 5)
    wait_until(lambda: not accepts(proxy), 5, "the port is closed")
    client.socket.sendall(b"still here")
    assert server.read(10) == b"still here"
    client.close()
    assert server.ended()
    server.close()
    assert proxy.process.wait(3) == 0


def accepts(proxy) -> bool:
    try:
        socket.create_connection(proxy.address).close()
    except OSError:
        return False
    return True


def test_when_the_grace_is_over_sessions_are_cut(daemons) -> None:
    proxy = daemons.proxy("--grace", "0.5")
    client, server = joined(proxy)
    started = time.monotonic()
    proxy.process.terminate()
    gone(client, 10)
    gone(server, 10)
    assert time.monotonic() - started >= 0.5
    assert proxy.process.wait(5) == 0


def test_a_proxy_of_a_chain_that_stops_waits_for_sessions_only(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where, "--grace", "20")
    parked = Stream(inner.address, "server:parked")
    server, client = Stream(inner.address, "server:k"), Stream(outer.address, "client:k")
    met(server)
    met(client)
    inner.process.terminate()
    gone(parked, 10)
    client.socket.sendall(b"on")
    assert server.read(2) == b"on"
    server.close()
    client.close()
    assert inner.process.wait(10) == 0


def test_a_second_signal_waits_for_nobody(daemons) -> None:
    proxy = daemons.proxy("--grace", "1000")
    client, _server = joined(proxy)
    proxy.process.terminate()
    wait_until(lambda: "stopping" in proxy.stderr(), 5, "it stops")
    proxy.process.terminate()
    gone(client, 10)
    assert proxy.process.wait(5) == 0


# --- pairs -------------------------------------------------------------------------------------


def test_greetings_are_passed_on_word_for_word(proxy) -> None:
    """TVM's server reads its time limit there."""
    server = Stream(proxy.address, "server:a:b -server=7 -new=1")
    client = Stream(proxy.address, "client:a:b -timeout=2.50 what is this")
    assert server.answer() == "client:a:b -timeout=2.50 what is this"
    assert client.answer() == "server:a:b -server=7 -new=1"


@pytest.mark.parametrize("first", ["client", "server"])
def test_bytes_behind_a_greeting_are_not_lost(proxy, first) -> None:
    """Neither those sent with it, nor those sent while nobody is there to read them."""
    second = {"client": "server", "server": "client"}[first]
    eager = Stream(proxy.address, f"{first}:k", more=b"at once,")
    wait_until(lambda: waiting(proxy), 5, "it waits")
    blob = bytes(range(256)) * 4000
    eager.socket.sendall(b"later," + blob)
    late = Stream(proxy.address, f"{second}:k", more=b"too")
    met(late)
    met(eager)
    assert late.read(14 + len(blob)) == b"at once,later," + blob
    assert eager.read(3) == b"too"


def waiting(proxy) -> int:
    """Streams the proxy has taken."""
    found = psutil.Process(proxy.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


def test_the_end_of_one_direction_leaves_the_other_open(proxy) -> None:
    client, server = joined(proxy)
    client.socket.sendall(b"question")
    client.socket.shutdown(socket.SHUT_WR)
    assert server.read(8) == b"question"
    assert server.socket.recv(1) == b""
    server.socket.sendall(b"answer")
    assert client.read(6) == b"answer"
    server.close()
    assert client.ended()
    wait_until(lambda: not waiting(proxy), 5, "both are closed")


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_stream_that_breaks_breaks_the_other(proxy, who) -> None:
    client, server = joined(proxy)
    broken, other = (client, server) if who == "client" else (server, client)
    broken.socket.sendall(b"last words")
    broken.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert other.read(10) == b"last words"
    broken.close()
    assert gone(other, 10) < 2
    other.close()
    wait_until(lambda: not waiting(proxy), 10, "both are closed")


def test_a_client_that_vanishes_ends_a_server_that_takes_nothing(proxy) -> None:
    """It computes and reads nothing; what its client sent before it died stands in between."""
    client, server = joined(proxy)
    client.socket.setblocking(False)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            client.socket.send(bytes(1 << 20))
        except BlockingIOError:
            time.sleep(0.02)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    wait_until(lambda: not waiting(proxy), 15, "both are closed")
    gone(server, 5)


def test_who_waits_and_leaves_is_forgotten(proxy) -> None:
    Stream(proxy.address, "server:k").close()
    wait_until(lambda: not waiting(proxy), 5, "it is gone")
    client = Stream(proxy.address, "client:k")
    client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        client.answer()
    server = Stream(proxy.address, "server:k")
    met(client)
    met(server)


def test_a_duplicate_and_a_mismatch_have_their_codes(daemons) -> None:
    proxy = daemons.proxy("--timeout-client", "0.5", "--timeout-server", "1")
    server = Stream(proxy.address, "server:k")
    assert Stream(proxy.address, "server:k").answer() == DUPLICATE
    assert Stream(proxy.address, "client:nobody").answer() == MISMATCH
    assert server.answer() == MISMATCH


def test_limits(daemons) -> None:
    proxy = daemons.proxy("--max-waiting-per-address", "2")
    parked = [Stream(proxy.address, f"server:{number}") for number in range(2)]
    wait_until(lambda: waiting(proxy) == 2, 5, "both wait")
    gone(Stream(proxy.address, "server:more"), 5)
    wait_until(lambda: "--max-waiting-per-address" in proxy.stderr(), 5, "the log says why")
    met(Stream(proxy.address, "client:1"))
    met(parked[1])


# --- strangers ---------------------------------------------------------------------------------

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"\x00",
    struct.pack("<ii", 0xFF271, -1),
    struct.pack("<ii", 0xFF271, 1 << 30),
    opening("peer:k"),
    struct.pack("<ii", 0xFF271, 9) + b"client:\xff\xff",
    opening("client:k -timeout=soon"),
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_ends_its_own_connection_at_once(proxy, data) -> None:
    with Probe(proxy.address) as stranger:
        stranger.socket.sendall(data)
        gone(stranger, 5)
    joined(proxy)
    assert "Traceback" not in proxy.stderr()


@pytest.mark.slow
def test_half_an_opening_is_dropped_within_10_s(proxy) -> None:
    started = time.monotonic()
    halves = [Probe(proxy.address) for _ in range(6)]
    for number, half in enumerate(halves):
        half.socket.sendall(opening("client:k")[: 3 * number])
    for half in halves:
        gone(half, 12)
    assert 7 < time.monotonic() - started < 11


def test_openings_come_in_any_pieces(proxy) -> None:
    server = Stream(proxy.address, "server:k")
    with Probe(proxy.address) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in opening("client:k"):
            client.socket.sendall(bytes([byte]))
            time.sleep(0.002)
        met(server)


def test_without_descriptors_the_proxy_waits_for_some(daemons) -> None:
    """And those it has serve on."""
    proxy = daemons.launch("small", ["bash", "-c", f"ulimit -n 40; exec {sys.executable} -m rpcsys.proxy --port 0"])
    proxy.await_ready_line()
    client, server = joined(proxy)
    crowd = [socket.create_connection(proxy.address) for _ in range(60)]
    wait_until(lambda: "cannot accept" in proxy.stderr(), 10, "it says so")
    client.socket.sendall(b"on")
    assert server.read(2) == b"on"
    for one in crowd:
        one.close()
    joined(proxy, "again")
    assert "Traceback" not in proxy.stderr()


def test_many_strangers_leave_nothing(proxy) -> None:
    def crowd(count: int) -> None:
        for number in range(count):
            with Probe(proxy.address) as one:
                one.socket.sendall(GARBAGE[number % len(GARBAGE)])
        for number in range(count // 4):
            for stream in joined(proxy, str(number % 50)):
                stream.close()
        wait_until(lambda: not waiting(proxy), 10, "all are gone")

    crowd(200)
    before = rss_mb([proxy.pid])
    crowd(800)
    assert rss_mb([proxy.pid]) - before < 4


# --- figures -----------------------------------------------------------------------------------


def test_figures_and_health(daemons) -> None:
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
    (told,) = [line for line in lines if line.get("event") == "joined"]
    assert told["key"] == "a:b"
    parked.close()


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        return reply.read().decode()


# --- links to the tracker ----------------------------------------------------------------------


class ToldTracker:
    """Takes connections and shows what they say; ``hello`` is its answer to a hello. Keeps them open."""

    def __init__(self, hello) -> None:
        self.hello = hello
        self.taken: list[Probe] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def greeted(self) -> Probe:
        """The next connection, past the magic."""
        probe = Probe.__new__(Probe)
        probe.socket, _ = self.listener.accept()
        probe.socket.settimeout(20)
        self.taken.append(probe)
        assert probe.read_int() == TRACKER_MAGIC
        probe.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        return probe

    def introduce(self, proxy) -> None:
        """Take the proxy's own connection, and wait until it knows whom it has before it."""
        probe = self.greeted()
        assert read_frame(probe)[0] == 1
        probe.socket.sendall(frame(self.hello))
        wait_until(lambda: "registered" in proxy.stderr(), 10, "the proxy knows its tracker")

    def close(self) -> None:
        for one in (*self.taken, self.listener):
            one.close()


def read_frame(probe: Probe):
    return json.loads(probe.read(probe.read_int()))


@pytest.fixture
def ours():
    with_hello = ToldTracker({"ok": True, "tracker": "rpcsys"})
    yield with_hello
    with_hello.close()


@pytest.fixture
def theirs():
    without = ToldTracker(0)
    yield without
    without.close()


def test_a_link_is_relayed_marked_with_where_it_is_from(daemons, ours) -> None:
    proxy = daemons.proxy("--tracker", ours.where, "--custom-addr", "lab.example")
    ours.introduce(proxy)
    link = Probe(proxy.address)
    link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
    told = ours.greeted()
    me = list(link.socket.getsockname())
    assert read_frame(told) == {"op": "via", "address": me, "proxy": ["lab.example", proxy.address[1]]}
    assert read_frame(told) == HELLO
    assert link.read_int() == TRACKER_MAGIC
    told.socket.sendall(frame({"ok": True}))
    assert read_frame(link) == {"ok": True}
    proxy.process.terminate()  # a link does not keep it
    assert link.ended()
    assert proxy.process.wait(5) == 0


def test_a_chain_marks_a_link_once_for_each_proxy(daemons, ours) -> None:
    outer = daemons.proxy("--tracker", ours.where)
    ours.introduce(outer)
    inner = daemons.proxy("--next", outer.where)
    link = Probe(inner.address)
    link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
    told = ours.greeted()
    first, second = read_frame(told), read_frame(told)
    assert first["proxy"] == [None, outer.address[1]]
    assert second["address"] == list(link.socket.getsockname())
    assert second["proxy"] == [None, inner.address[1]]
    assert read_frame(told) == HELLO


def test_streams_of_a_chain_meet_at_its_end(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where)
    server = Stream(inner.address, "server:k", more=b"early")
    client = Stream(outer.address, "client:k")
    assert client.answer() == "server:k"
    assert server.answer() == "client:k"
    assert client.read(5) == b"early"
    server.close()
    assert client.ended()
    wait_until(lambda: not waiting(inner), 5, "the chain is empty")


def test_links_and_chains_have_limits(daemons) -> None:
    outer = daemons.proxy()
    inner = daemons.proxy("--next", outer.where, "--max-waiting-per-address", "1")
    first = Stream(inner.address, "server:k")
    wait_until(lambda: waiting(inner) == 2, 10, "the first is relayed")
    gone(Stream(inner.address, "server:l"), 10)
    first.close()
    wait_until(lambda: not waiting(inner), 10, "the first is gone")
    server = Stream(inner.address, "server:l")
    met(Stream(outer.address, "client:l"))
    met(server)


def test_a_chain_whose_next_is_gone_hangs_up(daemons) -> None:
    proxy = daemons.proxy("--next", f"127.0.0.1:{free_port()}")
    gone(Stream(proxy.address, "server:k"), 10)
    wait_until(lambda: "cannot relay" in proxy.stderr(), 5, "the log says why")


@pytest.mark.parametrize("tracker", ["none", "theirs"])
def test_where_there_is_no_tracker_of_ours_a_link_is_told_so(daemons, theirs, tracker) -> None:
    proxy = daemons.proxy(*(() if tracker == "none" else ("--tracker", theirs.where)))
    if tracker == "theirs":
        theirs.introduce(proxy)
    with Probe(proxy.address) as link:
        link.socket.sendall(struct.pack("<i", TRACKER_MAGIC) + frame(HELLO))
        assert link.read_int() == TRACKER_MAGIC
        told = read_frame(link)
        assert (told["ok"], told["error"]) == (False, "NoControlLink")
        assert link.ended()


def test_a_link_while_the_tracker_is_away_is_hung_up(daemons) -> None:
    """Not refused: it may be ours."""
    proxy = daemons.proxy("--tracker", f"127.0.0.1:{free_port()}")
    with Probe(proxy.address) as link:
        link.socket.sendall(struct.pack("<i", TRACKER_MAGIC))
        assert link.ended()


def test_a_server_that_dies_is_no_longer_free(daemons) -> None:
    """TVM's protocol cannot take an offer back; the proxy begins anew."""
    tracker = daemons.tracker()
    proxy = daemons.proxy("--tracker", tracker.where)
    parked = [Stream(proxy.address, "server:k") for _ in range(2)]
    wait_until(lambda: free(tracker, "k") == 2, 10, "both are free")
    parked[0].close()
    wait_until(lambda: free(tracker, "k") == 1, 10, "one is free")
    _host, port, match_key = lease(tracker, "k")
    assert port == proxy.address[1]
    client = Stream(proxy.address, f"client:{match_key}")
    assert client.answer() == "server:k"
    met(parked[1])


def free(tracker, key: str) -> int:
    with TrackerProbe(tracker.address) as probe:
        return probe.summary()["queue_info"].get(key, {"free": 0})["free"]


def lease(tracker, key: str):
    with TrackerProbe(tracker.address) as probe:
        return probe.lease(key)


def test_the_tracker_is_found_again(daemons) -> None:
    port = free_port()
    tracker = daemons.tracker(port=port)
    proxy = daemons.proxy("--tracker", tracker.where)
    parked = [Stream(proxy.address, "server:k")]
    wait_until(lambda: free(tracker, "k") == 1, 10, "it is free")
    tracker.kill()
    parked.append(Stream(proxy.address, "server:k"))
    again = daemons.tracker(port=port)
    wait_until(lambda: free(again, "k") == 2, 30, "both are free")
    assert proxy.running()
    assert len(parked) == 2
