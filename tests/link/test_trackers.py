"""Several addresses of a tracker: who leads is found, followed and left, whatever hangs or is gone."""

from __future__ import annotations

import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import Cancelled, NoTls, ProtocolError, TrackerLost, TrackerUnreachable, Unauthorized
from rpcsys.link import identity, tls, trackers
from rpcsys.link.address import Addresses
from rpcsys.link.credential import Credential
from rpcsys.link.link import Link, shared
from rpcsys.link.trackers import TRANSITIONS, Phase, Role, Trackers
from tests.link.fake_replicas import eventually, replicas
from tests.scripted_peers import WELCOME

A, B, C, ALIAS = [("10.0.0.1", 9190), ("10.0.0.2", 9190), ("10.0.0.3", 9190), ("lab-1", 9190)]
PLACES = st.sampled_from([A, B, C, ALIAS])
QUICK_S = 3.0  # what is at once may take so long on a machine that is busy; TCP gives up a silent peer after 14 s


# --- decisions ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.none() | PLACES, st.integers(0, 6))))
def test_the_term_never_goes_back(news):
    known = Trackers((A, B, C))
    for leader, term in news:
        before = known.leader, known.term
        taken = known.hears(leader, term)
        assert taken is (term >= before[1])
        assert (known.leader, known.term) == ((leader, term) if taken else before)


@given(st.none() | PLACES, st.sets(PLACES), PLACES, st.floats(0, 1, exclude_max=True))
def test_there_is_something_to_try_until_all_was_tried(leader, tried, main, jitter):
    known = Trackers((A, B, C))
    known.hears(leader, 1)
    found = known.next(tried)
    assert (found is None) is (tried >= {A, B, C} | ({leader} - {None}))
    assert found not in tried
    assert leader in (None, found) or leader in tried
    lookout = known.lookout(main, tried, jitter)
    assert lookout in {A, B, C} - {main, leader}
    assert lookout not in tried or tried >= {A, B, C} - {main, leader}


def test_there_may_be_no_place_for_a_lookout():
    known = Trackers((A, B))
    known.hears(ALIAS, 1)
    assert known.lookout(A, (), 0.9) == B
    known.hears(B, 2)
    assert known.lookout(A, (), 0.9) is None


@given(st.integers(0, 9), st.integers(0, 9))
def test_what_an_answer_means(known_term, term):
    known = Trackers((A, B))
    known.hears(A, known_term)
    leads = known.role({**WELCOME, "role": "leader", "term": term})
    assert leads is (Role.LEADER if term >= known_term else Role.DEPOSED)
    assert known.role({**WELCOME, "role": "standby", "term": term}) is Role.STANDBY
    assert known.role(WELCOME) is known.role({}) is Role.SINGLE


@pytest.mark.parametrize("term", [None, -1, 2**70, "1", True])
def test_a_leader_has_a_term(term):
    with pytest.raises(ProtocolError):
        Trackers((A, B)).role({**WELCOME, "role": "leader", "term": term})


def test_each_phase_can_be_left_but_the_last():
    assert set(TRANSITIONS) == set(Phase)
    assert [phase for phase, after in TRANSITIONS.items() if not after] == [Phase.OVER]


# --- to the leader -----------------------------------------------------------------------------


def test_the_leader_is_found_wherever_it_is_in_the_list():
    for leader in range(3):
        with replicas(leader=leader) as group, Link.open(group.text) as link:
            assert link.address == group.each[leader].address
            assert (link.ours, link.tracker["role"], link.follows) == (True, "leader", True)
            assert link.ask("summary", timeout=30)["ok"]
            assert [len(one.received) for one in group.each] == [int(n == leader) for n in range(3)]


def test_there_is_one_lookout():
    with replicas() as group, Link.open(group.text) as link:
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        link.ask("summary", timeout=30)
        assert group.each[0].lookouts == 0
        assert sum(len(one.hellos) for one in group.each) == 2
        assert all("replicas/1" in hello["capabilities"] for one in group.each for hello in one.hellos)


def test_one_address_alone_says_the_hello_of_old():
    with replicas(1) as group, Link.open(group.text, user="ann") as link:
        assert not link.follows
    assert group.each[0].hellos == [
        {"op": "hello", "version": group.each[0].hellos[0]["version"], "capabilities": ["session/1"], "user": "ann"}
    ]


def test_addresses_that_are_dead_are_passed_over():
    with replicas(3) as group:
        group.each[0].die()
        group.lead(2)
        with Link.open(group.text) as link:
            assert link.address == group.each[2].address
        group.each[1].die()
        with Link.open(group.text) as link:
            assert link.address == group.each[2].address
            assert link.ask("summary", timeout=30)["ok"]


def test_an_address_that_hangs_holds_up_nobody():
    with replicas(3, leader=2) as group:
        group.each[0].pause()
        before = time.monotonic()
        with Link.open(group.text, timeout=30) as link:
            assert link.address == group.each[2].address
        assert time.monotonic() - before < trackers.ALONE_S + QUICK_S


def test_if_all_fail_the_error_names_them_all_in_one_line():
    with replicas(2) as group:
        group.close()
        with pytest.raises(TrackerUnreachable) as caught:
            Link.open(group.text)
    places = ", ".join("{}:{} (Connection refused)".format(*one.address) for one in group.each)
    how = "start one with `rpcsys tracker`, or check the address of each"
    assert str(caught.value) == f"no tracker leads at {places}: {how}"


def test_what_is_no_tracker_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other, replicas(2, leader=1) as group:
        group.each[1].die()
        text = "{}:{},{}".format(*other.getsockname(), group.text)
        with pytest.raises(
            TrackerUnreachable, match=r"\(no answer in time.*it stands by.*Connection refused"
        ) as caught:
            Link.open(text, timeout=1.5)
        assert "one of them leads within seconds" in str(caught.value)


def test_while_nobody_leads_an_opening_waits():
    with replicas(leader=None) as group:
        link = Link(group.text, timeout=30)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        assert not link.ready
        group.lead(1)
        turn(link, lambda: link.ready)
        assert link.address == group.each[1].address
        link.close()


def test_if_nobody_leads_in_time_the_owner_comes_again_at_once():
    with replicas(leader=None) as group, Link(group.text, timeout=0.5) as link:
        with pytest.raises(TrackerUnreachable, match="unless they have lost their engine"):
            turn(link, lambda: False)
        assert link.at_once


def test_trackers_without_replicas_are_used_as_ever():
    with replicas(2) as group:
        for one in group.each:
            one._welcome = lambda *_: WELCOME
        with Link.open(group.text) as link:
            assert link.ask("summary", timeout=30)["ok"]
            assert "role" not in link.tracker
            assert link.due == float("inf")  # no lookout is looked for


def test_a_leader_at_an_address_outside_of_the_list_is_followed():
    with replicas(3, leader=2) as group:
        text = ",".join(group.text.split(",")[:2])
        with Link.open(text) as link:
            assert link.address == group.each[2].address


def test_a_refusal_of_the_leader_is_raised_as_it_is():
    with replicas(2) as group:
        group.each[0]._welcome = lambda *_: {"ok": False, "error": "Unauthorized", "message": "who are you?"}
        with pytest.raises(Unauthorized, match="who are you"):
            Link.open(group.text)


# --- to the next leader ------------------------------------------------------------------------


def turn(link, until, seconds=30.0):
    """Let the link do what it has to, until ``until()``."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        link._pump(time.monotonic() + 0.05)


@pytest.fixture
def lab():
    """Replicas, a link to the leader, and what its owner's links have in common."""
    with replicas() as group:
        known = shared(Addresses([one.address for one in group.each]))
        link = Link.open(known)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        yield group, known, link
        link.close()
        known.close()


def at(group):
    """The number of the replica at which the lookout is."""
    return next(number for number, one in enumerate(group.each) if one.lookouts)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("hangs", [True, False])
def test_a_leader_is_left_in_the_moment_another_one_leads(lab, hangs, here):
    group, known, link = lab
    if hangs:
        group.each[0].pause()
    following = at(group) if here else 3 - at(group)
    connections = [len(one.connections) for one in group.each]
    before = time.monotonic()
    group.lead(following)
    with pytest.raises(TrackerLost):
        link.receive(30)
    if hangs:
        assert link.at_once
    link.close()
    again = Link.open(known)
    assert again.address == group.each[following].address
    assert time.monotonic() - before < QUICK_S
    assert again.ask("summary", timeout=30)["ok"]
    if here and hangs:  # the lookout's own connection
        assert len(group.each[following].connections) == connections[following]
        assert len(group.each[following].hellos) == 2
    turn(again, lambda: sum(one.lookouts for one in group.each if one.running.is_set()) == 1)
    again.close()


def test_the_error_names_both(lab):
    group, _, link = lab
    group.each[0].pause()
    group.lead(1)
    with pytest.raises(TrackerLost) as caught:
        link.ask("summary", timeout=30)
    places = [":".join(map(str, group.each[number].address)) for number in (1, 0)]
    assert str(caught.value) == "another tracker leads now: {}, not {}".format(*places)


def test_news_of_a_lower_term_are_ignored(lab):
    group, known, link = lab
    group.lead(0)
    with pytest.raises(TrackerLost):
        link.receive(30)
    link.close()
    link = Link.open(known)
    assert known.term == 2
    turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
    group.each[at(group)].say(list(group.each[1].address), 1)
    group.each[at(group)].say(None, 0)
    with pytest.raises(TimeoutError):
        link.receive(0.3)
    assert (known.leader, known.term) == (group.each[0].address, 2)
    link.close()


def test_that_nobody_leads_ends_no_link(lab):
    group, known, link = lab
    group.each[at(group)].say(None, 1)
    with pytest.raises(TimeoutError):
        link.receive(0.3)
    assert known.leader is None
    assert link.ask("summary", timeout=30)["ok"]


def test_a_deposed_leader_that_wakes_is_not_believed(lab):
    group, known, link = lab
    group.each[0].pause()
    group.lead(1)
    with pytest.raises(TrackerLost):
        link.receive(30)
    link.close()
    deposed = group.each[0]
    deposed._welcome = lambda *_: {**WELCOME, "role": "leader", "term": 1}
    deposed.running.set()
    known.leader = deposed.address
    with Link.open(known) as again:
        assert again.address == group.each[1].address
    assert known.term == 2


def test_terms_that_begin_anew_are_taken_by_the_next_opening():
    """The engine was made anew: no leader has a term as high as the one that is known."""
    with replicas(2) as group:
        known = shared(Addresses([one.address for one in group.each]))
        known.hears(None, 1000)
        with pytest.raises(TrackerUnreachable, match="it led in an earlier term"):
            Link.open(known, timeout=0.5)
        with Link.open(known) as link:
            assert link.ready
        known.close()


def test_a_lookout_that_ends_is_replaced(lab):
    group, _, link = lab
    gone = at(group)
    group.each[gone].die()
    turn(link, lambda: group.each[3 - gone].lookouts == 1)
    assert link.ask("summary", timeout=30)["ok"]


@pytest.mark.parametrize(
    "news",
    [
        {"leader": "lab-1", "term": 2},
        {"leader": ["lab-1", 70000], "term": 2},
        {"leader": ["x" * 300, 9190], "term": 2},
        {"leader": None, "term": -1},
        {"leader": None, "term": 2**60},
        {"leader": None, "term": 2, "here": "yes"},
    ],
)
def test_false_news_end_the_lookout_alone(lab, news):
    group, known, link = lab
    group.each[at(group)].say(**news)
    turn(link, lambda: link._connection._lookout is None)
    assert link.ask("summary", timeout=30)["ok"]
    assert known.term == 1


def test_what_a_newer_standby_says_is_ignored(lab):
    group, _, link = lab
    where = at(group)
    (lookout,) = [one for one in group.each[where].connections if one.looks_out]
    lookout.send({"op": "weather", "sun": True}, [7], 0)
    with pytest.raises(TimeoutError):
        link.receive(0.3)
    assert group.each[where].lookouts == 1


def test_the_lookout_is_kept_between_links(lab):
    group, known, link = lab
    where = at(group)
    link.close()
    with Link.open(known) as again:
        turn(again, lambda: True)
        assert again.ask("summary", timeout=30)["ok"]
        assert [len(one.hellos) for number, one in enumerate(group.each) if number] == [
            int(number == where) for number in (1, 2)
        ]


def test_a_link_of_its_own_leaves_nothing():
    with replicas() as group:
        with Link.open(group.text) as link:
            turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        eventually(lambda: not any(one.connections for one in group.each))


def test_another_thread_ends_a_wait_for_a_leader():
    with replicas(leader=None) as group:
        link = Link(group.text, timeout=30)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        link.hang_up()
        with pytest.raises(Cancelled):
            turn(link, lambda: False)
        link.close()
        eventually(lambda: not any(one.connections for one in group.each))


# --- in a lab ----------------------------------------------------------------------------------


def test_a_lookout_is_inside_tls_too():
    own, spare = identity.new(), identity.new()
    with replicas(context=tls.server_context(own)) as group:
        pins = tuple(f"sha256:{one.pin}" for one in (own, spare))
        held = Credential("basement", "ann", tuple(group.text.split(",")), pins, "rpcsys_p_aaaaaaaa_" + "A" * 43)
        known = shared(Addresses([one.address for one in group.each]))
        link = Link.open(known, credential=held, timeout=30)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        assert all(hello["token"] == held.token for one in group.each for hello in one.hellos)
        group.each[0].pause()
        group.lead(at(group))
        with pytest.raises(TrackerLost):
            link.receive(30)
        link.close()
        again = Link.open(known, credential=held, timeout=30)
        assert again.ask("summary", timeout=30)["ok"]
        again.close()
        known.close()


def test_with_a_credential_nothing_is_said_in_the_clear():
    pins = ("sha256:" + "0" * 64, "sha256:" + "1" * 64)
    with replicas(2) as group:
        held = Credential("basement", "ann", tuple(group.text.split(",")), pins, "rpcsys_p_aaaaaaaa_" + "A" * 43)
        with pytest.raises(NoTls):
            Link.open(group.text, credential=held)
        assert not any(one.hellos for one in group.each)
