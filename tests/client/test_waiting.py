"""The exchange with a tracker from the request to the leases, with scripted links."""

import time

import pytest

from rpcsys.client import waiting as module
from rpcsys.client.waiting import Wanted, give_back, wait
from rpcsys.errors import NotSupported, ProtocolError, TrackerLost, TrackerUnreachable, UnknownKey, WaitTimeout

WANTED = Wanted("rpi4", {}, 1, 1, None, False)
LEASE = {"lease": "l", "epoch": 1, "key": "rpi4", "host": "h", "port": 1, "matchkey": "rpi4:1"}


class FakeLink:
    """Answers each question with the next of ``script``: events, then an answer or an exception."""

    def __init__(self, *script, ours=True, follows=False):
        self.script, self.ours, self.follows = list(script), ours, follows
        self.asked, self.closed = [], False

    def ask(self, op, *, timeout, on_event=None, **fields):
        self.asked.append((op, fields))
        *events, end = self.script.pop(0)
        for event in events:
            on_event(event)
        if isinstance(end, BaseException):
            raise end
        return end

    def command(self, frame, *, timeout):
        self.asked.append(frame)
        (end,) = self.script.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def close(self):
        self.closed = True


def queued(ticket, position=1):
    place = {"position": position, "ahead": position - 1, "eta_s": None, "holders": []}
    return {"event": "queued", "ticket": ticket, **place}


def test_a_request_has_all_fields_and_returns_leases():
    link, told = FakeLink((queued("t"), {"leases": [LEASE]})), []
    assert wait(link, WANTED, None, told.append, None) == (link, [LEASE])
    ((op, fields),) = link.asked
    assert (op, fields["key"], fields["count"], fields["ticket"]) == ("request", "rpi4", 1, None)
    assert [event["position"] for event in told] == [1]


def test_a_place_that_the_tracker_has_lost_is_a_warning(caplog):
    links = [FakeLink((queued(ticket), TrackerLost("gone"))) for ticket in ("t", "t", "other")]
    links.append(FakeLink(({"leases": [LEASE]},)))
    wait(links.pop(0), WANTED, None, None, lambda timeout: links.pop(0))
    lost = "the tracker is back without the place in the queue: the request waits as a new one"
    assert [message for message in caplog.messages if "back" in message] == [lost]


def test_the_place_in_one_more_site_is_no_lost_place(caplog):
    links = [FakeLink((queued("t"), queued("t+u"), TrackerLost("gone"))), FakeLink(({"leases": [LEASE]},))]
    wait(links.pop(0), WANTED, None, None, lambda timeout: links.pop(0))
    assert [message for message in caplog.messages if "back" in message] == []


def test_a_request_reconnects_and_keeps_its_place(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", (0.001, 0.002))
    first = FakeLink((queued("t1"), TrackerLost("gone")))
    second = FakeLink((queued("t2"), TrackerLost("gone again")))
    third = FakeLink(({"leases": [LEASE]},))
    links = [TrackerUnreachable("not yet"), second, TrackerUnreachable("not yet"), third]

    def reopen(timeout):
        link = links.pop(0)
        if isinstance(link, Exception):
            raise link
        return link

    assert wait(first, WANTED, None, None, reopen) == (third, [LEASE])
    assert [link.asked[0][1]["ticket"] for link in (first, second, third)] == [None, "t1", "t2"]
    assert first.closed
    assert second.closed


def test_a_tracker_that_stays_away_is_tracker_lost(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", (0.001, 0.002))
    monkeypatch.setattr(module, "RETURN_S", 0.05)

    def reopen(timeout):
        raise TrackerUnreachable("no")

    with pytest.raises(TrackerLost, match="gone"):
        wait(FakeLink((queued("t"), TrackerLost("gone"))), WANTED, None, None, reopen)


def test_without_a_ticket_a_loss_is_raised_at_once():
    link = FakeLink((TrackerLost("gone"),))
    with pytest.raises(TrackerLost):
        wait(link, WANTED, None, None, None)
    assert link.closed


@pytest.mark.parametrize("end", [UnknownKey("x"), KeyboardInterrupt(), WaitTimeout("x")])
def test_any_error_of_the_wait_closes_the_link(end):
    link = FakeLink((queued("t"), end))
    with pytest.raises(type(end)):
        wait(link, WANTED, time.monotonic() + 5, None, None)
    assert link.closed


def test_an_invalid_answer_is_refused():
    for answer in ({}, {"leases": []}, {"leases": [LEASE, LEASE]}):
        with pytest.raises(ProtocolError):
            wait(FakeLink((answer,)), WANTED, None, None, None)


def test_tvms_tracker():
    link = FakeLink(([0, ["h", 1, "rpi4:1"]],), ours=False)
    assert wait(link, WANTED, None, None, None)[1] == [{"key": "rpi4", "host": "h", "port": 1, "matchkey": "rpi4:1"}]
    for wanted in (
        Wanted("k", {}, 2, 1, None, False),
        Wanted("k", {"a": "b"}, 1, 1, None, False),
        Wanted(None, {}, 1, 1, None, False),
    ):
        with pytest.raises(NotSupported):
            wait(FakeLink(ours=False), wanted, None, None, None)
    with pytest.raises(WaitTimeout):
        wait(FakeLink((TimeoutError(),), ours=False), WANTED, time.monotonic() + 1, None, None)


def test_unused_leases_are_released_with_the_reason():
    other = {**LEASE, "lease": "l2"}
    link = FakeLink(({},), ({},))
    give_back(link, [LEASE, other], other, "no route")
    (_, first), (_, second) = link.asked
    assert (first["lease"], first["problem"]) == ("l", "")
    assert (second["lease"], second["problem"]) == ("l2", "no route")
    give_back(FakeLink(ours=False), [LEASE], LEASE, "no route")


@pytest.mark.parametrize("events", [(), (queued("t"),)])
def test_of_replicas_the_next_one_is_asked_with_or_without_a_ticket(events):
    """The leader may hang before it has told of the place in the queue."""
    first = FakeLink((*events, TrackerLost("another tracker leads now")), follows=True)
    second = FakeLink(({"leases": [LEASE]},), follows=True)
    assert wait(first, WANTED, None, lambda event: None, lambda timeout: second) == (second, [LEASE])
    assert second.asked[0][1]["ticket"] == ("t" if events else None)


def test_of_replicas_a_lease_is_released_by_the_server_if_the_leader_is_gone():
    give_back(FakeLink((TrackerLost("gone"),), follows=True), [LEASE], LEASE, "no route")
    with pytest.raises(TrackerLost):
        give_back(FakeLink((TrackerLost("gone"),)), [LEASE], LEASE, "no route")


def test_who_waits_is_told_why_nobody_leads_for_as_long_as_replicas_stand_by(monkeypatch):
    monkeypatch.setattr(module, "RETURN_S", 2.0)
    began, told = time.monotonic(), []
    again = FakeLink((queued("t", 3), {"leases": [LEASE]}), follows=True)

    def reopen(timeout):
        if time.monotonic() - began < 4.0:
            raise TrackerUnreachable("no tracker leads at b (it stands by: no etcd answers)", stands_by=True)
        return again

    link = FakeLink((queued("t", 3), TrackerLost("gone")), follows=True)
    assert wait(link, WANTED, None, told.append, reopen)[1] == [LEASE]
    assert [(event["position"], event.get("note")) for event in told] == [
        (3, None),
        (3, "no tracker leads at b (it stands by: no etcd answers)"),
        (3, None),
    ]
    assert again.asked[0][1]["ticket"] == "t"


def test_standbys_do_not_make_a_wait_longer_than_allowed(monkeypatch):
    def reopen(timeout):
        raise TrackerUnreachable("nobody leads", stands_by=True)

    link = FakeLink((queued("t"), TrackerLost("gone")), follows=True)
    with pytest.raises(TrackerLost, match="gone"):
        wait(link, WANTED, time.monotonic() + 1.0, None, reopen)
