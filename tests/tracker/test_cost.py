"""The state's operations cost at most twice as much in a lab of 10,000 boards as in one of 100."""

import gc
import itertools
import statistics
import time

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.matching import MAX_BESIDE
from rpcsys.tracker.requests import TOLD_AT_ONCE
from rpcsys.tracker.scheduler import MAX_GATHERERS_OF_ADDRESS
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.views import eta
from rpcsys.wire import control, tracker
from tests.tracker.transcripts import START

SMALL, LARGE = 100, 10_000
ROUNDS, STEPS = 15, 100


class Bench:
    """A lab of ``boards`` boards of one key, all leased, with as many waiting requests of 200 users."""

    def __init__(self, boards: int) -> None:
        self.now = START
        self.state = TrackerState(events.TrackerStarted(START, "run", None))
        self.boards, self.count = boards, 0
        self.leases: dict[str, dict] = {}
        self.running: list[dict] = []
        for conn in range(1, boards + 1):
            self.happens(events.Connected(START, conn, "10.0.0.8", "10.0.0.1"))
            labels = {"rev": str(conn % 3), "name": f"b{conn}"}
            self.say(conn, control.Register(1, "key", f"b{conn}", port=9090, labels=labels, loads=(".onnx",)))
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
        """End a session, grant its board to the next request, and add a request."""
        lease = self.running.pop(self.count % len(self.running))
        self.say(lease["conn"], control.LeaseEnded(1, lease["lease"], lease["epoch"], "closed"))
        self.put(lease["conn"])
        self.request()

    def one_user(self, keys):
        """Let one user send all requests, over several connections, and wait for ``keys`` other keys, too."""
        conns = range(
            self.state.records.arrivals, self.state.records.arrivals + 8
        )  # numbers that no other connection has
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
def test_a_users_requests_for_other_keys_do_not_matter(record_property):
    """Each lease of the user changes its place in all queues in which it waits."""
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


def test_positions_are_sent_in_steps():
    lab = Bench(1)
    for _ in range(2):  # then every queue has more than one request
        lab.one_user(2 * TOLD_AT_ONCE)
    due, left = lab.state.next_deadline, [len(lab.state.records.moved)]
    while lab.state.records.moved:
        lab.state.apply(events.TimePassed(due))
        left.append(len(lab.state.records.moved))
    assert left[0] >= 2 * TOLD_AT_ONCE
    assert max(before - after for before, after in itertools.pairwise(left)) <= TOLD_AT_ONCE


def in_pairs(act, few, many, rounds=ROUNDS):
    """Median seconds of ``act`` in two labs, measured in turns."""
    times = ([], [])
    gc.disable()
    try:
        for _ in range(rounds):
            for lab, taken in zip((few, many), times, strict=True):
                began = time.process_time()
                for _ in range(10):
                    act(lab)
                taken.append((time.process_time() - began) / 10)
    finally:
        gc.enable()
    return [statistics.median(taken) for taken in times]


def everybody(lab):
    return [*eta.in_order(lab.state.records, lab.now, lab.state.records.queues["key"])]


def wait_with_labels(lab, sets, labels, of_each=50):
    """Add ``sets`` requests, each with its own set of labels, ``of_each`` of each user and address."""
    for number in range(sets):
        if number % of_each == 0:
            conn = 10**6 + number
            lab.happens(events.Connected(lab.now, conn, f"10.1.{number // 250}.{number % 250}", "10.0.0.1"))
            lab.say(conn, tracker.Ping(control.Hello("0", (), f"stranger{conn}")))
        lab.count += 1
        lab.say(conn, control.Request(lab.count, key="key", priority=0, labels=labels(number)))


MANY_SETS = 4000
LABELS = {
    "a value of its own": lambda number: {"own": str(number)},
    "a value of its own beside one that all want": lambda number: {"aa": "1", "rev": "1", "zz": str(number)},
    "a bound of its own": lambda number: {"rev": f">={-1 - number}"},
}


@pytest.mark.slow
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_waiting_sets_of_labels_do_not_matter(labels, record_property):
    """A free board is compared with few of them, and a position is found without reading all."""
    few, many = Bench(SMALL), Bench(SMALL)
    wait_with_labels(few, MAX_BESIDE, labels)
    wait_with_labels(many, MANY_SETS, labels)
    for what in ("turn", "ask_and_leave"):
        less, more = in_pairs(lambda lab, what=what: getattr(lab, what)(), few, many)
        record_property(f"{what}, us", f"{less * 1e6:.0f} and {more * 1e6:.0f}")
        assert more <= 3 * less


@pytest.mark.slow
def test_the_order_of_a_queue_costs_time_by_its_length(record_property):
    """It does not cost the product of users and sets of labels."""
    few, many = Bench(SMALL), Bench(SMALL)
    wait_with_labels(few, MANY_SETS // 8, LABELS["a value of its own"], 1)
    wait_with_labels(many, MANY_SETS, LABELS["a value of its own"], 1)
    less, more = in_pairs(everybody, few, many, rounds=5)
    waiting = [len(everybody(lab)) for lab in (few, many)]
    record_property("us for each that waits", f"{less / waiting[0] * 1e6:.1f}, {more / waiting[1] * 1e6:.1f}")
    assert more / waiting[1] <= 3 * less / waiting[0]


@pytest.mark.slow
def test_waiting_requests_for_several_devices_do_not_matter(record_property):
    """They are compared with boards that come or leave, but not at the end of a session; and they are bounded."""
    few, many = Bench(SMALL), Bench(SMALL)
    few.request(count=SMALL + 1)
    for number in range(1000):
        many.request(count=SMALL + 1, labels={"rev": f">={-number}"})
    less, more = in_pairs(Bench.turn, few, many)
    record_property("a turn, us", f"{less * 1e6:.0f} and {more * 1e6:.0f}")
    assert more <= 3 * less
    assert len(many.state.records.gatherers) <= MAX_GATHERERS_OF_ADDRESS


@pytest.mark.slow
def test_other_deployed_modules_do_not_matter(record_property):
    """Neither to a question for one module, nor, beyond one page, to a question for all."""
    few, many = Bench(SMALL), Bench(10 * SMALL)
    for lab, per_board in ((few, 25), (many, 100)):
        for conn in range(1, lab.boards + 1):
            modules = [control.DeployedModule(f"m{conn}-{n}", "1") for n in range(per_board)]
            lab.say(conn, control.Deployed(1, tuple(modules)))
    for name in ("m7-3", ""):
        less, more = in_pairs(lambda lab, n=name: lab.say(1, control.Resolve(1, n)), few, many, rounds=3)
        record_property(f"resolve {name!r}, us", f"{less * 1e6:.0f} and {more * 1e6:.0f}")
        assert more <= 10 * less  # of 40 times as many
