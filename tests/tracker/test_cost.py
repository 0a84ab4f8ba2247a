"""What the state's operations cost in a lab of 10,000 boards, and of 100: at most twice as much."""

import gc
import itertools
import statistics
import time

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.requests import TOLD_AT_ONCE
from rpcsys.tracker.state import State
from rpcsys.wire import control, tracker
from tests.tracker.transcripts import START

SMALL, LARGE = 100, 10_000
ROUNDS, STEPS = 15, 100


class Bench:
    """A lab of so many boards of one key, all leased, and as many requests waiting, of 200 users."""

    def __init__(self, boards: int) -> None:
        self.now = START
        self.state = State(events.Started(START, "run", None))
        self.boards, self.count = boards, 0
        self.leases: dict[str, dict] = {}
        self.running: list[dict] = []
        for conn in range(1, boards + 1):
            self.happens(events.Connected(START, conn, "10.0.0.8", "10.0.0.1"))
            labels = {"rev": str(conn % 3), "name": f"b{conn}"}
            self.say(conn, control.Register(1, "key", f"b{conn}", 1, 9090, None, labels, (".onnx",)))
            self.put(conn)
        self.users = [boards + 1 + number for number in range(200)]
        for conn in self.users:
            self.happens(events.Connected(START, conn, "10.0.0.5", "10.0.0.1"))
            self.say(conn, tracker.Ping(control.Hello("0", (), f"user{conn}")))
        for _ in range(2 * boards):
            self.request()
        assert len(self.running) == boards

    def happens(self, event):
        self.now += 0.001
        for action in self.state.apply(event):
            message = action.message if type(action) is events.Send else None
            if type(message) is dict and message.get("op") == "taken":
                self.running.append({**message, "conn": action.conn})

    def say(self, conn, message):
        self.happens(events.Received(self.now, conn, message))

    def put(self, conn):
        self.count += 1
        self.say(conn, tracker.Put("key", 9090, f"key:{self.count}"))

    def request(self, **fields):
        self.count += 1
        conn = self.users[self.count % 200]
        fields = {"key": "key", "priority": self.count % 3, **fields}
        self.say(conn, control.Request(self.count, **fields))
        return conn, self.count

    # The operations. Each leaves the lab as it was.

    def turn(self):
        """A session ends, its board goes to the next, and one more waits."""
        lease = self.running.pop(self.count % len(self.running))
        self.say(lease["conn"], control.LeaseEnded(1, lease["lease"], lease["epoch"], "closed"))
        self.put(lease["conn"])
        self.request()

    def one_user(self, keys):
        """From now on one user asks, over several connections, and waits for so many other keys."""
        conns = range(self.state.arrivals, self.state.arrivals + 8)  # numbers of nobody else
        for conn in conns:
            self.happens(events.Connected(self.now, conn, "10.0.0.5", "10.0.0.1"))
            self.say(conn, tracker.Ping(control.Hello("0", (), "ann")))
        self.users = [conn for conn in conns for _ in range(25)]
        for number in range(keys):
            self.request(key=f"other-{number}", wait_for_key=True)

    def ask_and_leave(self):
        conn, number = self.request(wait_timeout=100.0)
        self.say(conn, control.Cancel(0, number))

    def ask_for_one_board(self):
        conn, number = self.request(labels={"name": f"b{self.count % self.boards + 1}"}, priority=0)
        self.say(conn, control.Cancel(0, number))

    def connection(self):
        self.happens(events.Connected(self.now, 10**6, "10.0.0.5", "10.0.0.1"))
        self.happens(events.Disconnected(self.now, 10**6))


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["turn", "ask_and_leave", "ask_for_one_board", "connection"])
def test_the_size_of_the_lab_does_not_matter(operation, record_property):
    labs = [Bench(SMALL), Bench(LARGE)]
    gc.disable()
    try:
        times = ([], [])
        for _ in range(ROUNDS):
            for lab, taken in zip(labs, times, strict=True):
                act = getattr(lab, operation)
                began = time.process_time()
                for _ in range(STEPS):
                    act()
                taken.append((time.process_time() - began) / STEPS)
    finally:
        gc.enable()
    small, large = (statistics.median(taken) * 1e6 for taken in times)
    record_property(f"{operation}, us with 100 and 10,000 boards", f"{small:.1f} and {large:.1f}")
    assert large <= 2 * small


@pytest.mark.slow
def test_what_a_user_waits_for_elsewhere_does_not_matter(record_property):
    """Each lease of theirs moves them in all lines in which they wait, for whoever looks."""
    few, many = Bench(SMALL), Bench(SMALL)
    few.one_user(SMALL)
    many.one_user(2 * LARGE)
    taken = {}
    gc.disable()
    try:
        for name, lab in (("few", few), ("many", many)):
            lab.turn()
            began = time.process_time()
            for _ in range(STEPS):
                lab.turn()
            taken[name] = (time.process_time() - began) / STEPS * 1e6
    finally:
        gc.enable()
    record_property("a turn, us, beside 100 and 20,000 keys waited for", f"{taken}")
    assert taken["many"] <= 3 * taken["few"]


def test_positions_are_told_in_steps():
    lab = Bench(1)
    for _ in range(2):  # then every queue has somebody behind somebody
        lab.one_user(2 * TOLD_AT_ONCE)
    due, left = lab.state.next_deadline, [len(lab.state.moved)]
    while lab.state.moved:
        lab.state.apply(events.Tick(due))
        left.append(len(lab.state.moved))
    assert left[0] >= 2 * TOLD_AT_ONCE
    assert max(before - after for before, after in itertools.pairwise(left)) <= TOLD_AT_ONCE
