"""Device time compared with the plain formula, and queues compared with a plain sort by it."""

from math import log

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker import shares as module
from rpcsys.tracker.entities import WaitingRequest
from rpcsys.tracker.labels import wants_of_key
from rpcsys.tracker.matching import Subqueue, Subqueues
from rpcsys.tracker.shares import HALF_LIFE_S, Shares, lead
from rpcsys.tracker.views.eta import ahead, in_order
from tests.tracker.transcripts import Scene

START = 1_000_000.0
USERS = st.sampled_from("abc")


class Plain:
    """Device time by decay and growth from one event to the next."""

    def __init__(self):
        self.spent, self.running, self.at = 0.0, 0, START

    def move(self, at, change=0):
        decayed = 2.0 ** ((self.at - at) / HALF_LIFE_S)
        self.spent = self.spent * decayed + self.running * (1 - decayed) * HALF_LIFE_S / log(2)
        self.at, self.running = at, self.running + change
        return self.spent


@given(st.lists(st.tuples(USERS, st.booleans(), st.sampled_from([0.0, 1.0, 600.0, 90_000.0, 4e6])), max_size=40))
def test_device_time_equals_the_plain_formula(steps):
    shares, plain, at = Shares(START), {user: Plain() for user in "abc"}, START
    for user, begins, passed in steps:
        at += passed
        if begins:
            shares.begin(at, user)
            plain[user].move(at, 1)
        elif plain[user].running:
            shares.end(at, user)
            plain[user].move(at, -1)
    for user, model in plain.items():
        assert abs(shares.spent(at, user) - model.move(at)) <= 1 + 1e-6 * model.spent


def test_users_with_negligible_device_time_are_dropped(monkeypatch):
    monkeypatch.setattr(module, "_MANY", 10)
    shares = Shares(START)
    shares.many = 10
    for number in range(1000):
        shares.begin(START + number, f"user{number}")
        shares.end(START + number + 0.001, f"user{number}")
    assert len(shares.users) < 40


def test_a_user_without_device_time_is_dropped():
    """A lease of no duration adds no device time. A user with another lease or request stays."""
    shares = Shares(START)
    shares.remember("from before", START - 9, START - 9)
    for _ in range(2):
        shares.begin(START, "ann")
    shares.end(START, "ann")
    assert list(shares.users) == ["ann"]
    shares.of("ann").waiting += 1
    shares.end(START, "ann")
    assert list(shares.users) == ["ann"]
    shares.waits_no_more("ann")
    assert shares.users == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "serve", "drop", "begin", "end"]),
            USERS,
            st.integers(0, 2),
            st.sampled_from([0.0, 10.0, 4000.0, 2e6]),
        ),
        max_size=60,
    )
)
def test_a_queue_is_served_by_priority_then_device_time_then_arrival(steps):
    """Also if the users' device time has changed since the requests came."""
    shares, at, waiting, running = Shares(START), START, [], []
    lines, wants = Subqueues(shares), wants_of_key("k")
    for arrival, (what, user, priority, passed) in enumerate(steps):
        at += passed
        if what == "ask":
            shares.of(user).waiting += 1
            waiting.append(WaitingRequest(arrival, 1, None, wants, priority, user, at))
            lines.add(waiting[-1])
        elif what in ("serve", "drop") and waiting:
            least = min(rank(shares, at, request) for request in waiting)
            *found, first = lines.all[wants].best(shares.clock(at))
            (best,) = (request for request in waiting if request.arrival == first)
            assert tuple(found) == rank(shares, at, best) == least
            assert first == min(request.arrival for request in waiting if alike(shares, request, best))
            gone = best if what == "serve" else waiting[arrival % len(waiting)]
            waiting.remove(gone)
            lines.remove(gone)
            shares.of(gone.user).waiting -= 1
        elif what == "begin":
            shares.begin(at, user)
            running.append(user)
        elif what == "end" and running:
            shares.end(at, running.pop())
    assert (wants in lines.all) == bool(waiting)


def rank(shares, at, request):
    weight, share = lead(shares.clock(at)), shares.of(request.user)
    return (-request.standing, share.base + share.running * weight)


def alike(shares, one, other):
    """Whether arrival alone decides between two requests; rounding may still make their users differ."""
    shares = [shares.of(request.user) for request in (one, other)]
    return one.standing == other.standing and len({(share.base, share.running) for share in shares}) == 1


def test_a_band_has_one_entry_for_each_user():
    shares, wants = Shares(START), wants_of_key("k")
    line = Subqueue(shares, wants, "")
    for arrival, user in enumerate("ab"):
        line.add(WaitingRequest(arrival, 1, None, wants, 1, user, START))
    for number in range(2000):
        shares.begin(START + number, "a")
        shares.end(START + number + 0.5, "a")
    (band,) = line.bands.values()
    assert sum(map(len, band._sorted().values())) == 2


def foretold(requests, held):
    """Each request's forecast position, in the forecast order."""
    scene = Scene()
    scene.wait(60)
    for number, rev in enumerate("12"):
        scene.server(name=f"s{number}", port=number, labels={"rev": rev})
    server = scene.server(name="holder", port=9)
    for number, (user, seconds) in enumerate(held):
        scene.put(server, f"rpi4:{number}")
        scene.request(scene.client(user))
        scene.wait(seconds)
    for number, (user, priority, rev, seconds) in enumerate(requests):
        labels = {"rev": rev} if rev else {}
        scene.request(scene.client(user), number, priority=priority, labels=labels)
        scene.wait(seconds)
    state, queue = scene.state, scene.state.records.queues["rpi4"]
    order = list(in_order(state.records, scene.now, queue))
    assert len(order) == len(queue.waiting) == len(requests)
    return [ahead(state.records, scene.now, request) for request in order]


REQUEST = st.tuples(USERS, st.integers(0, 2), st.just(None), st.integers(0, 700))
HELD = st.lists(st.tuples(USERS, st.integers(1, 900)), max_size=3)


@given(st.lists(REQUEST, min_size=1, max_size=4, unique_by=lambda request: request[0]), HELD)
def test_the_position_of_a_users_first_request_is_exact(requests, held):
    assert foretold(requests, held) == list(range(len(requests)))


@given(st.lists(REQUEST, min_size=1, max_size=25), HELD)
def test_the_positions_of_further_requests_are_nearly_right(requests, held):
    for index, place in enumerate(foretold(requests, held)):
        assert abs(index - place) <= 3, "by no more than there are users"


LABELLED = st.tuples(USERS, st.integers(0, 2), st.sampled_from([None, "1", "2"]), st.integers(0, 700))


@given(st.lists(LABELLED, min_size=1, max_size=25), HELD)
def test_positions_count_requests_with_other_labels(requests, held):
    assert all(0 <= place < 2 * len(requests) for place in foretold(requests, held))
