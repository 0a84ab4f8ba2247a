"""A client of a tracker with replicas: requests, questions and leases go on where another one leads."""

from __future__ import annotations

import asyncio
import threading

import pytest

import rpcsys
from rpcsys.client.tracker import connect_tracker
from rpcsys.client.waiting import Wanted, wait
from rpcsys.errors import TrackerUnreachable
from rpcsys.link.address import Addresses
from tests.link.fake_replicas import eventually, replicas

LEASE = {"lease": "l", "epoch": 1, "key": "rpi4", "host": "h", "port": 1, "matchkey": "rpi4:1"}
WANTED = Wanted("rpi4", {}, 1, 1, None, False)
MODULE = {"name": "m", "version": "1", "server": "s", "host": "h", "port": 1, "key": "k"}


@pytest.fixture
def group():
    with replicas() as made:
        yield made


def answering(group):
    """Answers for each question: a request waits at the first leader, and is granted by the later ones."""

    def replies(asked):
        answer = {"id": asked["id"], "ok": True}
        if asked["op"] == "request" and group.term == 1:
            place = {"position": 1, "ahead": 0, "eta_s": None, "holders": [], "note": ""}
            return [{"id": asked["id"], "event": "queued", "ticket": "t", **place}]
        more = {"request": {"leases": [LEASE]}, "renew": {"limit_s": 60.0}, "drain": {"changed": True}}
        return [{**answer, **more.get(asked["op"], {})}]

    group.replies = replies


def lookout(group):
    return eventually(lambda: sum(one.lookouts for one in group.each) == 1)


def asked(replica, op):
    return [one for one in replica.received if isinstance(one, dict) and one["op"] == op]


@pytest.mark.parametrize("fate", ["hangs", "is killed"])
def test_a_waiting_request_keeps_its_ticket_at_the_next_leader(group, fate):
    answering(group)
    events, results = [], []
    with connect_tracker(group.text) as tracker:

        def request():
            link, leases = wait(tracker._take(), WANTED, None, events.append, tracker._open)
            tracker._idle.append(link)
            results.append(leases)

        thread = threading.Thread(target=request)
        thread.start()
        eventually(lambda: events)
        lookout(group)
        group.each[0].pause() if fate == "hangs" else group.each[0].die()
        group.lead(1)
        thread.join(20)
        assert results == [[LEASE]]
        (again,) = asked(group.each[1], "request")
        assert again["ticket"] == "t"


@pytest.mark.parametrize("fate", ["hangs", "is killed"])
def test_a_lease_is_renewed_at_the_next_leader(group, fate):
    answering(group)
    with connect_tracker(group.text) as tracker:
        assert tracker.renew("l", 60) == 60
        group.each[0].pause() if fate == "hangs" else group.each[0].die()
        group.lead(2)
        assert tracker.renew("l", 60) == 60
        assert tracker.drain("board") is True
        assert len(asked(group.each[2], "renew")) == len(asked(group.each[2], "drain")) == 1


def test_a_question_that_hangs_is_asked_the_next_leader(group):
    answering(group)
    results, answers = [], group.replies
    with connect_tracker(group.text) as tracker:
        assert tracker.renew("l", 60) == 60
        group.replies = lambda question: []
        thread = threading.Thread(target=lambda: results.append(tracker.renew("l", 60)))
        thread.start()
        eventually(lambda: len(asked(group.each[0], "renew")) == 2)
        group.each[0].pause()
        group.replies = answers
        group.lead(1)
        thread.join(20)
        assert results == [60]
        assert len(asked(group.each[1], "renew")) == 1


def test_without_a_leader_in_time_the_error_says_so(group):
    group.lead(None)
    with pytest.raises(TrackerUnreachable, match=r"no tracker leads at .*it stands by"):
        connect_tracker(group.text, timeout=1.0)


def test_addresses_from_the_environment(group, monkeypatch):
    monkeypatch.setenv("RPCSYS_TRACKER", group.text)
    with connect_tracker() as tracker:
        assert isinstance(tracker.address, Addresses)
        assert repr(tracker) == f"<tracker {group.text}>"
    with connect_tracker(tracker.address) as again:
        assert again.address.all == tracker.address.all


def test_a_closed_tracker_leaves_no_lookout(group):
    with connect_tracker(group.text) as tracker:
        tracker.renew("l")
    eventually(lambda: not any(one.connections for one in group.each))


def test_tasks_follow_too(group):
    answering(group)

    async def main():
        async with await rpcsys.aio.connect_tracker(group.text) as tracker:
            assert await tracker.renew("l", 60) == 60
            group.each[0].pause()
            group.lead(1)
            return await tracker.renew("l", 60)

    assert asyncio.run(main()) == 60
    assert len(asked(group.each[1], "renew")) == 1
