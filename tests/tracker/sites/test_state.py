"""Requests for several sites: one grant counts, all others come back, whatever is late, lost or cut off."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rpcsys.tracker.sites.state import (
    MAX_OF_CLIENT,
    TRANSITIONS,
    AskSite,
    Leave,
    PartEvent,
    PartState,
    SiteAction,
    SitesState,
    Tell,
)
from rpcsys.wire.control import Cancel, Release, Renew, Request
from rpcsys.wire.sites import split_ticket

OWN, PEERS = "berlin", ("paris", "rome")
SITES = (OWN, *PEERS)
CLIENT = 5


def asked(actions: list[SiteAction]) -> dict[str, Any]:
    """What each site is asked."""
    return {action.site: action.message for action in actions if isinstance(action, AskSite)}


def told(actions: list[SiteAction]) -> list[Any]:
    """What clients are told."""
    return [action.message for action in actions if isinstance(action, Tell)]


def a_lease(name: str) -> dict[str, Any]:
    return {"lease": name, "epoch": 1, "key": "rpi4", "host": "10.0.0.9", "port": 9, "matchkey": f"rpi4:{name}"}


def granted(number: int, *names: str) -> dict[str, Any]:
    return {"id": number, "ok": True, "leases": [a_lease(name) for name in names]}


def queued(number: int, ahead: int, ticket: str, note: str = "") -> dict[str, Any]:
    place = {"position": ahead + 1, "ahead": ahead, "eta_s": None, "holders": [], "note": note}
    return {"id": number, "event": "queued", "ticket": ticket, **place}


@pytest.fixture
def state() -> SitesState:
    """Three sites that can be reached."""
    made = SitesState(OWN, PEERS)
    for site in PEERS:
        assert made.reached(site) == []
    return made


def begin(state: SitesState, sites: tuple[str, ...] = SITES, id: int | None = 1, **more: Any) -> dict[str, int]:
    """Ask sites for a request; the number of each question."""
    message = Request(id or 0, "rpi4", **more)
    return {site: each.id for site, each in asked(state.request(CLIENT, message, sites, {}, id=id)).items()}


def test_every_site_is_asked_at_once_and_the_first_grant_counts(state: SitesState) -> None:
    numbers = begin(state)
    assert [*numbers] == [*SITES]
    actions = state.answered(numbers["paris"], granted(numbers["paris"], "paris.1-1"))
    assert told(actions) == [granted(1, "paris.1-1")]
    others = asked(actions)
    assert {site: (type(each), each.request) for site, each in others.items()} == {
        site: (Cancel, numbers[site]) for site in (OWN, "rome")
    }


def test_a_second_grant_is_given_back(state: SitesState) -> None:
    numbers = begin(state, count=2)
    state.answered(numbers["paris"], granted(numbers["paris"], "paris.1-1", "paris.1-2"))
    actions = state.answered(numbers["rome"], granted(numbers["rome"], "rome.1-1", "rome.1-2"))
    released = [action.message for action in actions if isinstance(action, AskSite)]
    assert [(type(each), each.lease) for each in released] == [(Release, "rome.1-1"), (Release, "rome.1-2")]
    assert told(actions) == []


def test_a_client_of_tvm_gets_what_tvms_tracker_sends(state: SitesState) -> None:
    numbers = begin(state, id=None)
    assert told(state.queued(numbers["paris"], queued(numbers["paris"], 0, "1@paris.1"))) == []
    actions = state.answered(numbers["paris"], granted(numbers["paris"], "paris.1-1"))
    assert told(actions) == [[0, ["10.0.0.9", 9, "rpi4:paris.1-1"]]]


def test_the_best_place_is_told_with_the_tickets_of_all(state: SitesState) -> None:
    numbers = begin(state, (OWN, "paris"))
    state.queued(numbers[OWN], queued(numbers[OWN], 4, "1@berlin.1", "taken by mo"))
    (event,) = told(state.queued(numbers["paris"], queued(numbers["paris"], 2, "2@paris.1", "taken by jo")))
    assert (event["id"], event["ahead"], event["note"]) == (1, 2, "taken by jo (site paris)")
    assert split_ticket(event["ticket"]) == {OWN: "1@berlin.1", "paris": "2@paris.1"}
    (event,) = told(state.cut("paris"))
    assert (event["ahead"], event["note"]) == (4, "taken by mo (site berlin); site paris cannot be reached")
    assert event["ticket"] == "1@berlin.1+2@paris.1"


def test_the_ticket_of_a_request_only_grows(state: SitesState) -> None:
    numbers = begin(state)
    tickets = []
    for site in ("rome", OWN, "paris", "rome"):
        (event,) = told(state.queued(numbers[site], queued(numbers[site], 3, f"7@{site}.1")))
        tickets.append(event["ticket"])
    assert all(later.startswith(earlier) for earlier, later in pairwise(tickets))
    assert tickets[-1] == "7@rome.1+7@berlin.1+7@paris.1"


def test_a_site_where_nobody_has_a_device_is_no_better_place(state: SitesState) -> None:
    numbers = begin(state, (OWN, "paris"))
    state.queued(numbers[OWN], queued(numbers[OWN], 0, "1@berlin.1"))
    there = {**queued(numbers["paris"], 5, "2@paris.1"), "holders": [{"user": "jo"}]}
    assert told(state.queued(numbers["paris"], there))[0]["ahead"] == 5


def test_a_site_that_is_healed_is_asked_again_with_its_ticket(state: SitesState) -> None:
    numbers = begin(state, ("paris",))
    state.queued(numbers["paris"], queued(numbers["paris"], 2, "2@paris.1"))
    (event,) = told(state.cut("paris"))
    assert event["note"] == "site paris cannot be reached"
    assert asked(state.reached("paris"))["paris"].ticket == "2@paris.1"


def test_a_request_of_a_site_that_is_cut_off_waits_and_is_told_so(state: SitesState) -> None:
    state.cut("rome")
    (event,) = told(state.request(CLIENT, Request(1, "rpi4"), ("rome",), {"rome": "7@rome.1"}, id=1))
    assert (event["ticket"], event["note"]) == ("7@rome.1", "site rome cannot be reached")
    assert told(state.cancel(CLIENT, Cancel(2, 1)))[0]["error"] == "Cancelled"
    assert asked(state.reached("rome")) == {}


def test_it_is_refused_when_no_site_can_serve_it(state: SitesState) -> None:
    numbers = begin(state, (OWN, "paris"))
    no = {"ok": False, "error": "UnknownKey", "message": "no server offers 'rpi4'"}
    assert state.answered(numbers[OWN], {"id": numbers[OWN], **no}) == []
    actions = state.answered(numbers["paris"], {"id": numbers["paris"], **no})
    assert told(actions) == [{"id": 1, **no}]
    numbers = begin(state, (OWN, "paris"))
    state.answered(numbers[OWN], {"id": numbers[OWN], **no})
    late = {"id": numbers["paris"], "ok": False, "error": "WaitTimeout", "message": "no device"}
    (answer,) = told(state.answered(numbers["paris"], late))
    assert (answer["error"], answer["message"]) == ("WaitTimeout", "berlin: no server offers 'rpi4'; paris: no device")


def test_it_has_waited_long_enough(state: SitesState) -> None:
    state.cut("rome")
    state.request(CLIENT, Request(1, "rpi4"), ("paris", "rome"), {}, id=1, until=50.0)
    assert state.expired(49.0) == []
    actions = state.expired(50.0)
    (answer,) = told(actions)
    assert (answer["error"], "site rome cannot be reached" in answer["message"]) == ("WaitTimeout", True)
    assert [*asked(actions)] == ["paris"]


def test_a_question_about_a_lease_goes_to_its_site(state: SitesState) -> None:
    renewal = asked(state.about_lease(CLIENT, Renew(9, "paris.1-1", 60.0), "paris"))["paris"]
    assert (renewal.lease, renewal.session_timeout) == ("paris.1-1", 60.0)
    assert told(state.answered(renewal.id, {"id": renewal.id, "ok": True, "limit_s": 60.0})) == [
        {"id": 9, "ok": True, "limit_s": 60.0}
    ]
    state.about_lease(CLIENT, Renew(10, "paris.1-1", 60.0), "paris")
    (refusal,) = told(state.cut("paris"))
    assert (refusal["id"], refusal["message"].startswith("site paris cannot be reached now")) == (10, True)
    assert told(state.about_lease(CLIENT, Renew(11, "paris.1-1", 60.0), "paris"))[0]["ok"] is False


def test_the_sites_of_a_client_hear_that_it_has_gone(state: SitesState) -> None:
    numbers = begin(state, ("paris", "rome"))
    state.cut("rome")
    assert [(action.site, action.client) for action in state.left(CLIENT) if isinstance(action, Leave)] == [
        ("paris", CLIENT)
    ]
    assert state.answered(numbers["paris"], granted(numbers["paris"], "paris.1-1")) == []
    assert (state.left(CLIENT), state.parts, state.requests) == ([], {}, {})


def test_what_a_client_may_wait_for_is_bounded(state: SitesState) -> None:
    for number in range(MAX_OF_CLIENT):
        begin(state, ("paris",), number)
    assert "wait on this connection already" in state.problem(CLIENT, MAX_OF_CLIENT)
    assert state.problem(CLIENT + 1, 1) == ""


def test_an_id_is_in_use_once(state: SitesState) -> None:
    begin(state)
    assert "in use" in state.problem(CLIENT, 1)
    assert state.problem(CLIENT, 2) == state.problem(CLIENT, None) == ""


def test_nothing_comes_of_a_part_that_is_over() -> None:
    assert TRANSITIONS[PartState.OVER] == {}
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == {*PartState}
    assert {event for row in TRANSITIONS.values() for event in row} == {*PartEvent}


#: Mostly all sites.
SOME = st.just(frozenset(SITES)) | st.frozensets(st.sampled_from(SITES), min_size=1)


class Site:
    """A tracker at the other end of a link, which keeps its order. A link that breaks loses what is under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = name == OWN
        self.to: deque[AskSite | Leave] = deque()
        self.back: deque[dict[str, Any]] = deque()
        self.waiting: dict[int, int] = {}  # questions, and their clients
        self.leases: dict[str, int] = {}
        self._made = 0

    def take(self, action: AskSite | Leave) -> None:
        if isinstance(action, Leave):
            self.waiting = {number: client for number, client in self.waiting.items() if client != action.client}
            self.leases = {lease: client for lease, client in self.leases.items() if client != action.client}
            return
        message = action.message
        if isinstance(message, Request):
            assert message.id not in self.waiting, "it has it already"
            self.waiting[message.id] = action.client
            return
        if isinstance(message, Cancel) and self.waiting.pop(message.request, None) is not None:
            self.back.append({"id": message.request, "ok": False, "error": "Cancelled", "message": "cancelled"})
        elif isinstance(message, Release):
            del self.leases[message.lease]
        self.back.append({"id": message.id, "ok": True})

    def grant(self, number: int) -> None:
        self._made += 1
        name = f"{self.name}.1-{self._made}"
        self.leases[name] = self.waiting.pop(number)
        self.back.append(granted(number, name))

    def forget(self) -> None:
        self.up = False
        for each in (self.to, self.back, self.waiting, self.leases):
            each.clear()


class SeveralSites(RuleBasedStateMachine):
    """Three sites, whose links are slow and break, and clients that come, cancel and go."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SitesState(OWN, PEERS)
        self.sites = {name: Site(name) for name in SITES}
        self.open: dict[tuple[int, int], None] = {}  # requests that are not answered
        self.answers: Counter[tuple[int, int]] = Counter()
        self.holders: dict[str, int] = {}  # leases that a living client was told of
        self.ids = 0

    def carry_out(self, actions: list[SiteAction]) -> None:
        for action in actions:
            if not isinstance(action, Tell):
                site = self.sites[action.site]
                assert site.up, "it cannot be reached"
                site.to.append(action)
            elif "event" in action.message:
                assert (action.client, action.message["id"]) in self.open, "it is answered already"
            elif "leases" in action.message or "error" in action.message:
                self.answers[action.client, action.message["id"]] += 1
                del self.open[action.client, action.message["id"]]
                for lease in action.message.get("leases", ()):
                    self.holders[lease["lease"]] = action.client

    @rule(client=st.integers(1, 3), wanted=SOME)
    def request(self, client: int, wanted: frozenset[str]) -> None:
        self.ids += 1
        self.open[client, self.ids] = None
        sites = [site for site in SITES if site in wanted]
        self.carry_out(self.state.request(client, Request(self.ids, "rpi4"), sites, {}, id=self.ids))

    @rule(sites=SOME, count=st.integers(1, 5))
    def ask(self, sites: frozenset[str], count: int) -> None:
        for there in map(self.sites.__getitem__, sorted(sites)):
            for _ in range(min(count, len(there.to))):
                there.take(there.to.popleft())

    @rule(site=st.sampled_from(SITES), count=st.integers(1, 5))
    def answer(self, site: str, count: int) -> None:
        back = self.sites[site].back
        for _ in range(min(count, len(back))):
            message = back.popleft()
            taken = self.state.queued if "event" in message else self.state.answered
            self.carry_out(taken(message["id"], message))

    @rule(sites=SOME, which=st.integers(0, 9))
    def grant(self, sites: frozenset[str], which: int) -> None:
        for there in self.serving(sites):
            there.grant([*there.waiting][which % len(there.waiting)])

    @rule(sites=SOME, which=st.integers(0, 9), refused=st.booleans())
    def refuse_or_tell_the_place(self, sites: frozenset[str], which: int, refused: bool) -> None:
        for there in self.serving(sites):
            number = [*there.waiting][which % len(there.waiting)]
            if refused:
                del there.waiting[number]
                there.back.append({"id": number, "ok": False, "error": "UnknownKey", "message": "no server"})
            else:
                there.back.append(queued(number, which, f"{number}@{there.name}.1"))

    def serving(self, sites: frozenset[str]) -> list[Site]:
        return [self.sites[site] for site in sorted(sites) if self.sites[site].waiting]

    @rule(site=st.sampled_from(PEERS))
    def break_or_heal(self, site: str) -> None:
        there = self.sites[site]
        if not there.up:
            there.up = True
            self.carry_out(self.state.reached(site))
            return
        self.holders = {lease: client for lease, client in self.holders.items() if lease not in there.leases}
        there.forget()
        self.carry_out(self.state.cut(site))

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.open:
            client, number = [*self.open][which % len(self.open)]
            self.carry_out(self.state.cancel(client, Cancel(10_000 + self.ids, number)))
            assert (client, number) not in self.open

    @rule(client=st.integers(1, 9))  # most have come never
    def leave(self, client: int) -> None:
        self.open = {each: None for each in self.open if each[0] != client}
        self.holders = {lease: holder for lease, holder in self.holders.items() if holder != client}
        self.carry_out(self.state.left(client))

    @invariant()
    def each_is_answered_once(self) -> None:
        assert set(self.answers.values()) <= {1}
        assert {(request.client, request.id) for request in self.state.requests} == {*self.open}

    def teardown(self) -> None:
        """All that is under way arrives: then a device is out only if a living client knows of it."""
        while any(site.to or site.back for site in self.sites.values()):
            self.ask(frozenset(SITES), 100)
            for name in SITES:
                self.answer(name, 100)
        self.each_is_answered_once()
        out = {lease: client for site in self.sites.values() for lease, client in site.leases.items()}
        assert out == self.holders
        waits = {number for number, part in self.state.parts.items() if part.state is not PartState.AWAY}
        assert {number for site in self.sites.values() for number in site.waiting} == waits


TestSeveralSites = SeveralSites.TestCase
TestSeveralSites.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
