"""A server behind proxies, as transcripts: where it waits, under which key, and what it does when that fails."""

import itertools
import random

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import LED_S, RETRY_S, UNUSED_S
from rpcsys.server.supervisor.parking import (
    ANSWER_S,
    CONNECT_S,
    PAUSE_S,
    Answering,
    KeyMade,
    MakeKey,
    Paired,
    Park,
    Parked,
    Unpark,
    Unparked,
)
from tests.server.transcripts import Transcript

ONE, TWO = ("p:1",), ("p:1", "q:2")


def only(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


class Behind(Transcript):
    """A server behind ``proxies``, ready; its tracker, if it finds one, hands out the keys ``k:1``, ``k:2`` …"""

    def __init__(self, proxies=ONE, **policy):
        super().__init__(tracked=True, proxies=proxies, **policy)
        self.boot()

    def no_tracker(self):
        """No proxy leads to a tracker; where the server tries to wait instead."""
        actions = []
        for _ in self.policy.proxies:
            actions += self.say(ev.LinkDown, "it closed the connection")
            self.now += RETRY_S[0]
            if self.state.offers.link == "down" and len(self.policy.proxies) > 1:
                actions += self.say(ev.Tick)
        return only(actions, Park)

    def waits(self):
        """As many wait as can; all that were dialled."""
        parks = self.no_tracker()
        for park in parks:  # one leads to others
            parks += only(self.say(Parked, park.place), Park)
        return parks

    def led(self):
        """Registered with a tracker of ours, and every slot offered."""
        self.say(ev.LinkUp, True)
        return self.keyed(self.say(ev.Registered))

    def keyed(self, actions):
        """The match keys asked for are made, parked, and offered."""
        keys = []
        for _ in only(actions, MakeKey):
            self._keys = getattr(self, "_keys", 0) + 1
            keys.append(f"k:{self._keys}")
            for park in only(self.say(KeyMade, keys[-1]), Park):
                assert park.offered
                assert self.say(Parked, park.place) == [do.Offer(park.key)]
        return keys

    def place_of(self, key):
        return next(number for number, place in self.state.parking.places.items() if place.key == key)

    def pair(self, place, conn, key="k", session="rpcsys/1", **fields):
        return self.say(Paired, place, conn, f"peer{conn}", "client", key, session, **fields)


@pytest.fixture(params=[ONE, TWO], ids=["one", "two"])
def plain(request):
    """No tracker to be found: two slots, parked at each proxy under the plain key."""
    script = Behind(request.param, slots=2)
    parks = script.waits()
    assert sorted(park.proxy for park in parks) == sorted(2 * list(range(len(request.param))))
    assert {(park.key, park.offered) for park in parks} == {("k", False)}
    yield script
    script.replay()


@pytest.fixture
def led():
    """One slot, offered through the first of two proxies as k:1."""
    script = Behind(TWO)
    assert script.led() == ["k:1"]
    yield script
    script.replay()


# Without a tracker


def test_a_tracker_is_looked_for_first():
    script = Behind(TWO)
    assert [type(action) for action in script.out[-2:]] == [do.Announce, do.Connect]
    assert script.say(ev.LinkDown, "it closed the connection") == []
    assert script.tick(RETRY_S[0]) == [do.Connect(1)]
    parks = script.say(ev.LinkDown, "refused")
    assert [(type(action), action.proxy) for action in parks] == [(Park, 0), (Park, 1)]


def test_a_client_that_comes_is_a_session_and_another_place_is_dialled_when_it_is_over(plain):
    first = min(plain.state.parking.places)
    actions = plain.pair(first, 7)
    assert only(actions, do.Start) == [do.Start(1, 7, 1, "rpcsys/1", "peer7")]
    assert not only(actions, Park)
    # elsewhere one place too many waits now
    assert len(only(actions, Unpark)) == len(plain.policy.proxies) - 1
    plain.say(ev.SessionOpened, 1)
    over = plain.say(ev.ChildDone, 1, "closed") + plain.bury(1)
    assert len(only(over, Park)) == len(plain.policy.proxies)


def test_the_proxy_knows_the_match_keys_of_a_plain_place(plain):
    assert only(plain.pair(min(plain.state.parking.places), 7, key="k:0.25", session=None, timeout_s=3), do.Start)
    assert plain.state.board.sessions[1].limit_s == 3


def test_places_that_fail_together_pause_once():
    script = Behind(slots=4)
    assert len(script.waits()) == 4
    script.now += 60
    places = list(script.state.parking.places)
    parks = [action for place in places for action in script.say(Unparked, place, "lost", "it closed the connection")]
    assert parks == []
    (park,) = only(script.tick(0.15), Park)  # one finds out whether it is back
    assert len(only(script.say(Parked, park.place), Park)) == 3
    assert sum("it closed the connection; trying again" in line for line in script.logged()) == 1
    script.replay()


def test_pauses_grow_to_their_longest_and_chance_shortens_them(plain):
    if len(plain.policy.proxies) > 1:
        return
    place = max(plain.state.parking.places)
    pauses = []
    for _ in range(12):
        plain.say(Unparked, place, "lost", "refused", 0.5)
        started = plain.now
        while place in plain.state.parking.places or not only(plain.say(ev.Tick), Park):
            plain.now = max(plain.now, plain.state.deadline())
        pauses.append(round(plain.now - started, 3))
        place = max(plain.state.parking.places)
    assert pauses[:3] == [0.075, 0.15, 0.3]
    assert pauses[-1] == PAUSE_S * 0.75


def test_a_proxy_that_takes_one_connection_of_a_key_gets_one():
    script = Behind(slots=3)
    first, *others = [park.place for park in script.waits()]
    assert [script.say(Unparked, place, "duplicate", "taken") for place in others] == [[], []]
    assert not only(script.tick(10), Park)
    assert list(script.state.parking.places) == [first]
    actions = script.pair(first, 7)
    assert len(only(actions, Park)) == 1
    script.replay()


def test_another_board_of_the_key_is_told_and_tried_again():
    script = Behind()
    (park,) = script.no_tracker()
    assert script.say(Unparked, park.place, "duplicate", "it has a server of this key already") == []
    assert any("it has a server of this key already" in line for line in script.logged())
    assert only(script.tick(1), Park)


def test_a_proxy_that_takes_no_connection_and_one_that_says_half():
    script = Behind()
    (park,) = script.no_tracker()
    assert Unpark(park.place) in script.tick(CONNECT_S)
    again = max(script.state.parking.places)
    script.say(Parked, again)
    assert script.state.parking.places[again].until is None
    script.say(Answering, again)
    script.say(Answering, again, after=ANSWER_S / 2)
    assert Unpark(again) in script.tick(ANSWER_S / 2)
    assert any("half an answer" in line for line in script.logged())
    script.replay()


def test_a_place_that_is_being_answered_is_not_closed():
    script = Behind(TWO)
    one, two = [park.place for park in script.no_tracker()]
    for place in (one, two):
        script.say(Parked, place)
        script.say(Answering, place)
    assert only(script.pair(one, 1), do.Start)
    assert two in script.state.parking.places
    assert script.pair(two, 2) == []  # it waits for a slot, as it would without a proxy
    assert [visitor.conn for visitor in script.state.visitors] == [2]
    script.replay()


def test_a_proxy_that_sends_clients_that_are_none_is_asked_less_and_less():
    script = Behind()
    (park,) = script.no_tracker()
    pauses = []
    for conn in range(8):
        script.say(Parked, park.place)
        script.pair(park.place, conn)
        (session,) = script.state.board.sessions.values()
        over = script.say(ev.ChildDone, session.child, "lost") + script.bury(session.child)
        for spawn in only(script.log[-2][1] + over, do.Spawn):
            script.say(ev.ChildReady, spawn.child)
        began = script.now
        while not only(script.log[-1][1], Park):
            script.now = max(script.now, script.state.deadline())
            script.say(ev.Tick)
        park = only(script.log[-1][1], Park)[0]
        pauses.append(round(script.now - began, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, PAUSE_S, PAUSE_S]
    script.say(Parked, park.place)
    assert only(script.pair(park.place, 99, key="k:1"), do.Start)
    (session,) = script.state.board.sessions.values()
    script.say(ev.SessionOpened, session.child)
    assert only(script.say(ev.ChildDone, session.child, "closed") + script.bury(session.child), Park)
    script.replay()


def test_a_pairing_nobody_waits_for_any_more_is_dropped(plain):
    assert plain.pair(99, 7) == [do.Drop(7)]


def test_stopping_takes_no_more(plain):
    count = len(plain.state.parking.places)
    assert len(only(plain.say(ev.Stop), Unpark)) == count
    assert plain.state.parking.deadline() is None


def test_a_board_that_is_not_clean_waits_nowhere(plain):
    plain.pair(min(plain.state.parking.places), 7)
    plain.say(ev.ChildDone, 1, "closed")
    plain.say(ev.ChildDead, 1, 0)
    plain.say(ev.Removed, 1, left=("/tmp/x",))
    assert not plain.state.parking.places
    assert not only(plain.tick(60), Park)


# With a tracker of ours behind the proxy


def test_a_match_key_is_offered_once_a_connection_waits_for_its_client():
    script = Behind()
    script.say(ev.LinkUp, True)
    assert script.say(ev.Registered) == [MakeKey()]
    (park,) = script.say(KeyMade, "k:1")
    assert park == Park(park.place, 0, "k:1", True)
    assert script.say(Parked, park.place) == [do.Offer("k:1")]
    assert script.say(Parked, park.place) == []


def test_a_lease_through_a_proxy(led):
    led.say(ev.Taken, "L1", 7, "k:1", "ann", "10.0.0.5", 60.0)
    actions = led.pair(led.place_of("k:1"), 5, "k:1")
    assert only(actions, do.Start) == [do.Start(1, 5, 1, "rpcsys/1", "peer5", 60.0, "L1")]
    assert only(actions, do.Started) == [do.Started("L1", 7, "peer5")]
    over = led.say(ev.ChildDone, 1, "closed") + led.bury(1)
    assert only(over, do.Ended)[0].lease == "L1"
    assert led.keyed(over) == ["k:2"]


def test_a_match_key_serves_once(led):
    led.say(ev.Taken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    place = led.place_of("k:1")
    led.pair(place, 5, "k:1")
    assert led.pair(place, 6, "k:1") == [do.Drop(6)]


def test_a_place_that_pairs_with_another_key_is_refused(led):
    assert do.Refuse(6, "mismatch") in led.pair(led.place_of("k:1"), 6, "k:forged")
    assert [park.key for park in only(led.tick(0.1), Park)] == ["k:1"]  # it waits again


def test_a_place_that_breaks_is_dialled_again_under_its_key(led):
    led.say(ev.Taken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    led.say(Unparked, led.place_of("k:1"), "lost", "it closed the connection")
    (park,) = only(led.tick(0.2), Park)
    assert park.key == "k:1"
    assert led.say(Parked, park.place) == []  # the tracker knows it
    assert only(led.pair(park.place, 5, "k:1"), do.Start)


def test_a_match_key_that_nobody_uses_is_renewed(led):
    led.say(ev.Taken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    actions = led.tick(UNUSED_S)
    assert only(actions, Unpark)
    assert led.keyed(actions) == ["k:2"]


def test_the_other_proxy_takes_over(led):
    place = led.place_of("k:1")
    assert Unpark(place) in led.say(ev.LinkDown, "it closed the connection")
    assert led.tick(RETRY_S[0]) == [do.Connect(1)]
    assert led.led() == ["k:2"]
    assert led.state.parking.places[led.place_of("k:2")].proxy == 1


def test_a_client_that_is_on_its_way_when_the_link_breaks_is_waited_for(led):
    led.say(ev.Taken, "L1", 7, "k:1", "ann", "10.0.0.5", None)
    place = led.place_of("k:1")
    assert Unpark(place) not in led.say(ev.LinkDown, "gone")
    assert only(led.pair(place, 5, "k:1"), do.Start)


def test_proxies_that_led_to_a_tracker_are_given_time_before_plain_places(led):
    led.say(ev.LinkDown, "gone")
    for _ in range(100):
        if led.now > 100 + LED_S - 1:
            break
        actions = led.tick(0.5)
        if only(actions, do.Connect):
            actions += led.say(ev.LinkDown, "gone")
        assert not only(actions, Park)
    tried = [at.now for at, actions in led.log if only(actions, do.Connect)]
    assert max(later - earlier for earlier, later in itertools.pairwise(tried)) <= RETRY_S[1] + 0.5
    assert {park.key for park in only(led.tick(3) + led.say(ev.LinkDown, "gone"), Park)} == {"k"}


def test_a_proxy_that_says_it_has_no_tracker_any_more_is_believed():
    script = Behind()
    script.led()
    script.say(ev.LinkDown, "gone")
    script.tick(RETRY_S[0])
    assert [park.key for park in only(script.say(ev.LinkDown, "it has none", 0.5, True), Park)] == ["k"]
    script.replay()


def test_plain_places_give_way_to_match_keys():
    script = Behind()
    (park,) = script.no_tracker()
    script.say(Parked, park.place)
    script.tick(RETRY_S[0])
    actions = script.say(ev.LinkUp, True) + script.say(ev.Registered)
    assert Unpark(park.place) in actions
    assert script.keyed(actions) == ["k:1"]
    script.replay()


def test_where_the_tracker_is_tvms_the_proxy_registers_the_board():
    script = Behind(TWO)
    parks = script.say(ev.LinkUp, False)
    assert [(type(action), action.proxy, action.key) for action in parks] == [(Park, 0, "k")]
    assert not only(script.tick(30), do.Connect)
    assert only(script.say(ev.LinkDown, "gone"), Park)  # at the other proxy too, until it is known what comes
    assert script.tick(RETRY_S[0]) == [do.Connect(1)]
    script.replay()


# At random


def anything(chance, script, step):
    """One event of any kind, about anything there is or was."""
    state = script.state
    child = chance.choice([*state.board.children, 1])
    conn = chance.choice([*(session.conn for session in state.board.sessions.values()), 1])
    gone = [number for number, session in state.board.sessions.items() if session.state == "cleaning"]
    key = chance.choice([*state.offers.keys, "k", "k:bad"])
    place = chance.choice([*state.parking.places, 1])
    how = chance.choice(["lost", "duplicate", "mismatch"])
    acts = [
        *3 * [lambda: script.say(Parked, place)],
        *2 * [lambda: script.pair(place, 1000 + step, key, chance.choice(["rpcsys/1", None, "rpcsys/9"]))],
        lambda: script.say(Answering, place),
        lambda: script.say(Unparked, place, how, "so", chance.random()),
        lambda: script.say(KeyMade, f"k:{step}"),
        lambda: script.say(ev.ChildReady, child),
        lambda: script.say(ev.SessionOpened, child),
        lambda: script.say(ev.ChildDone, child, "closed"),
        lambda: script.say(ev.ChildDead, child, chance.choice([0, 1, -9])),
        lambda: script.say(ev.HungUp, conn),
        lambda: script.say(ev.Removed, chance.choice([*gone, 99])),
        lambda: script.say(chance.choice([ev.ZygoteDown, ev.ZygoteUp, ev.ZygoteUp, ev.ZygoteUp])),
        lambda: script.say(ev.LinkDown, "gone", chance.random(), chance.random() < 0.3),
        lambda: script.say(ev.LinkUp, chance.random() < 0.8),
        lambda: script.say(ev.Registered),
        lambda: script.say(ev.Taken, f"L{step}", step, key, "ann", "a", None),
        lambda: script.tick(chance.random() * 3),
    ]
    return chance.choice(acts)()


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_breaks_a_server_behind_proxies(seed):
    """Whatever comes in whatever order: slots are never oversold, places are bounded, deadlines move, the log replays."""
    chance = random.Random(seed)
    script = Behind(TWO if seed % 2 else ONE, slots=2)
    for step in range(300):
        anything(chance, script, step)
        state = script.state
        assert len(state.board.sessions) <= 2
        answering = sum(place.answering for place in state.parking.places.values())
        # one for each slot at each proxy, and for keys that are out with a client on its way
        assert len(state.parking.places) - answering <= 4 + len(state.offers.keys)
    script.replay()
    script.say(ev.Stop)
    assert not script.state.parking.places


def test_what_waits_is_said_and_counted():
    script = Behind()
    (park,) = script.no_tracker()
    assert script.state.parking.waiting == 0
    script.say(Parked, park.place)
    assert script.state.parking.waiting == 1
    assert script.logged()[-1] == "waiting for clients at the proxy at p:1"
