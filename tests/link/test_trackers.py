"""Several addresses of a tracker: who leads is found, followed and left, whatever hangs or is gone."""

from __future__ import annotations

import select
import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError, TrackerUnreachable, Unauthorized
from rpcsys.link import trackers
from rpcsys.link.address import parse_tracker
from rpcsys.link.targets import open_link
from rpcsys.link.trackers import TRANSITIONS, LeaderLink, Phase, ReplicaLink, Role, Trackers
from tests.link.fake_replicas import replicas
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


def opened(text, **options):
    return open_link(parse_tracker(text), **options)


def turn(link, until, seconds=30.0):
    """Let the link do what it has to, until ``until()``."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        link._pump(time.monotonic() + 0.05)


# --- to the leader -----------------------------------------------------------------------------


def test_the_leader_is_found_wherever_it_is_in_the_list():
    for leader in range(3):
        with replicas(leader=leader) as group, opened(group.text) as link:
            assert link.address == group.each[leader].address
            assert (link.ours, link.tracker["role"], link.follows) == (True, "leader", True)
            assert link.ask("summary", timeout=30)["ok"]
            assert [len(one.received) for one in group.each] == [int(n == leader) for n in range(3)]


def test_there_is_one_lookout():
    with replicas() as group, opened(group.text) as link:
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        link.ask("summary", timeout=30)
        assert group.each[0].lookouts == 0
        assert sum(len(one.hellos) for one in group.each) == 2
        assert all("replicas/1" in hello["capabilities"] for one in group.each for hello in one.hellos)


def test_one_address_alone_says_the_hello_of_old():
    with replicas(1) as group, opened(group.text, user="ann") as link:
        assert not link.follows
    assert group.each[0].hellos == [
        {"op": "hello", "version": group.each[0].hellos[0]["version"], "capabilities": ["session/1"], "user": "ann"}
    ]


def test_addresses_that_are_dead_are_passed_over():
    with replicas(3) as group:
        group.each[0].die()
        group.lead(2)
        with opened(group.text) as link:
            assert link.address == group.each[2].address
        group.each[1].die()
        with opened(group.text) as link:
            assert link.address == group.each[2].address
            assert link.ask("summary", timeout=30)["ok"]


def test_an_address_that_hangs_holds_up_nobody():
    with replicas(3, leader=2) as group:
        group.each[0].pause()
        before = time.monotonic()
        with opened(group.text, timeout=30) as link:
            assert link.address == group.each[2].address
        assert time.monotonic() - before < trackers.ALONE_S + QUICK_S


def test_if_all_fail_the_error_names_them_all_in_one_line():
    with replicas(2) as group:
        group.close()
        with pytest.raises(TrackerUnreachable) as caught:
            opened(group.text)
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
            opened(text, timeout=1.5)
        assert "one of them leads within seconds" in str(caught.value)


def test_why_nobody_leads_is_said_as_the_standbys_say_it():
    with replicas(2, leader=None) as group:
        group.more = {"why": "no etcd answers"}
        with pytest.raises(TrackerUnreachable, match="it stands by: no etcd answers") as caught:
            opened(group.text, timeout=1.5)
        assert caught.value.stands_by
        assert "one of them leads within seconds" in str(caught.value)
        group.close()
        with pytest.raises(TrackerUnreachable) as caught:
            opened(group.text)
        assert not caught.value.stands_by


def test_while_nobody_leads_an_opening_waits():
    with replicas(leader=None) as group:
        link = LeaderLink(parse_tracker(group.text), timeout=30)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        assert not link.ready
        group.lead(1)
        turn(link, lambda: link.ready)
        assert link.address == group.each[1].address
        link.close()


def test_if_nobody_leads_in_time_the_owner_comes_again_at_once():
    with replicas(leader=None) as group, LeaderLink(parse_tracker(group.text), timeout=0.5) as link:
        with pytest.raises(TrackerUnreachable, match="unless they have lost their engine"):
            turn(link, lambda: False)
        assert link.at_once


def test_trackers_without_replicas_are_used_as_ever():
    with replicas(2) as group:
        for one in group.each:
            one._welcome = lambda *_: WELCOME
        with opened(group.text) as link:
            assert link.ask("summary", timeout=30)["ok"]
            assert "role" not in link.tracker
            assert link.due == float("inf")  # no lookout is looked for


def test_a_leader_at_an_address_outside_of_the_list_is_followed():
    with replicas(3, leader=2) as group:
        text = ",".join(group.text.split(",")[:2])
        with opened(text) as link:
            assert link.address == group.each[2].address


def test_a_refusal_of_the_leader_is_raised_as_it_is():
    with replicas(2) as group:
        group.each[0]._welcome = lambda *_: {"ok": False, "error": "Unauthorized", "message": "who are you?"}
        with pytest.raises(Unauthorized, match="who are you"):
            opened(group.text)


# --- one replica -------------------------------------------------------------------------------


def connected(address, **more):
    return ReplicaLink(address, user="ann", capabilities=("session/1", "replicas/1"), timeout=30, **more)


def advance(connection, until):
    messages = []
    end = time.monotonic() + 30
    while not until(messages):
        assert time.monotonic() < end
        select.select([connection], [], [], 1)
        messages += connection.advance()
    return messages


def test_the_conversation_begins_anew_on_the_same_connection():
    with replicas(2) as group:
        connection = connected(group.each[1].address)
        advance(connection, lambda _: connection.ready)
        assert connection.tracker["role"] == "standby"
        number = connection.fileno()
        group.lead(1)
        (news,) = advance(connection, bool)
        assert (news["here"], news["term"]) == (True, 2)
        connection.begin_anew(30)
        assert not connection.ready
        assert connection.due < float("inf")
        advance(connection, lambda _: connection.ready)
        assert (connection.tracker["role"], connection.tracker["term"]) == ("leader", 2)
        assert connection.fileno() == number
        assert len(group.each[1].connections) == 1
        connection.close()


def test_why_there_is_no_answer_is_kept():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    connection = connected(address)
    with pytest.raises(TrackerUnreachable):
        advance(connection, lambda _: False)
    assert connection.reason == "Connection refused"
    connection.close()
    connection.close()
