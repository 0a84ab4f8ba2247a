"""A proxy as a process, with correct, dead and hostile peers over sockets."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from tests.live.daemons import ROOT, free_port, rss_mb, wait_until
from tests.live.probe import Probe, TrackerProbe
from tests.proxy.streams import DUPLICATE, MISMATCH, Stream, gone, joined, met, opening, streams_of

pytestmark = pytest.mark.live


def run_proxy(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "rpcsys.proxy", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# --- start and end -----------------------------------------------------------------------------


def test_the_ready_line_is_printed_and_a_signal_stops_the_proxy(daemons) -> None:
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


def test_without_a_free_port_it_prints_one_line_and_exits_with_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_proxy("--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1))
    assert done.returncode == 3
    assert done.stderr.startswith("python3 -m rpcsys.proxy: error: no free port")
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


def test_sessions_are_closed_after_the_grace(daemons) -> None:
    proxy = daemons.proxy("--grace", "0.5")
    client, server = joined(proxy)
    started = time.monotonic()
    proxy.process.terminate()
    gone(client, 10)
    gone(server, 10)
    assert time.monotonic() - started >= 0.5
    assert proxy.process.wait(5) == 0


def test_a_second_signal_ends_sessions_at_once(daemons) -> None:
    proxy = daemons.proxy("--grace", "1000")
    client, _server = joined(proxy)
    proxy.process.terminate()
    wait_until(lambda: "stopping" in proxy.stderr(), 5, "it stops")
    proxy.process.terminate()
    gone(client, 10)
    assert proxy.process.wait(5) == 0


# --- pairs -------------------------------------------------------------------------------------


def test_greetings_are_passed_on_unchanged(proxy) -> None:
    """TVM's server reads its time limit from them."""
    server = Stream(proxy.address, "server:a:b -server=7 -new=1")
    client = Stream(proxy.address, "client:a:b -timeout=2.50 what is this")
    assert server.answer() == "client:a:b -timeout=2.50 what is this"
    assert client.answer() == "server:a:b -server=7 -new=1"


@pytest.mark.parametrize("first", ["client", "server"])
def test_bytes_after_a_greeting_arrive(proxy, first) -> None:
    """Both bytes sent with the greeting, and bytes sent while the stream waits."""
    second = {"client": "server", "server": "client"}[first]
    eager = Stream(proxy.address, f"{first}:k", more=b"at once,")
    wait_until(lambda: streams_of(proxy), 5, "it waits")
    blob = bytes(range(256)) * 4000
    eager.socket.sendall(b"later," + blob)
    late = Stream(proxy.address, f"{second}:k", more=b"too")
    met(late)
    met(eager)
    assert late.read(14 + len(blob)) == b"at once,later," + blob
    assert eager.read(3) == b"too"


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
    wait_until(lambda: not streams_of(proxy), 5, "both are closed")


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
    wait_until(lambda: not streams_of(proxy), 10, "both are closed")


def test_a_dead_client_ends_the_stream_of_a_server_that_does_not_read(proxy) -> None:
    """It computes and reads nothing; the bytes that its client sent before its death are still unread."""
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
    wait_until(lambda: not streams_of(proxy), 15, "both are closed")
    gone(server, 5)


def test_a_waiting_stream_that_ends_is_removed(proxy) -> None:
    Stream(proxy.address, "server:k").close()
    wait_until(lambda: not streams_of(proxy), 5, "it is gone")
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
    assert Stream(proxy.address, "client:unknown").answer() == MISMATCH
    assert server.answer() == MISMATCH


def test_waiting_streams_are_limited_by_address(daemons) -> None:
    proxy = daemons.proxy("--max-waiting-per-address", "2")
    parked = [Stream(proxy.address, f"server:{number}") for number in range(2)]
    wait_until(lambda: streams_of(proxy) == 2, 5, "both wait")
    gone(Stream(proxy.address, "server:more"), 5)
    wait_until(lambda: "--max-waiting-per-address" in proxy.stderr(), 5, "the reason is logged")
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
def test_an_invalid_opening_ends_its_own_connection_at_once(proxy, data) -> None:
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


def test_an_opening_may_arrive_in_any_pieces(proxy) -> None:
    server = Stream(proxy.address, "server:k")
    with Probe(proxy.address) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in opening("client:k"):
            client.socket.sendall(bytes([byte]))
            time.sleep(0.002)
        met(server)


def test_without_descriptors_accepting_pauses(daemons) -> None:
    """Joined streams continue."""
    proxy = daemons.launch("small", ["bash", "-c", f"ulimit -n 40; exec {sys.executable} -m rpcsys.proxy --port 0"])
    proxy.await_ready_line()
    client, server = joined(proxy)
    crowd = [socket.create_connection(proxy.address) for _ in range(60)]
    wait_until(lambda: "cannot accept" in proxy.stderr(), 10, "it is logged")
    client.socket.sendall(b"on")
    assert server.read(2) == b"on"
    for one in crowd:
        one.close()
    joined(proxy, "again")
    assert "Traceback" not in proxy.stderr()


def test_many_invalid_openings_leave_no_memory(proxy) -> None:
    def crowd(count: int) -> None:
        for number in range(count):
            with Probe(proxy.address) as one:
                one.socket.sendall(GARBAGE[number % len(GARBAGE)])
        for number in range(count // 4):
            for stream in joined(proxy, str(number % 50)):
                stream.close()
        wait_until(lambda: not streams_of(proxy), 10, "all are gone")

    crowd(200)
    before = rss_mb([proxy.pid])
    crowd(800)
    assert rss_mb([proxy.pid]) - before < 4


# --- with a tracker --------------------------------------------------------------------------------


def test_a_server_that_dies_is_no_longer_free(daemons) -> None:
    """TVM's protocol has no withdrawal: the proxy connects again."""
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


def test_a_restarted_tracker_gets_all_offers(daemons) -> None:
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
