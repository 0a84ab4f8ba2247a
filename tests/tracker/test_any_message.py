"""Every field of every message with every JSON value: the tracker's state gives an answer or a protocol error, in time,
and keeps nothing after the connections have ended.
"""

from __future__ import annotations

import dataclasses
import json
import time

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.tracker import events
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.message_cache import MessageCache
from rpcsys.tracker.records import TICKET_S
from rpcsys.tracker.restore import SETTLE_S
from rpcsys.tracker.state import TrackerState
from rpcsys.wire import control, outcomes, tracker

START = 1_700_000_000.0
STEP_S = 5.0
"""A step takes microseconds; even a search of all records takes this long only with millions of them."""

EDGES = st.sampled_from(
    [
        *(0, -1, 1, 2**31, 2**53 - 1, 2**53, 2**53 + 1, 2**63, 10**300, -(10**30), 1e308, -1e308, 5e-324, -0.0, 1e11),
        *(
            "",
            "rpi4",
            "board",
            "board-2",
            "run-1",
            "x" * 256,
            "x" * 257,
            "\u202e",
            "a\nb",
            "\x1b[2J",
            "rpi4:1",
            "rpi4:2",
        ),
        *(None, True, False, [], {}, [[]], {"": ""}, [1, 2], [None, 9090], {"lease": "L", "epoch": 2**53}),
    ]
)
VALUES = st.recursive(
    EDGES | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
GOOD = {
    "key": st.sampled_from(["rpi4", "other"]),
    "name": st.just("board"),
    "server": st.sampled_from(["board", "board-2"]),
    "user": st.just("ann"),
    "lease": st.sampled_from(["L1", "L2"]),
    "epoch": st.sampled_from([1, int(START * 1000), 2**53]),
    "outcome": st.sampled_from(outcomes.OUTCOMES),
    "count": st.integers(1, 3),
    "slots": st.integers(1, 4),
    "labels": st.dictionaries(
        st.sampled_from(["os", "rev"]), st.sampled_from(["linux", ">=1", "2", "<1.22,!=2", ">", "=1.*"]), max_size=2
    ),
    "running": st.lists(
        st.fixed_dictionaries({"lease": st.sampled_from(["L1", "L2"]), "epoch": st.integers(0, 2**53)}), max_size=2
    ),
    "wait_for_key": st.booleans(),
    "address": st.just(["10.0.0.8", 1]),
    "proxy": st.just([None, 9090]),
}
KINDS = (*control.TO_TRACKER.values(), control.Via, control.Answer)


@st.composite
def ours(draw):
    """One of our messages, with mostly valid fields and some of any value."""
    kind = draw(st.sampled_from(KINDS))
    message = {"op": kind.op} if kind.op else {"ok": draw(st.booleans())}
    for part in dataclasses.fields(kind):
        how = draw(st.sampled_from(["good", "good", "good", "any", "none"]))
        if how == "any":
            message[part.name] = draw(VALUES)
        elif part.name == "id":
            message["id"] = draw(st.integers(0, 5))
        elif how == "good" and part.name in GOOD:
            message[part.name] = draw(GOOD[part.name])
    return message


HELLO = st.builds(lambda user: [1, {"op": "hello", "version": "0", "user": user}], VALUES)
PUT = st.builds(lambda key, number: [3, key, [9090, f"{key}:{number}"], None], GOOD["key"], st.integers(0, 9))
TVMS = st.builds(lambda code, rest: [code, *rest], st.integers(-1, 8), st.lists(VALUES, max_size=4)) | PUT | HELLO
SAID = st.tuples(st.integers(1, 3), ours() | TVMS | VALUES)


class Tracker:
    """A state that gets frames; later messages name the leases that it grants."""

    def __init__(self) -> None:
        self.now, self.state, self.cache = START, TrackerState(events.TrackerStarted(START, "run")), MessageCache()
        self.apply(events.Restored(START, ()))
        self.wait(60)

    def apply(self, event) -> None:
        began = time.process_time()
        actions = self.state.apply(event)
        assert time.process_time() - began < STEP_S
        for action in actions:
            if isinstance(action, events.Send):
                tracker.encode(action.message, 3 << 20)  # raises for what is no JSON
            elif isinstance(action, events.Close):
                self.apply(events.Disconnected(self.now, action.conn))

    def hear(self, conn: int, value) -> None:
        self.now += 0.01
        if conn not in self.state.records.peers:
            self.apply(events.Connected(self.now, conn, f"10.0.0.{conn}" if conn > 1 else "127.0.0.1", "10.0.0.1"))
        try:
            message = self.cache.read(json.dumps(value).encode())
        except ProtocolError:
            return
        if not isinstance(message, (control.History, control.Usage)):
            self.apply(events.Received(self.now, conn, message))

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(10_000):
            due = self.state.next_deadline
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.apply(events.TimePassed(self.now))
        else:
            raise AssertionError("time does not pass")
        self.now = end


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(SAID, max_size=25))
@example([(1, [3, "rpi4", [9090, "rpi4:1"], None]), (2, [4, "rpi4", "", 1])]).via("a lease of no duration")
def test_any_message_is_answered_and_leaves_nothing(said):
    lab = Tracker()
    for conn, value in said:
        lab.hear(conn, value)
    assert lab.state.records.epoch < 2**53 - 2**52
    for conn in list(lab.state.records.peers):
        lab.apply(events.Disconnected(lab.now, conn))
    lab.wait(AWAY_S + TICKET_S + SETTLE_S + 10)
    records = lab.state.records
    names = ("peers", "queues", "waiting", "leases", "server_names", "places")
    left = {name: getattr(records, name) for name in (*names, "tickets", "identities", "by_fact", "heirs")}
    assert not {name: what for name, what in left.items() if what}
    assert all(share.base for share in records.shares.users.values()), "users who have had nothing are forgotten"
    empty = (records.memory.bytes, records.places.bytes, records.subqueues.all, records.free_offers.by_fact)
    assert empty == (0, 0, {}, {})


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(SAID, max_size=25))
def test_other_peers_are_served_as_before(said):
    """A server and a client that connected before, and send valid messages."""
    lab = Tracker()
    board, client = 101, 102
    lab.hear(board, {"op": "register", "id": 1, "key": "good", "name": "good", "port": 9090, "identity": "1f2e"})
    for conn, value in said:
        lab.hear(conn, value)
    lab.hear(board, [3, "good", [9090, "good:1"], None])
    lab.hear(client, [1, {"op": "hello", "version": "0", "user": "good"}])
    lab.hear(client, {"op": "request", "id": 1, "key": "good", "priority": 1e308})
    lease = next(lease for lease in lab.state.records.leases.values() if lease.user == "good")
    assert lease.epoch <= int(lab.now * 1000) + 86_400_001
    assert lab.state.records.peers[board].name == "good"
