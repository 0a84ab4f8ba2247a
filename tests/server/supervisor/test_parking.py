"""A server behind proxies, as transcripts: where its connections wait, under which key, and what follows a failure."""

import itertools
import random

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import DOWN, LED_S, RETRY_S, UNUSED_S
from rpcsys.server.supervisor.parking import ANSWER_S, ANSWERING, CONNECT_S, PAUSE_S
from rpcsys.server.supervisor.session_record import CLEANING
from tests.server.transcripts import Transcript, only, taken

ONE, TWO = ("p:1",), ("p:1", "q:2")


class ProxiedTranscript(Transcript):
    """A ready server behind ``proxies``. If it finds a tracker, its match keys are ``k:1``, ``k:2`` …"""

    def __init__(self, proxies=ONE, **policy):
        super().__init__(tracked=True, proxies=proxies, **policy)
        self.boot()

    def no_tracker(self):
        """Have no proxy lead to a tracker; the plain connections that the server dials."""
        actions = []
        for _ in self.policy.proxies:
            actions += self.post(ev.LinkDown, "it closed the connection")
            self.now += RETRY_S[0]
            if self.state.offers.link is DOWN and len(self.policy.proxies) > 1:
                actions += self.post(ev.Tick)
        return only(actions, do.Park)

    def waits(self):
        """Park plain connections for all slots; the actions that dialled them."""
        parks = self.no_tracker()
        for park in parks:  # a parked connection leads to further dials
            parks += only(self.post(ev.Parked, park.number), do.Park)
        return parks

    def led(self):
        """Register with a tracker of ours, and offer every slot; the match keys."""
        self.post(ev.LinkUp, True)
        return self.keyed(self.post(ev.Registered))

    def keyed(self, actions):
        """Make, park and offer the requested match keys; their texts."""
        keys = []
        for _ in only(actions, do.MakeKey):
            self._keys = getattr(self, "_keys", 0) + 1
            keys.append(f"k:{self._keys}")
            for park in only(self.post(ev.KeyMade, keys[-1]), do.Park):
                assert park.offered
                assert self.post(ev.Parked, park.number) == [do.Offer(park.key)]
        return keys

    def number_of(self, key):
        return next(number for number, each in self.state.parking.connections.items() if each.key == key)

    def pair(self, number, conn, key="k", session="rpcsys/1", **fields):
        return self.post(ev.Opened, conn, f"peer{conn}", "client", key, session, parked=number, **fields)


@pytest.fixture(params=[ONE, TWO], ids=["one", "two"])
def plain(request):
    """Without a tracker: two slots, parked at each proxy under the plain key."""
    script = ProxiedTranscript(request.param, slots=2)
    parks = script.waits()
    assert sorted(park.proxy for park in parks) == sorted(2 * list(range(len(request.param))))
    assert {(park.key, park.offered) for park in parks} == {("k", False)}
    yield script
    script.replay()


@pytest.fixture
def led():
    """One slot, offered through the first of two proxies as k:1."""
    script = ProxiedTranscript(TWO)
    assert script.led() == ["k:1"]
    yield script
    script.replay()


# Without a tracker


def test_a_tracker_is_tried_before_plain_connections():
    script = ProxiedTranscript(TWO)
    assert [type(action) for action in script.out[-2:]] == [do.Announce, do.Connect]
    assert script.post(ev.LinkDown, "it closed the connection") == []
    assert script.tick(RETRY_S[0]) == [do.Connect(1)]
    parks = script.post(ev.LinkDown, "refused")
    assert [(type(action), action.proxy) for action in parks] == [(do.Park, 0), (do.Park, 1)]


def test_a_connection_is_dialled_again_after_its_session(plain):
    first = min(plain.state.parking.connections)
    actions = plain.pair(first, 7)
    assert only(actions, do.Start) == [do.Start(1, 7, 1, "rpcsys/1", "peer7")]
    assert not only(actions, do.Park)
    # at the other proxies one connection is now too many
    assert len(only(actions, do.Unpark)) == len(plain.policy.proxies) - 1
    plain.post(ev.SessionOpened, 1)
    over = plain.post(ev.ChildDone, 1, "closed") + plain.child_dies(1)
    assert len(only(over, do.Park)) == len(plain.policy.proxies)


def test_any_client_is_admitted_on_a_plain_connection(plain):
    assert only(plain.pair(min(plain.state.parking.connections), 7, key="k:0.25", session=None, timeout_s=3), do.Start)
    assert plain.state.slots.sessions[1].limit_s == 3


def test_connections_that_fail_together_count_as_one_failure():
    script = ProxiedTranscript(slots=4)
    assert len(script.waits()) == 4
    script.now += 60
    connections = list(script.state.parking.connections)
    parks = [
        action
        for number in connections
        for action in script.post(ev.Unparked, number, "lost", "it closed the connection")
    ]
    assert parks == []
    (park,) = only(script.tick(0.15), do.Park)  # one connection tests the proxy first
    assert len(only(script.post(ev.Parked, park.number), do.Park)) == 3
    assert sum("it closed the connection; trying again" in line for line in script.logged()) == 1
    script.replay()


def test_pauses_grow_to_a_limit_and_jitter_shortens_them(plain):
    if len(plain.policy.proxies) > 1:
        return
    number = max(plain.state.parking.connections)
    pauses = []
    for _ in range(12):
        plain.post(ev.Unparked, number, "lost", "refused", 0.5)
        started = plain.now
        while number in plain.state.parking.connections or not only(plain.post(ev.Tick), do.Park):
            plain.now = max(plain.now, plain.state.deadline())
        pauses.append(round(plain.now - started, 3))
        number = max(plain.state.parking.connections)
    assert pauses[:3] == [0.075, 0.15, 0.3]
    assert pauses[-1] == PAUSE_S * 0.75


def test_tvms_proxy_gets_one_connection_for_each_key():
    script = ProxiedTranscript(slots=3)
    first, *others = [park.number for park in script.waits()]
    assert [script.post(ev.Unparked, number, "duplicate", "taken") for number in others] == [[], []]
    assert not only(script.tick(10), do.Park)
    assert list(script.state.parking.connections) == [first]
    actions = script.pair(first, 7)
    assert len(only(actions, do.Park)) == 1
    script.replay()


def test_a_duplicate_key_is_logged_and_tried_again():
    script = ProxiedTranscript()
    (park,) = script.no_tracker()
    assert script.post(ev.Unparked, park.number, "duplicate", "it has a server of this key already") == []
    assert any("it has a server of this key already" in line for line in script.logged())
    assert only(script.tick(1), do.Park)


def test_a_silent_proxy_and_half_an_answer_time_out():
    script = ProxiedTranscript()
    (park,) = script.no_tracker()
    assert do.Unpark(park.number) in script.tick(CONNECT_S)
    again = max(script.state.parking.connections)
    script.post(ev.Parked, again)
    assert script.state.parking.connections[again].until is None
    script.post(ev.Answering, again)
    script.post(ev.Answering, again, after=ANSWER_S / 2)
    assert do.Unpark(again) in script.tick(ANSWER_S / 2)
    assert any("half an answer" in line for line in script.logged())
    script.replay()


def test_a_connection_that_is_being_answered_is_not_closed():
    script = ProxiedTranscript(TWO)
    one, two = [park.number for park in script.no_tracker()]
    for number in (one, two):
        script.post(ev.Parked, number)
        script.post(ev.Answering, number)
    assert only(script.pair(one, 1), do.Start)
    assert two in script.state.parking.connections
    assert script.pair(two, 2) == []  # it waits for a slot, as without a proxy
    assert [visitor.conn for visitor in script.state.slots.waiting] == [2]
    script.replay()


def test_a_proxy_that_sends_invalid_clients_is_dialled_with_growing_pauses():
    script = ProxiedTranscript()
    (park,) = script.no_tracker()
    pauses = []
    for conn in range(8):
        script.post(ev.Parked, park.number)
        script.pair(park.number, conn)
        (session,) = script.state.slots.sessions.values()
        over = script.post(ev.ChildDone, session.child, "lost") + script.child_dies(session.child)
        for spawn in only(script.log[-2][1] + over, do.Spawn):
            script.post(ev.ChildReady, spawn.child)
        began = script.now
        while not only(script.log[-1][1], do.Park):
            script.now = max(script.now, script.state.deadline())
            script.post(ev.Tick)
        park = only(script.log[-1][1], do.Park)[0]
        pauses.append(round(script.now - began, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_S, PAUSE_S]
    script.post(ev.Parked, park.number)
    assert only(script.pair(park.number, 99, key="k:1"), do.Start)
    (session,) = script.state.slots.sessions.values()
    script.post(ev.SessionOpened, session.child)
    assert only(script.post(ev.ChildDone, session.child, "closed") + script.child_dies(session.child), do.Park)
    script.replay()


def test_a_client_on_an_unknown_connection_is_dropped(plain):
    assert plain.pair(99, 7) == [do.Drop(7)]


def test_a_stopping_server_unparks_all_connections(plain):
    count = len(plain.state.parking.connections)
    assert len(only(plain.post(ev.StopAsked), do.Unpark)) == count
    assert plain.state.parking.deadline() is None


def test_a_board_that_is_not_clean_parks_no_connection(plain):
    plain.pair(min(plain.state.parking.connections), 7)
    plain.post(ev.ChildDone, 1, "closed")
    plain.post(ev.ChildDead, 1, 0)
    plain.post(ev.Removed, 1, left=("/tmp/x",))
    assert not plain.state.parking.connections
    assert not only(plain.tick(60), do.Park)


# With a tracker of ours behind the proxy


def test_a_match_key_is_offered_once_its_connection_is_parked():
    script = ProxiedTranscript()
    script.post(ev.LinkUp, True)
    assert script.post(ev.Registered) == [do.MakeKey()]
    (park,) = script.post(ev.KeyMade, "k:1")
    assert park == do.Park(park.number, 0, "k:1", True)
    assert script.post(ev.Parked, park.number) == [do.Offer("k:1")]
    assert script.post(ev.Parked, park.number) == []


def test_a_lease_through_a_proxy(led):
    led.post(ev.KeyTaken, "L1", 7, "k:1", "ann", "10.0.0.5", 60.0)
    actions = led.pair(led.number_of("k:1"), 5, "k:1")
    assert only(actions, do.Start) == [do.Start(1, 5, 1, "rpcsys/1", "peer5", 60.0, "L1")]
    assert only(actions, do.ReportStart) == [do.ReportStart("L1", 7, "peer5")]
    over = led.post(ev.ChildDone, 1, "closed") + led.child_dies(1)
    assert only(over, do.ReportEnd)[0].lease == "L1"
    assert led.keyed(over) == ["k:2"]


def test_a_match_key_is_valid_once(led):
    led.post(ev.KeyTaken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    number = led.number_of("k:1")
    led.pair(number, 5, "k:1")
    assert led.pair(number, 6, "k:1") == [do.Drop(6)]


def test_a_client_with_another_match_key_is_refused(led):
    assert do.Refuse(6, "mismatch") in led.pair(led.number_of("k:1"), 6, "k:forged")
    assert [park.key for park in only(led.tick(0.1), do.Park)] == ["k:1"]  # dialled again


def test_a_broken_connection_is_dialled_again_under_its_match_key(led):
    led.post(ev.KeyTaken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    led.post(ev.Unparked, led.number_of("k:1"), "lost", "it closed the connection")
    (park,) = only(led.tick(0.2), do.Park)
    assert park.key == "k:1"
    assert led.post(ev.Parked, park.number) == []  # the tracker already has the offer
    assert only(led.pair(park.number, 5, "k:1"), do.Start)


def test_an_unused_match_key_is_replaced(led):
    led.post(ev.KeyTaken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    actions = led.tick(UNUSED_S)
    assert only(actions, do.Unpark)
    assert led.keyed(actions) == ["k:2"]


def test_a_lost_proxy_is_replaced_by_the_next(led):
    number = led.number_of("k:1")
    assert do.Unpark(number) in led.post(ev.LinkDown, "it closed the connection")
    assert led.tick(RETRY_S[0]) == [do.Connect(1)]
    assert led.led() == ["k:2"]
    assert led.state.parking.connections[led.number_of("k:2")].proxy == 1


def test_a_taken_match_key_is_valid_after_the_link_breaks(led):
    led.post(ev.KeyTaken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    number = led.number_of("k:1")
    assert do.Unpark(number) not in led.post(ev.LinkDown, "gone")
    assert only(led.pair(number, 5, "k:1"), do.Start)


def test_after_a_lost_tracker_plain_connections_are_delayed(led):
    led.post(ev.LinkDown, "gone")
    for _ in range(100):
        if led.now > 100 + LED_S - 1:
            break
        actions = led.tick(0.5)
        if only(actions, do.Connect):
            actions += led.post(ev.LinkDown, "gone")
        assert not only(actions, do.Park)
    tried = [at.now for at, actions in led.log if only(actions, do.Connect)]
    assert max(later - earlier for earlier, later in itertools.pairwise(tried)) <= RETRY_S[1] + 0.5
    assert {park.key for park in only(led.tick(3) + led.post(ev.LinkDown, "gone"), do.Park)} == {"k"}


def test_a_proxy_without_a_tracker_gets_plain_connections_at_once():
    script = ProxiedTranscript()
    script.led()
    script.post(ev.LinkDown, "gone")
    script.tick(RETRY_S[0])
    assert [park.key for park in only(script.post(ev.LinkDown, "it has none", 0.5, True), do.Park)] == ["k"]
    script.replay()


def test_match_keys_replace_plain_connections():
    script = ProxiedTranscript()
    (park,) = script.no_tracker()
    script.post(ev.Parked, park.number)
    script.tick(RETRY_S[0])
    actions = script.post(ev.LinkUp, True) + script.post(ev.Registered)
    assert do.Unpark(park.number) in actions
    assert script.keyed(actions) == ["k:1"]
    script.replay()


def test_behind_tvms_tracker_connections_wait_under_the_plain_key():
    script = ProxiedTranscript(TWO)
    parks = script.post(ev.LinkUp, False)
    assert [(type(action), action.proxy, action.key) for action in parks] == [(do.Park, 0, "k")]
    assert not only(script.tick(30), do.Connect)
    assert only(script.post(ev.LinkDown, "gone"), do.Park)  # at the other proxy too, until a tracker answers
    assert script.tick(RETRY_S[0]) == [do.Connect(1)]
    script.replay()


# At random


def anything(chance, script, step):
    """Post one random event, with a present, past or unknown id."""
    state = script.state
    child = chance.choice([*state.processes.children, 1])
    conn = chance.choice([*(session.conn for session in state.slots.sessions.values()), 1])
    gone = [number for number, session in state.slots.sessions.items() if session.state is CLEANING]
    key = chance.choice([*state.offers.keys, "k", "k:bad"])
    number = chance.choice([*state.parking.connections, 1])
    how = chance.choice(["lost", "duplicate", "mismatch"])
    acts = [
        *3 * [lambda: script.post(ev.Parked, number)],
        *2 * [lambda: script.pair(number, 1000 + step, key, chance.choice(["rpcsys/1", None, "rpcsys/9"]))],
        lambda: script.post(ev.Answering, number),
        lambda: script.post(ev.Unparked, number, how, "so", chance.random()),
        lambda: script.post(ev.KeyMade, f"k:{step}"),
        lambda: script.post(ev.ChildReady, child),
        lambda: script.post(ev.SessionOpened, child),
        lambda: script.post(ev.ChildDone, child, "closed"),
        lambda: script.post(ev.ChildDead, child, chance.choice([0, 1, -9])),
        lambda: script.post(ev.HungUp, conn),
        lambda: script.post(ev.Removed, chance.choice([*gone, 99])),
        lambda: script.post(chance.choice([ev.ZygoteDown, ev.ZygoteUp, ev.ZygoteUp, ev.ZygoteUp])),
        lambda: script.post(ev.LinkDown, "gone", chance.random(), chance.random() < 0.3),
        lambda: script.post(ev.LinkUp, chance.random() < 0.8),
        lambda: script.post(ev.Registered),
        lambda: script.post(ev.KeyTaken, f"L{step}", step, key, "ann", "a", None),
        lambda: script.tick(chance.random() * 3),
    ]
    return chance.choice(acts)()


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_breaks_a_server_behind_proxies(seed):
    """In any order of events, sessions and connections are bounded, deadlines move, and the log replays."""
    chance = random.Random(seed)
    script = ProxiedTranscript(TWO if seed % 2 else ONE, slots=2)
    for step in range(300):
        anything(chance, script, step)
        state = script.state
        assert len(state.slots.sessions) <= 2
        answering = sum(each.state is ANSWERING for each in state.parking.connections.values())
        # one for each slot at each proxy, and one for each match key whose client is on its way
        assert len(state.parking.connections) - answering <= 4 + len(state.offers.keys)
    script.replay()
    script.post(ev.StopAsked)
    assert not script.state.parking.connections


def test_waiting_connections_are_logged_and_counted():
    script = ProxiedTranscript()
    (park,) = script.no_tracker()
    assert script.state.parking.waiting == 0
    script.post(ev.Parked, park.number)
    assert script.state.parking.waiting == 1
    assert script.logged()[-1] == "waiting for clients at the proxy at p:1"


def test_a_connection_waits_at_the_proxy_for_whoever_attaches_to_a_hold():
    script = ProxiedTranscript()
    (key,) = script.led()
    taken(script, key)
    (start,) = only(script.pair(script.number_of(key), 1, key), do.Start)
    assert key not in {each.key for each in script.state.parking.connections.values()}
    (park,) = only(script.post(ev.Held, start.child), do.Park)
    assert park.key == key
    assert script.post(ev.Parked, park.number) == []
    actions = script.pair(park.number, 2, key)
    assert only(actions, do.Attach) == [do.Attach(2, start.child, "peer2")]
    assert [again.key for again in only(actions, do.Park)] == [key]
    script.post(ev.ChildDone, start.child, "closed")
    assert key not in {each.key for each in script.state.parking.connections.values()}
    script.replay()
