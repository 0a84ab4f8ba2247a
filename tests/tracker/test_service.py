"""A tracker as a process, with valid and invalid peers over sockets."""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time

import psutil
import pytest

from rpcsys.client import connect_tracker
from rpcsys.wire.labels import MAX_LABELS
from tests.live.daemons import ROOT, free_port, queue, rss_mb, wait_until
from tests.live.probe import TrackerProbe

pytestmark = pytest.mark.live

HELLO = [1, {"op": "hello", "version": "0", "user": "ann"}]


def raw(value):
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


def run_tracker(*flags, **popen):
    return subprocess.run(
        [sys.executable, "-m", "rpcsys.tracker", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **popen,
    )


def connections(tracker):
    """Established connections of the tracker's process."""
    found = psutil.Process(tracker.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


# --- start and end -----------------------------------------------------------------------------


def test_a_certificate_that_cannot_be_used_is_one_sentence(tmp_path):
    (tmp_path / "page.pem").write_text("no certificate")
    for file, problem in (("absent", "cannot read absent: No such file"), ("page.pem", "are no certificate with")):
        # At one address: at another one, a test's clients may have the same port.
        ports = ("--host", "127.0.0.1", "--port", "0", "--http-port", str(free_port()))
        done = run_tracker(*ports, "--http-cert", file, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert problem in line


def test_it_prints_a_ready_line_and_ends_on_a_signal(daemons):
    for number in (signal.SIGTERM, signal.SIGINT):
        tracker = daemons.tracker()
        assert tracker.ready["ready"] == "tracker"
        assert tracker.ready["pid"] == tracker.pid
        assert (tracker.ready["http_port"], tracker.ready["web_port"]) == (None, None)
        with TrackerProbe(tracker.address) as probe:
            assert probe.ask([1]) == 0
            tracker.process.send_signal(number)
            assert probe.ended()
        assert tracker.process.wait(15) == 0
        assert tracker.stdout_path.read_text().count("\n") == 1
        assert "Traceback" not in tracker.stderr()


def test_silent_logs_warnings_and_errors_only(daemons):
    tracker = daemons.tracker("--silent")
    tracker.terminate()
    assert tracker.stderr() == ""


@pytest.mark.parametrize(
    "flags",
    [
        ["--port", "x"],
        ["--port", "70000"],
        ["--nonsense"],
        ["extra"],
        ["--port", "9500", "--port-end", "9500"],
        ["--state-dir", "/dev/null/x", "--port", "0"],
        ["--history-days", "0"],
        ["--log-format", "xml"],
        ["--host", "203.0.113.1", "--port", "0"],
    ],
)
def test_bad_flags_are_one_line_and_status_2(flags):
    done = run_tracker(*flags)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("python3 -m rpcsys.tracker: error: ")
    assert done.stderr.count("\n") == 1


def test_a_full_range_is_one_line_and_status_3(tracker):
    port = tracker.address[1]
    done = run_tracker("--host", "127.0.0.1", "--port", str(port), "--port-end", str(port + 1))
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"[{port}, {port + 1})" in done.stderr


def test_the_stop_message_ends_the_tracker(daemons, tracker, connect):
    assert connect().ask([2, ""]) == -1
    stoppable = daemons.tracker("--stop-key", "sesame")
    with TrackerProbe(stoppable.address) as probe:
        assert probe.ask([2, "wrong"]) == -1
        assert probe.ask([2, "sesame"]) == 0
        assert probe.ended()
    assert stoppable.process.wait(15) == 0
    assert tracker.running()


WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
from rpcsys.tracker.__main__ import main
sys.exit(main(["--host", "127.0.0.1", "--port", "0"]))
"""


def test_it_serves_without_uvloop(daemons):
    tracker = daemons.launch("tracker", [sys.executable, "-c", WITHOUT_UVLOOP])
    tracker.await_ready_line()
    throw(tracker.address, random.Random(5), 200)
    with TrackerProbe(tracker.address) as probe:
        probe.socket.sendall(raw([1]) * 5000)
        assert [probe.receive() for _ in range(5000)] == [0] * 5000
    assert tracker.terminate() == 0
    assert "Traceback" not in tracker.stderr()


# --- frames over real sockets ------------------------------------------------------------------


def test_split_and_joined_frames_are_read(connect):
    server, client = connect(), connect()
    offer = raw([5, {"key": "server:rpi4", "addr": [None, "9090"]}]) + raw([3, "rpi4", ["9090", "rpi4:1"], None])
    for byte in offer:
        server.socket.sendall(bytes([byte]))
    assert [server.receive(), server.receive()] == [0, 0]
    client.socket.sendall(raw([1]) + raw([4, "rpi4", "", 1]) + raw([1]) + raw([6])[:3])
    client.socket.sendall(raw([6])[3:])
    assert client.receive() == 0
    assert client.receive() == [0, ["127.0.0.1", 9090, "rpi4:1"]]
    assert client.receive() == 0
    assert client.receive()[1]["queue_info"] == {"rpi4": {"free": 0, "pending": 0}}


def test_the_magic_and_requests_may_come_in_one_write(tracker):
    with socket.create_connection(tracker.address, timeout=30) as sock:
        sock.sendall(struct.pack("<i", 0x2F271) + raw([1]) * 1000)
        wanted = struct.pack("<i", 0x2F271) + raw(0) * 1000
        got = b""
        while len(got) < len(wanted):
            piece = sock.recv(65536)
            assert piece
            got += piece
        assert got == wanted


def test_tvm_style_writes_get_their_replies_without_delay(connect):
    """Two small writes with Nagle on: 40 ms each if the tracker delayed its acknowledgement."""
    client = connect()
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    frame = raw([1])
    before = time.monotonic()
    for _ in range(200):
        client.socket.sendall(frame[:4])
        client.socket.sendall(frame[4:])
        assert client.receive() == 0
    assert time.monotonic() - before < 4  # delayed: 8 s and more


def test_a_lease_of_our_client_and_server_from_request_to_end(connect):
    server, client = connect(), connect()
    assert server.ask(HELLO)["tracker"] == "rpcsys"
    assert client.ask(HELLO)["ok"]
    asked = {"op": "register", "id": 1, "key": "rpi4", "name": "board", "port": 9090, "slots": 2}
    assert server.ask(asked) == {"id": 1, "ok": True, "server": "board"}
    assert client.ask({"op": "request", "id": 1, "key": "rpi4"})["event"] == "queued"
    server.send([3, "rpi4", [9090, "rpi4:1"], None])
    assert server.receive() == 0
    taken = server.receive()
    assert (taken["op"], taken["user"], taken["address"]) == ("taken", "ann", "127.0.0.1")
    (lease,) = client.receive()["leases"]
    assert (lease["matchkey"], lease["server"]) == ("rpi4:1", "board")
    client.close()
    assert server.receive()["op"] == "end"


def test_timers_run_without_messages(connect):
    client = connect()
    client.ask(HELLO)
    assert client.ask({"op": "request", "id": 1, "key": "k", "wait_for_key": True, "wait_timeout": 0.2})["event"]
    assert client.receive()["error"] == "WaitTimeout"


def test_invalid_objects_and_requests_are_refused_and_other_invalid_lists_end_the_connection(connect):
    client = connect()
    client.ask(HELLO)
    assert client.ask({"op": "request", "id": 5})["error"] == "BadRequest"
    assert client.ask([1]) == 0
    for key in ("a b", "a\u202eb", "a\x9b2J"):
        code, reason = client.ask([4, key, "", 1])
        assert code == -1
        assert ascii(key) in reason
    assert client.ask([1]) == 0
    assert client.ask([3, "a\u200bb", [9, "k:1"], None]) == -1
    assert client.ended()


# --- peers that die ----------------------------------------------------------------------------

WAITER = """
import sys
from tests.live.probe import TrackerProbe
probe = TrackerProbe(("127.0.0.1", int(sys.argv[1])))
for frame in ([4, "rpi4", "", 1], [4, "gpu", "", 1], [1]):
    probe.send(frame)
assert probe.receive() == 0
print("waiting", flush=True)
probe.receive()
"""


def test_the_request_of_a_killed_client_leaves_the_queue(tracker, connect):
    waiter = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(tracker.address[1])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert waiter.stdout.readline() == "waiting\n"
    assert queue(tracker, "rpi4") == {"free": 0, "pending": 1}
    waiter.kill()
    waiter.wait(15)
    viewer = connect()
    wait_until(lambda: viewer.summary()["queue_info"] == {}, 5, "the summary is empty")
    server = connect()
    server.ask([3, "rpi4", [9090, "rpi4:1"], None])
    assert viewer.ask([4, "rpi4", "", 1]) == [0, ["127.0.0.1", 9090, "rpi4:1"]]


def test_a_reset_connection_loses_its_offers(tracker, connect):
    server = connect()
    server.ask([3, "rpi4", [9090, "rpi4:1"], None])
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.close()
    wait_until(lambda: queue(tracker, "rpi4") == {"free": 0, "pending": 0}, 5, "the offer is gone")


# --- peers that mean no good -------------------------------------------------------------------


@pytest.mark.slow
def test_an_incomplete_frame_ends_the_connection_within_10_s(tracker, connect):
    silent = [socket.create_connection(tracker.address, timeout=30) for _ in range(3)]
    silent[1].sendall(b"\x71")
    silent[2].sendall(struct.pack("<i", 0x2F271) + struct.pack("<i", 100) + b"[")
    idle = connect()
    before = time.monotonic()
    assert silent[2].recv(4) == struct.pack("<i", 0x2F271)
    for sock in silent:
        try:
            assert sock.recv(1) == b""
        except ConnectionResetError:
            pass
        sock.close()
    assert time.monotonic() - before < 12
    assert idle.ask([1]) == 0


def garbage(rng):
    """Random bytes, partly in the protocol's form."""
    size = rng.randrange(1, 3000)
    noise = rng.randbytes(size)
    magic = struct.pack("<i", 0x2F271)
    return rng.choice(
        [
            noise,
            magic + noise,
            magic + struct.pack("<i", size) + noise,
            magic + struct.pack("<i", 2**31 - 1) + noise,
            magic + raw([rng.randrange(-3, 12)] + [rng.randrange(9)] * rng.randrange(5)),
            magic + raw({"op": rng.choice(["request", "register", "summary", 5]), "id": rng.randrange(3)}),
            magic + struct.pack("<i", 1000) + b"[" * 1000,
            magic + struct.pack("<i", 5000) + b"9" * 5000,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01" + noise,
        ]
    )


def throw(address, rng, count):
    for _ in range(count):
        with socket.create_connection(address, timeout=30) as sock:
            try:
                sock.sendall(garbage(rng))
                if rng.random() < 0.3:
                    sock.settimeout(0.005)
                    sock.recv(100)
            except OSError:
                pass


def test_random_bytes_neither_end_the_tracker_nor_take_memory(tracker, connect):
    rng = random.Random(7)
    throw(tracker.address, rng, 500)
    wait_until(lambda: connections(tracker) == 0, 15, "everybody is gone")
    before = rss_mb([tracker.pid])
    throw(tracker.address, rng, 2000)
    wait_until(lambda: connections(tracker) == 0, 15, "everybody is gone")
    assert rss_mb([tracker.pid]) - before < 4
    assert connect().ask([1]) == 0
    assert connect().summary() == {"queue_info": {}, "server_info": []}
    assert "Traceback" not in tracker.stderr()


@pytest.mark.slow
def test_a_client_that_never_reads_is_dropped_and_costs_bounded_memory(tracker, connect):
    """The replies to its requests would fill gigabytes."""
    servers = connect()
    for number in range(2000):
        servers.send([3, f"key-{number}", [9090, f"key-{number}:1"], None])
    for _ in range(2000):
        assert servers.receive() == 0
    before = rss_mb([tracker.pid])
    deaf = connect()
    deaf.socket.settimeout(0.2)
    frames = raw([6]) * 1000
    peak = 0.0

    def dropped():
        nonlocal peak
        peak = max(peak, rss_mb([tracker.pid]))
        try:
            deaf.socket.sendall(frames)
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    wait_until(dropped, 40, "the deaf client is dropped")
    assert peak - before < 40
    assert servers.ask([1]) == 0


def test_a_flood_of_frames_does_not_delay_other_connections(tracker, connect):
    flooder, other = connect(), connect()
    flooder.socket.setblocking(False)
    frames = raw([1]) * 20_000
    end = time.monotonic() + 1
    slowest = 0.0
    while time.monotonic() < end:
        try:
            flooder.socket.send(frames)
            flooder.socket.recv(1 << 20)
        except BlockingIOError:
            pass
        before = time.monotonic()
        assert other.ask([1]) == 0
        slowest = max(slowest, time.monotonic() - before)
    assert slowest < 1


def test_without_descriptors_it_neither_ends_nor_spins(daemons, descriptors):
    command = [sys.executable, "-m", "rpcsys.tracker", "--host", "127.0.0.1", "--port", "0"]
    limited = daemons.launch("tracker", ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *command])
    limited.await_ready_line()
    first = TrackerProbe(limited.address)
    crowd = [socket.create_connection(limited.address, timeout=30) for _ in range(100)]
    wait_until(lambda: "cannot accept connections" in limited.stderr(), 15, "it says so")
    process = psutil.Process(limited.pid)
    used = sum(process.cpu_times()[:2])
    time.sleep(2)
    assert sum(process.cpu_times()[:2]) - used < 0.5
    assert first.ask([1]) == 0
    for sock in crowd:
        sock.close()
    with TrackerProbe(limited.address) as probe:
        assert probe.ask([1]) == 0
    assert "Traceback" not in limited.stderr()
    first.close()


def test_an_http_port_that_is_taken_is_one_line_and_status_3(tracker):
    done = run_tracker("--host", "127.0.0.1", "--port", "0", "--http-port", str(tracker.address[1]))
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


# --- a very large lab --------------------------------------------------------------------------


def test_a_summary_longer_than_a_frame_is_received_whole(tracker, connect):
    """Our client reads pages; TVM's client reads one text of any length."""
    servers = [connect() for _ in range(16)]
    labels = {str(number): "x" * 256 for number in range(MAX_LABELS)}
    for number, server in enumerate(servers):
        server.ask(HELLO)
        register = {"op": "register", "id": 1, "key": f"{'k' * 250}{number}", "name": f"board-{number}"}
        assert server.ask({**register, "port": 9000 + number, "slots": 256, "labels": labels})["ok"]
    rows = 16 * 256
    with connect_tracker(tracker.address) as viewer:
        summary = viewer.summary()
    assert len(json.dumps(summary)) > 1 << 20
    assert (len(summary["server_info"]), len(summary["servers"]), len(summary["queue_info"])) == (rows, 16, 16)
    assert {server["name"]: server["labels"] for server in summary["servers"]} == {
        f"board-{number}": labels for number in range(16)
    }
    code, shown = connect().ask([6])
    assert (code, len(shown["server_info"])) == (0, rows)
    assert len(json.dumps(shown)) > 1 << 20
    rpc = pytest.importorskip("tvm.rpc")
    assert len(rpc.connect_tracker(*tracker.address).summary()["server_info"]) == rows
