"""A link to replicas when another one leads, whatever hangs or is gone: left at once, and found again."""

from __future__ import annotations

import time

import pytest

from rpcsys.errors import Cancelled, NoTls, TrackerLost, TrackerUnreachable
from rpcsys.link import identity, tls
from rpcsys.link.address import Addresses, parse_tracker
from rpcsys.link.credential import Credential
from rpcsys.link.targets import open_link, shared
from rpcsys.link.trackers import LeaderLink
from tests.link.fake_replicas import eventually, replicas
from tests.link.test_trackers import QUICK_S, opened, turn
from tests.scripted_peers import WELCOME


@pytest.fixture
def lab():
    """Replicas, a link to the leader, and what its owner's links have in common."""
    with replicas() as group:
        known = shared(Addresses([one.address for one in group.each]))
        link = open_link(known)
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
    again = open_link(known)
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
    link = open_link(known)
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
    with open_link(known) as again:
        assert again.address == group.each[1].address
    assert known.term == 2


def test_terms_that_begin_anew_are_taken_by_the_next_opening():
    """The engine was made anew: no leader has a term as high as the one that is known."""
    with replicas(2) as group:
        known = shared(Addresses([one.address for one in group.each]))
        known.hears(None, 1000)
        with pytest.raises(TrackerUnreachable, match="it led in an earlier term"):
            open_link(known, timeout=0.5)
        with open_link(known) as link:
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
    told = link._lookout
    group.each[at(group)].say(**news)
    turn(link, lambda: link._lookout is not told)  # after a pause there is another one at once
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
    with open_link(known) as again:
        turn(again, lambda: True)
        assert again.ask("summary", timeout=30)["ok"]
        assert [len(one.hellos) for number, one in enumerate(group.each) if number] == [
            int(number == where) for number in (1, 2)
        ]


def test_a_link_of_its_own_leaves_nothing():
    with replicas() as group:
        with opened(group.text) as link:
            turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        eventually(lambda: not any(one.connections for one in group.each))


def test_another_thread_ends_a_wait_for_a_leader():
    with replicas(leader=None) as group:
        link = LeaderLink(parse_tracker(group.text), timeout=30)
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
        link = open_link(known, credential=held, timeout=30)
        turn(link, lambda: sum(one.lookouts for one in group.each) == 1)
        assert all(hello["token"] == held.token for one in group.each for hello in one.hellos)
        group.each[0].pause()
        group.lead(at(group))
        with pytest.raises(TrackerLost):
            link.receive(30)
        link.close()
        again = open_link(known, credential=held, timeout=30)
        assert again.ask("summary", timeout=30)["ok"]
        again.close()
        known.close()


def test_with_a_credential_nothing_is_said_in_the_clear():
    pins = ("sha256:" + "0" * 64, "sha256:" + "1" * 64)
    with replicas(2) as group:
        held = Credential("basement", "ann", tuple(group.text.split(",")), pins, "rpcsys_p_aaaaaaaa_" + "A" * 43)
        with pytest.raises(NoTls):
            opened(group.text, credential=held)
        assert not any(one.hellos for one in group.each)
