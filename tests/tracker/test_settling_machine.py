"""Any order of requests, restarts and returns: offers that fit go to the first places, and none waits for long."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rpcsys.tracker.labels import DeviceFacts, Wants, facts_of, facts_of_key, wants_of
from rpcsys.tracker.records import TICKET_S
from rpcsys.tracker.requests import RECORD_S, TVM_TICKET_S
from rpcsys.tracker.restore import SETTLE_S
from rpcsys.tracker.settling import Settling
from tests.tracker.restarts import again
from tests.tracker.transcripts import Scene

KEYS = ("a", "a", "a", "b")  # most are for one key
REVS = ("1", "2")
ADDRESSES = ("10.0.0.5", "10.0.0.5", "10.0.0.6")


@dataclass(eq=False)
class Place:
    """A place in the queue. All are one user's, of one priority: the lowest ``order`` is served first."""

    order: int
    wants: Wants
    ticket: str | None  # None for a request of TVM's
    address: str
    until: float = 0.0  # without a connection: when it is lost
    reserving: bool = False
    missed: bool = False  # a whole settling, since it was last there: it reserves nothing after the next restart


class SettlingMachine(RuleBasedStateMachine):
    """The model: who waits on which connection, and which places are without one."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.scene.wait(60)
        self.numbers = itertools.count(1)
        self.settled_at = 0.0
        self.waiting: dict[int, Place] = {}
        self.away: list[Place] = []
        self.servers: dict[int, str] = {}
        self.facts: dict[str, DeviceFacts] = {}  # by match key, of all offers
        self.granted: set[str] = set()

    # Servers.

    @rule(key=st.sampled_from(KEYS), rev=st.sampled_from([*REVS, None]))
    def server_comes(self, key, rev):
        number = next(self.numbers)
        if rev is None:
            conn = self.scene.tvm_server(key)
        else:
            conn = self.scene.server(key, f"s{number}", number, slots=9, labels={"rev": rev})
        self.servers[conn] = key
        self.offer(conn, rev)

    def offer(self, conn, rev):
        key = self.servers[conn]
        match_key = f"{key}:{next(self.numbers)}"
        labels = {} if rev is None else {"rev": rev}
        self.facts[match_key] = facts_of(key, "", labels, ()) if labels else facts_of_key(key)
        self.scene.put(conn, match_key)
        self.look()

    # Clients.

    @rule(key=st.sampled_from(KEYS), rev=st.sampled_from([None, None, *REVS]))
    def ours_asks(self, key, rev):
        labels = {} if rev is None else {"rev": rev}
        self.ask_ours(Place(next(self.numbers), wants_of(key, labels), "", ADDRESSES[0]))

    def ask_ours(self, place):
        conn = self.scene.client()
        fields = {"ticket": place.ticket} if place.ticket else {}
        labels = place.wants.labels
        heard = self.scene.ask(conn, "request", key=place.wants.key, labels=labels, wait_for_key=True, **fields)
        self.waiting[conn], place.missed = place, False
        place.ticket = next((message["ticket"] for message in heard if "ticket" in message), "granted at once")
        self.scene.heard[conn] = heard
        self.look()

    @rule(key=st.sampled_from(KEYS), address=st.sampled_from(ADDRESSES))
    def tvms_asks(self, key, address):
        alike = [each for each in self.away if each.ticket is None and (each.wants.key, each.address) == (key, address)]
        place = min(alike, key=lambda each: each.order, default=None)
        if place is None:
            place = Place(next(self.numbers), wants_of(key, {}), None, address)
        else:
            self.away.remove(place)
        conn = self.scene.connect(address)
        self.waiting[conn], place.missed = place, False
        self.scene.heard[conn] = self.scene.say(conn, [4, key, "ann", 1])
        self.look()

    @precondition(lambda self: any(place.ticket for place in self.away))
    @rule(data=st.data())
    def ours_returns(self, data):
        place = data.draw(st.sampled_from([place for place in self.away if place.ticket]))
        self.away.remove(place)
        self.ask_ours(place)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def client_leaves(self, data):
        conn = data.draw(st.sampled_from(list(self.waiting)))
        place = self.waiting.pop(conn)
        self.scene.leave(conn)
        if place.ticket:
            self.away.append(place)
            place.until, place.reserving = self.scene.now + TICKET_S, False
        self.look()

    # Time.

    @rule(after_s=st.sampled_from([0.1, 2.0]))
    def tracker_restarts(self, after_s):
        self.time_passes(RECORD_S)
        self.scene = again(self.scene, after_s)
        self.settled_at = self.scene.now + SETTLE_S
        self.away += self.waiting.values()
        self.waiting, self.servers = {}, {}
        for place in self.away:
            place.until = self.scene.now + (TICKET_S if place.ticket else TVM_TICKET_S)
            place.reserving = not place.missed

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 8.0]))
    def time_passes(self, seconds):
        self.scene.wait(seconds)
        for place in self.away:
            place.missed |= place.reserving and self.scene.now >= self.settled_at
        self.away = [place for place in self.away if place.until > self.scene.now]
        self.look()

    # What holds.

    def absent(self):
        return [place for place in self.away if place.reserving and self.scene.now < self.settled_at]

    def look(self):
        """Take what was granted, and compare it with what still waits."""
        served: list[tuple[Place, str]] = []
        for conn in list(self.waiting):
            keys = self.scene.granted(conn)
            served += [(self.waiting.pop(conn), match_key) for match_key in keys]
        for place, match_key in served:
            assert match_key not in self.granted
            self.granted.add(match_key)
            facts = self.facts[match_key]
            assert place.wants.fit(facts)
            passed = [each for each in self.waiting.values() if each.order < place.order and each.wants.fit(facts)]
            assert not passed, "it was served before an earlier place"
            assert not any(each.wants.fit(facts) for each in self.absent()), "it was reserved"

    @invariant()
    def only_what_is_reserved_is_kept_from_those_who_wait(self):
        records = self.scene.state.records
        for place in self.waiting.values():
            assert records.free_offers.find(place.wants) is None
        reserved = [] if records.settling is None else records.settling.reserved.all()
        for offer in reserved:
            assert any(place.wants.fit(self.facts[offer.match_key]) for place in self.absent())

    def teardown(self):
        assert self.scene.replayed() == self.scene.state


def machine_test(steps=30, examples=40, **more):
    checked = settings(max_examples=examples, stateful_step_count=steps, deadline=None, **more)
    run_state_machine_as_test(SettlingMachine, settings=checked)


def test_places_hold_over_restarts():
    machine_test()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_places_hold_over_restarts_at_length():
    machine_test(60, 400)


def test_a_tracker_that_reserves_nothing_is_found_out(monkeypatch):
    monkeypatch.setattr(Settling, "reserves", lambda self, facts: False)
    with pytest.raises(AssertionError, match="it was"):
        machine_test(examples=1000, phases=[Phase.generate])  # it ends with the first that finds it
