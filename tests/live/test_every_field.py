"""Every field of every message with every kind of JSON value, to a real tracker, through a proxy, and to a server.

No daemon ends, grows or becomes slow: another client is served in its usual time.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rpcsys
from rpcsys.wire.control import FROM_TRACKER, TO_TRACKER
from tests.live.abandoning_client import session_frame
from tests.live.daemons import Daemon, Daemons, rss_mb, wait_until
from tests.live.probe import TRACKER_MAGIC, SessionProbe
from tests.live.simulated_peers import frame
from tests.live.test_random_messages import LIKELY, ODD
from tests.scripted_peers import ScriptedTracker

GROWTH_MB = 10.0
SLOW_S = 1.0  # for what takes a millisecond, on a busy machine
ROUNDS = 20
KEY = "good"
DEEP = json.loads("[" * 25 + "]" * 25)
VALUES = [*ODD, DEEP, [None] * 1000, {str(number): number for number in range(100)}, 2**53 + 1, -1, "\x1b[2J"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def usual(op: str) -> dict[str, Any]:
    """A plausible message."""
    fields = [name for name in TO_TRACKER[op].__dataclass_fields__ if name != "id"]
    known = {name: next(iter(LIKELY[name])) for name in fields if name in LIKELY}
    return {"op": op, "id": 1, **known}


def every_field() -> Iterator[dict[str, Any]]:
    """Plausible messages with one field changed to each value or removed, for each field of each message."""
    for op in TO_TRACKER:
        message = usual(op)
        for name in ("op", "id", *TO_TRACKER[op].__dataclass_fields__):
            for value in VALUES:
                yield {**message, name: value}
            yield {key: value for key, value in message.items() if key != name}


class Sender:
    """A connection to a tracker that reconnects when it is dropped, and reads all messages."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    def send(self, message: Any) -> None:
        for _ in range(2):
            try:
                if self._sock is None:
                    self._connect()
                self._sock.sendall(frame(message))
                with contextlib.suppress(BlockingIOError):
                    if not self._sock.recv(1 << 20, socket.MSG_DONTWAIT):
                        raise ConnectionResetError
                return
            except ConnectionError:
                self.close()

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _connect(self) -> None:
        self._sock = socket.create_connection(self._address, 30)
        hello = frame([1, {"op": "hello", "version": "0", "user": "sender"}])
        self._sock.sendall(struct.pack("<i", TRACKER_MAGIC) + hello)
        self._sock.recv(4, socket.MSG_WAITALL)


def turn_s(tracker: Daemon) -> float:
    """The median time in seconds of a lease with its session."""
    times = []
    with rpcsys.connect_tracker(tracker.where) as client:
        for _ in range(ROUNDS):
            began = time.monotonic()
            with client.request(KEY, wait_timeout=60) as session:
                times.append(time.monotonic() - began)
                assert session.get_function("testing.echo")(1) == 1
    return statistics.median(times)


@pytest.mark.parametrize("through", ["tracker", "proxy"])
def test_any_message_leaves_the_tracker_running(daemons: Daemons, through: str, record_property):
    tracker = daemons.tracker()
    server = daemons.server(KEY, "--preload", "none", "--tvm", "off", tracker=tracker)
    proxy = daemons.proxy("--tracker", tracker.where)
    mine = (tracker, proxy, server)
    before_s = turn_s(tracker)
    sender = Sender({"tracker": tracker, "proxy": proxy}[through].address)
    messages = [*every_field()]
    for message in messages[:200]:
        sender.send(message)
    before = {daemon.name: rss_mb([daemon.pid]) for daemon in mine}
    for message in messages:
        sender.send(message)
    after_s = turn_s(tracker)
    sender.close()
    record_property("a lease, ms", f"{before_s * 1e3:.1f} before, {after_s * 1e3:.1f} after {len(messages)}")
    assert after_s < before_s + SLOW_S
    for daemon in mine:
        assert daemon.running()
        assert rss_mb([daemon.pid]) - before[daemon.name] < GROWTH_MB
        assert "Traceback" not in daemon.stderr()


@pytest.fixture
def server(daemons: Daemons) -> Daemon:
    return daemons.server(KEY, "--preload", "none", "--tvm", "off", "--slots", "2")


FRAMES = {
    1: ("version", "limit_s"),
    2: ("f", "a", "k", "keep", "outputs", "encode"),
    8: ("size", "sha256"),
    10: ("ids",),
    11: ("reason",),
}
heads = st.sampled_from(sorted(FRAMES)).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.dictionaries(st.sampled_from(FRAMES[kind]), json_values | st.sampled_from(["testing.echo", [1]])),
    )
)


def test_any_frame_leaves_the_server_running(server: Daemon):
    def is_fine() -> None:
        with rpcsys.connect(*server.address, key=KEY) as session:
            assert session.get_function("testing.echo")(1) == 1

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(heads, min_size=1, max_size=8))
    def send(frames: list[tuple[int, dict[str, Any]]]) -> None:
        with SessionProbe(server.address, KEY, "-session=rpcsys/1") as session, contextlib.suppress(ConnectionError):
            session.socket.sendall(session_frame(1, 0, {"version": 1}))
            for number, (kind, head) in enumerate(frames, 1):
                session.socket.sendall(session_frame(kind, number, head))

    is_fine()
    before = rss_mb([server.pid])
    send()
    is_fine()
    assert server.running()
    assert rss_mb([server.pid]) - before < GROWTH_MB
    assert "Traceback" not in server.stderr()


TRUTH = {
    "taken": {"id": 1, "lease": "L", "epoch": 1, "matchkey": "x", "user": "u", "address": "a", "limit_s": 1.0},
    "limit": {"id": 1, "lease": "L", "epoch": 1, "limit_s": 1.0},
    "end": {"id": 1, "lease": "L", "epoch": 1, "reason": "released"},
    "drain": {"id": 1, "server": None},
    "admit": {"id": 1, "secret": "0" * 32, "what": "serve", "modules": ["m"], "member": "u", "until_s": 1.0},
    "unadmit": {"id": 1, "what": "serve", "modules": ["m"], "member": "u", "why": ""},
    "keepalive": {"id": 1},
    "": {"id": 1, "ok": True, "server": "s", "error": "", "message": ""},  # an answer
}
FALSE_S = 15.0
AT_ONCE = 8  # false messages per request: after one that ends the connection the others are not read


def false_messages() -> list[dict[str, Any]]:
    """Each message of a tracker to servers with one field changed to each value or removed, in random order."""
    found = []
    for op, truth in TRUTH.items():
        message = {"op": op, **truth} if op else truth
        for name in message:
            found += [{**message, name: value} for value in VALUES]
            found.append({key: value for key, value in message.items() if key != name})
    random.Random(1).shuffle(found)
    return found


def test_any_message_of_a_tracker_leaves_the_server_running(daemons: Daemons, record_property):
    assert set(TRUTH) == {*FROM_TRACKER, ""}
    unsent = false_messages()
    count = len(unsent)

    def says(asked: dict[str, Any]) -> list[Any]:
        truth = [{"id": asked["id"], "ok": True, "server": "s"}] if "op" in asked else []
        return [*truth, *(unsent.pop() for _ in range(min(AT_ONCE, len(unsent))))]

    with ScriptedTracker(says) as tracker:
        where = f"{tracker.address[0]}:{tracker.address[1]}"
        server = daemons.server(KEY, "--preload", "none", "--tvm", "off", "--tracker", where)
        wait_until(lambda: len(unsent) < count - 100, 60, "a hundred messages are sent")
        before = rss_mb([server.pid])
        end = time.monotonic() + FALSE_S
        while unsent and time.monotonic() < end:
            time.sleep(0.1)
        record_property("false messages", count - len(unsent))
        tracker.replies = lambda asked: [{"id": asked["id"], "ok": True, "server": "s"}] if "op" in asked else []
        offers = len([one for one in tracker.received if isinstance(one, list) and one[0] == 3])
        assert server.running()
        assert rss_mb([server.pid]) - before < GROWTH_MB
        assert "Traceback" not in server.stderr()
        assert offers
