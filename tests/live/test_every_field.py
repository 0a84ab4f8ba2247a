"""Every field of every message with every kind of JSON value, to a real tracker, through a proxy, and to a server.

No daemon ends, grows or slows: beside them, a good client is served in its usual time.
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
from tests.liars import LyingTracker
from tests.live.daemons import Daemon, Daemons, rss_mb, wait_until
from tests.live.leaver import session_frame
from tests.live.probe import TRACKER_MAGIC, SessionProbe
from tests.live.swarm import frame
from tests.live.test_random_messages import LIKELY, ODD

GROWTH_MB = 10.0
SLOW_S = 1.0  # for what takes a millisecond, on a machine that does other things too
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
    """A message as it might be meant."""
    fields = [name for name in TO_TRACKER[op].__dataclass_fields__ if name != "id"]
    known = {name: next(iter(LIKELY[name])) for name in fields if name in LIKELY}
    return {"op": op, "id": 1, **known}


def every_field() -> Iterator[dict[str, Any]]:
    """Each field of each message with each value, the others as they might be meant; and without it."""
    for op in TO_TRACKER:
        said = usual(op)
        for name in ("op", "id", *TO_TRACKER[op].__dataclass_fields__):
            for value in VALUES:
                yield {**said, name: value}
            yield {key: value for key, value in said.items() if key != name}


class Stranger:
    """A connection to a tracker that comes again whenever it is dropped, and reads what it is sent."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sock: socket.socket | None = None

    def say(self, message: Any) -> None:
        for _ in range(2):
            try:
                if self._sock is None:
                    self._come()
                self._sock.sendall(frame(message))
                with contextlib.suppress(BlockingIOError):
                    if not self._sock.recv(1 << 20, socket.MSG_DONTWAIT):
                        raise ConnectionResetError
                return
            except ConnectionError:
                self.leave()

    def leave(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def _come(self) -> None:
        self._sock = socket.create_connection(self._address, 30)
        hello = frame([1, {"op": "hello", "version": "0", "user": "stranger"}])
        self._sock.sendall(struct.pack("<i", TRACKER_MAGIC) + hello)
        self._sock.recv(4, socket.MSG_WAITALL)


def turn_s(tracker: Daemon) -> float:
    """The median time of an allocation, with its session, by a good client."""
    times = []
    with rpcsys.connect_tracker(tracker.where) as client:
        for _ in range(ROUNDS):
            began = time.monotonic()
            with client.request(KEY, wait_timeout=60) as session:
                times.append(time.monotonic() - began)
                assert session.get_function("testing.echo")(1) == 1
    return statistics.median(times)


@pytest.mark.parametrize("through", ["tracker", "proxy"])
def test_messages_to_the_tracker(daemons: Daemons, through: str, record_property):
    tracker = daemons.tracker()
    server = daemons.server(KEY, "--preload", "none", "--tvm", "off", tracker=tracker)
    proxy = daemons.proxy("--tracker", tracker.where)
    mine = (tracker, proxy, server)
    before_s = turn_s(tracker)
    stranger = Stranger({"tracker": tracker, "proxy": proxy}[through].address)
    messages = [*every_field()]
    for message in messages[:200]:
        stranger.say(message)
    before = {daemon.name: rss_mb([daemon.pid]) for daemon in mine}
    for message in messages:
        stranger.say(message)
    after_s = turn_s(tracker)
    stranger.leave()
    record_property("an allocation, ms", f"{before_s * 1e3:.1f} before, {after_s * 1e3:.1f} after {len(messages)}")
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


def test_frames_of_sessions(server: Daemon):
    def is_fine() -> None:
        with rpcsys.connect(*server.address, key=KEY) as session:
            assert session.get_function("testing.echo")(1) == 1

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(heads, min_size=1, max_size=8))
    def said(frames: list[tuple[int, dict[str, Any]]]) -> None:
        with SessionProbe(server.address, KEY, "-session=rpcsys/1") as session, contextlib.suppress(ConnectionError):
            session.socket.sendall(session_frame(1, 0, {"version": 1}))
            for number, (kind, head) in enumerate(frames, 1):
                session.socket.sendall(session_frame(kind, number, head))

    is_fine()
    before = rss_mb([server.pid])
    said()
    is_fine()
    assert server.running()
    assert rss_mb([server.pid]) - before < GROWTH_MB
    assert "Traceback" not in server.stderr()


TRUTH = {
    "taken": {"id": 1, "lease": "L", "epoch": 1, "matchkey": "x", "user": "u", "address": "a", "limit_s": 1.0},
    "limit": {"id": 1, "lease": "L", "epoch": 1, "limit_s": 1.0},
    "end": {"id": 1, "lease": "L", "epoch": 1, "reason": "released"},
    "drain": {"id": 1, "server": None},
    "keepalive": {"id": 1},
    "": {"id": 1, "ok": True, "server": "s", "error": "", "message": ""},  # an answer
}
LIES_S = 15.0
AT_ONCE = 8  # lies for each question: what follows one that ends the connection is not read


def every_lie() -> list[dict[str, Any]]:
    """Each field of what a tracker says to servers with each value, in an order of chance."""
    found = []
    for op, truth in TRUTH.items():
        said = {"op": op, **truth} if op else truth
        for name in said:
            found += [{**said, name: value} for value in VALUES]
            found.append({key: value for key, value in said.items() if key != name})
    random.Random(1).shuffle(found)
    return found


def test_what_a_lying_tracker_says_to_a_server(daemons: Daemons, record_property):
    assert set(TRUTH) == {*FROM_TRACKER, ""}
    untold = every_lie()
    told = len(untold)

    def says(asked: dict[str, Any]) -> list[Any]:
        truth = [{"id": asked["id"], "ok": True, "server": "s"}] if "op" in asked else []
        return [*truth, *(untold.pop() for _ in range(min(AT_ONCE, len(untold))))]

    with LyingTracker(says) as tracker:
        where = f"{tracker.address[0]}:{tracker.address[1]}"
        server = daemons.server(KEY, "--preload", "none", "--tvm", "off", "--tracker", where)
        wait_until(lambda: len(untold) < told - 100, 60, "a hundred lies are told")
        before = rss_mb([server.pid])
        end = time.monotonic() + LIES_S
        while untold and time.monotonic() < end:
            time.sleep(0.1)
        record_property("lies told", told - len(untold))
        tracker.says = lambda asked: [{"id": asked["id"], "ok": True, "server": "s"}] if "op" in asked else []
        offers = len([one for one in tracker.heard if isinstance(one, list) and one[0] == 3])
        assert server.running()
        assert rss_mb([server.pid]) - before < GROWTH_MB
        assert "Traceback" not in server.stderr()
        assert offers
