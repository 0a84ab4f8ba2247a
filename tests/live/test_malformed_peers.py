"""Peers that are silent, stopped, too many, or send random bytes: daemons live, do not grow, and serve others."""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest

from tests.live.daemons import Daemon, queue, rss_mb, wait_until
from tests.live.fault_lab import KEY, FaultLab
from tests.live.probe import MISMATCH, SESSION_MAGIC, TRACKER_MAGIC, Probe, SessionProbe, TrackerProbe, opening

SEED = 20_260_101
DROPPED_S = 10.0
LATE_S = 2.0  # the test's tolerance


@pytest.fixture
def lab(fault_lab: FaultLab) -> FaultLab:
    return fault_lab.start(slots=2)


ours_only = pytest.mark.parametrize("kind", ["rpcsys"], indirect=True)


# --- silence -----------------------------------------------------------------------------------

HALF_OPENINGS = {
    "server": {
        "nothing": b"",
        "half a magic": struct.pack("<i", SESSION_MAGIC)[:2],
        "no length": struct.pack("<i", SESSION_MAGIC),
        "half a key": opening(KEY)[:-2],
    },
    "tracker": {"nothing": b"", "half a magic": struct.pack("<i", TRACKER_MAGIC)[:2]},
}


@pytest.mark.slow
@ours_only
def test_half_a_handshake_is_dropped(lab: FaultLab, record_property):
    """All of them at once, and one that sends a byte per second."""
    daemons = {"server": lab.server, "tracker": lab.tracker}
    took: dict[str, float] = {}

    def silent(name: str, daemon: Daemon, start: bytes) -> None:
        with Probe(daemon.address, timeout_s=DROPPED_S + LATE_S) as probe:
            began = time.monotonic()
            probe.socket.sendall(start)
            took[name] = time.monotonic() - began if probe.ended() else float("inf")

    threads = [
        threading.Thread(target=silent, args=(f"{who}: {what}", daemons[who], start))
        for who, openings in HALF_OPENINGS.items()
        for what, start in openings.items()
    ]
    threads.append(threading.Thread(target=_trickle, args=(lab.server, took)))
    for thread in threads:
        thread.start()
    lab.still_serves()
    for thread in threads:
        thread.join()
    assert len(took) == len(threads)
    record_property("dropped after, s", {name: round(each, 1) for name, each in took.items()})
    assert {name: each for name, each in took.items() if each > DROPPED_S + LATE_S} == {}


def _trickle(server: Daemon, took: dict[str, float]) -> None:
    with Probe(server.address, timeout_s=1.0) as probe:
        began = time.monotonic()
        for byte in opening("k" * 100)[: int(DROPPED_S + LATE_S) + 1]:
            try:
                probe.socket.sendall(bytes([byte]))
            except ConnectionError:
                break
            if probe.ended():
                break
        took["server: a byte a second"] = time.monotonic() - began


# --- random bytes ------------------------------------------------------------------------------

BATCH = 200
GROWTH_MB = 4.0
Noise = Callable[[random.Random], bytes]


def frame(value: object) -> bytes:
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


def some_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 4096))


def some_length(rng: random.Random) -> bytes:
    lengths = [-1, -(2**31), 2**31 - 1, 2**30, 2**20 + 1, 2**20, rng.randrange(4096)]
    return struct.pack("<i", rng.choice(lengths))


def some_json(rng: random.Random, depth: int = 0) -> object:
    leaves = [None, True, -1, 2**70, 1.5, "", "server:board", "a b,[c]", "\u0000", KEY]
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(leaves)
    if rng.random() < 0.5:
        return [some_json(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {str(rng.choice(leaves)): some_json(rng, depth + 1) for _ in range(rng.randrange(5))}


def some_message(rng: random.Random) -> object:
    """A message with an existing code or op and wrong fields."""
    if rng.random() < 0.3:
        return some_json(rng)
    if rng.random() < 0.5:
        return [rng.randrange(-1, 9), *(some_json(rng) for _ in range(rng.randrange(4)))]
    ops = ["hello", "request", "cancel", "register", "release", "lease_started", "lease_ended"]
    fields = ["key", "lease", "epoch", "slots", "count", "priority", "running", "labels", "request"]
    message = {name: some_json(rng) for name in rng.sample(fields, 4)}
    return {"op": rng.choice([*ops, "summary", "taken", ""]), "id": some_json(rng, 4), **message}


def _tracker(noise: Noise) -> Noise:
    return lambda rng: struct.pack("<i", TRACKER_MAGIC) + noise(rng)


def _session(noise: Noise) -> Noise:
    return lambda rng: struct.pack("<i", SESSION_MAGIC) + noise(rng)


NOISES: list[Noise] = [
    some_bytes,
    _tracker(some_bytes),
    _tracker(lambda rng: some_length(rng) + some_bytes(rng)),
    _tracker(lambda rng: b"".join(frame(some_message(rng)) for _ in range(8))),
    _tracker(lambda rng: frame([1, {"op": "hello"}]) + frame(some_message(rng)) * 4),
    _tracker(lambda rng: frame(None)[:4] + b"[" * 2000),
    _tracker(lambda rng: frame([6])[:4] + b"[6]" + struct.pack("<i", 100_000) + b"[" * 100_000),
    _session(some_bytes),
    _session(lambda rng: some_length(rng) + some_bytes(rng)),
    lambda rng: opening(rng.choice([KEY, "", "\u00e4", "x" * 5000]), "-timeout=nan -session=\x00"),
]


def make_noise(daemon: Daemon, rng: random.Random, count: int) -> None:
    """``count`` connections that send a few kB each; some are closed, some are reset."""
    for number in range(count):
        with Probe(daemon.address) as probe:
            abrupt = rng.random() < 0.5
            if abrupt:
                linger = struct.pack("ii", 1, 0)
                probe.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            try:
                probe.socket.sendall(NOISES[number % len(NOISES)](rng))
                if not abrupt:
                    probe.socket.shutdown(socket.SHUT_WR)
                    assert probe.ended(), f"noise {number % len(NOISES)} keeps its connection"
            except TimeoutError:
                raise
            except OSError:
                pass  # the peer closed it before all was sent


@ours_only
@pytest.mark.parametrize("which", ["tracker", "server"])
def test_random_bytes_do_no_harm(lab: FaultLab, which: str, record_property):
    daemon: Daemon = getattr(lab, which)
    rng = random.Random(SEED)
    make_noise(daemon, rng, BATCH)  # warm-up: imports, pools and caches allocate their memory
    lasting = settled(lab, daemon)
    before = rss_mb(lasting)
    make_noise(daemon, rng, 2 * BATCH)
    assert settled(lab, daemon) == lasting
    growth = rss_mb(lasting) - before
    record_property("grown by, MB", round(growth, 2))
    assert growth < GROWTH_MB
    with TrackerProbe(lab.tracker.address) as probe:
        summary = probe.summary()
    served = {key: row for key, row in summary["queue_info"].items() if row != {"free": 0, "pending": 0}}
    assert served == {KEY: {"free": 2, "pending": 0}}
    assert {row["key"] for row in summary["server_info"]} == {f"server:{KEY}"}
    assert "Traceback" not in daemon.stderr()
    lab.still_serves()


def test_random_bytes_in_a_session_reach_only_its_process(lab: FaultLab, record_property):
    """Sent after a handshake with a valid match key."""
    rng = random.Random(SEED)
    option = "-session=rpcsys/1" if lab.kind == "rpcsys" else ""
    rounds = 16 if lab.kind == "rpcsys" else 6

    def noisy_sessions(count: int) -> None:
        for _ in range(count):
            with TrackerProbe(
                lab.tracker.address
            ) as tracker:  # closing it would end the lease until the session is open
                _, port, matchkey = tracker.lease(KEY)
                with SessionProbe(("127.0.0.1", port), matchkey, option) as session:
                    assert session.code == SESSION_MAGIC
                    try:
                        for _ in range(4):
                            session.socket.sendall(rng.choice([some_bytes, session_frame])(rng))
                    except ConnectionError:
                        pass  # the peer closed it before all was sent

    noisy_sessions(rounds)
    lab.free(2)
    lasting = settled(lab, lab.server)
    before = rss_mb(lasting)
    noisy_sessions(rounds)
    lab.free(2)
    assert settled(lab, lab.server) == lasting
    growth = rss_mb(lasting) - before
    record_property("grown by, MB", round(growth, 2))
    assert growth < GROWTH_MB
    lab.still_serves()


@ours_only
def test_a_match_key_serves_once(lab: FaultLab):
    """A changed match key is refused, and so is the plain key of a server with a tracker."""
    with TrackerProbe(lab.tracker.address) as tracker:
        host, port, matchkey = tracker.lease(KEY)
        with SessionProbe((host, port), matchkey, "-session=rpcsys/1") as session:
            assert session.code == SESSION_MAGIC
            for wrong in (matchkey, matchkey[:-1], matchkey + "0", KEY, ""):
                with SessionProbe((host, port), wrong, "-session=rpcsys/1") as another:
                    assert another.code == MISMATCH, wrong
    lab.free(2)


def session_frame(rng: random.Random) -> bytes:
    """The header and the head of an rpcsys/1 frame with wrong sizes."""
    head = json.dumps(some_json(rng)).encode()
    size = rng.choice([len(head), 2**32 - 1, 0, 2**24])
    body = rng.choice([0, 2**63, 2**40, 10])
    kind, flags = rng.randrange(16), rng.choice([0, 1, 255])
    header = struct.pack("<IBBHIIQ", size, kind, flags, 0, 0, rng.getrandbits(32), body)
    return header + head


def settled(lab: FaultLab, daemon: Daemon) -> list[int]:
    """The processes of a daemon that outlive sessions, once all slots are free again."""
    lab.free(2)
    if daemon is lab.tracker:
        return [daemon.pid]
    return [daemon.pid, *(child.pid for child in daemon.children())]


# --- descriptors -------------------------------------------------------------------------------


@pytest.fixture
def hold() -> Iterator[Callable[[Daemon, int], list[socket.socket]]]:
    """Opens idle connections to a daemon, also those that stay in its listen queue."""
    held: list[socket.socket] = []

    def connect(daemon: Daemon, count: int) -> list[socket.socket]:
        for _ in range(count):
            idle = socket.socket()
            idle.setblocking(False)
            idle.connect_ex(daemon.address)
            held.append(idle)
        return held

    yield connect
    for idle in held:
        idle.close()


@ours_only
@pytest.mark.parametrize("which", ["tracker", "server"])
def test_a_daemon_without_descriptors_keeps_its_sessions(lab: FaultLab, which: str, hold, record_property):
    """Running sessions go on, the daemon does not busy-wait, and it serves again when descriptors are free."""
    daemon: Daemon = getattr(lab, which)
    client = lab.client().leased()
    process = psutil.Process(daemon.pid)
    limit = process.num_fds() + 16
    _, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (limit, hard))
    idle = hold(daemon, 64)
    wait_until(lambda: process.num_fds() >= limit - 4, 5, f"{which} has no descriptors left")
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    assert client.call("pid")["value"] == client.session_pid
    wait_until(lambda: time.monotonic() > began + 1.5, 3, "1.5 s have passed")
    load = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    record_property("share of a core while full", round(load, 2))
    assert load < 0.5
    assert client.call("pid")["value"] == client.session_pid
    for each in idle:
        each.close()
    client.close()
    lab.free(2, 20)
    lab.still_serves()
    assert daemon.running()
    assert "Traceback" not in daemon.stderr()


# --- stopped -----------------------------------------------------------------------------------

LARGE_BYTES = 200_000_000


@ours_only
def test_a_client_stopped_inside_a_large_result_delays_no_other(lab: FaultLab):
    stopped, other = lab.client().leased(), lab.client().leased()
    stopped.send("bytes", LARGE_BYTES)
    answering = partial(rss_mb, [stopped.session_pid])
    wait_until(lambda: answering() > LARGE_BYTES / 1e6, 10, "the result is there", every_s=0.001)
    stopped.stop()
    assert other.call("pid", deadline_s=5)["value"] == other.session_pid
    other.close()
    lab.still_serves()
    stopped.resume()
    assert stopped.read()["value"] == LARGE_BYTES


@pytest.mark.slow
def test_a_client_stopped_in_the_queue_delays_no_other(lab: FaultLab, record_property):
    """A device that it does not use within some seconds is leased to the next client."""
    holders = [lab.client().leased(), lab.client().leased()]
    stopped = lab.client()
    lab.pending(1)
    behind = lab.client()
    lab.pending(2)
    stopped.stop()
    began = time.monotonic()
    holders[0].close()
    behind.leased(deadline_s=30)
    record_property("the next one is served after, s", round(time.monotonic() - began, 1))
    assert stopped.silent()
    holders[1].close()
    stopped.resume()
    stopped.leased()
    assert queue(lab.tracker, KEY)["pending"] == 0
