"""The server's conversation with a tracker, which here is a script."""

from __future__ import annotations

import select
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor import tracker_link
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.tracker_link import FAREWELL_S, MAX_UNANSWERED, TrackerLink
from rpcsys.wire import tracker
from tests.liars import WELCOME, framed, lies

CARD = {
    "key": "k",
    "name": "n",
    "slots": 2,
    "port": 5000,
    "address": None,
    "labels": {"os": "linux"},
    "loads": (),
    "identity": "1f2e",
}
SOON_S = 15.0


class Script:
    """A tracker that says what a test has it say; ``ours`` decides how it answers the hello."""

    def __init__(self, ours):
        self.ours = ours
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.loop = Loop()
        self.events = self.loop.events
        self.link = TrackerLink(self.loop, [self.listener.getsockname()], CARD)
        self.reader = tracker.TrackerFrameReader()

    def meet(self):
        """Let the link connect and say hello."""
        self.link.connect()
        self.pump(self._accepted)
        self.sock.sendall(tracker.MAGIC_BYTES)
        assert self.hear()[0] == tracker.PING
        self.say({"ok": True, "tracker": "rpcsys", "version": "0"} if self.ours else 0)
        self.pump(lambda: self.events)
        (up,) = self.taken()
        assert (type(up), up.ours) == (ev.LinkUp, self.ours)

    def _accepted(self):
        self.listener.setblocking(False)
        try:
            self.sock, _ = self.listener.accept()
        except BlockingIOError:
            return False
        self.sock.setblocking(False)
        return True

    def pump(self, until):
        """Run the link's loop until something is the case."""
        end = time.monotonic() + SOON_S
        while True:
            found = until()
            if found:
                return found
            assert time.monotonic() < end
            self.loop.run_once(0.01)

    def hear(self):
        """The next message the link sends."""

        def message():
            try:
                self.reader.feed(self.sock.recv(65536))
            except BlockingIOError:
                pass
            frame = self.reader.next()
            return None if frame is None else [tracker.decode_json(frame)]

        return self.pump(message)[0]

    def say(self, message):
        self.sock.sendall(tracker.encode(message))

    def taken(self):
        """The events so far."""
        events = list(self.events)
        self.events.clear()
        return events

    def told(self, count=1):
        """The next ``count`` events."""
        self.pump(lambda: len(self.events) >= count)
        return self.taken()

    def close(self):
        self.link.close()
        self.loop.close()
        self.listener.close()
        self.sock.close()


@pytest.fixture
def ours():
    script = Script(ours=True)
    script.meet()
    yield script
    script.close()


@pytest.fixture
def tvms():
    script = Script(ours=False)
    script.meet()
    yield script
    script.close()


def register(script):
    script.link.register((("L0", 3, 1.5),))
    said = script.hear()
    script.say({"id": said["id"], "ok": True, "server": "s1"})
    assert [type(event) for event in script.told()] == [ev.Registered]
    return said


def test_registration_with_ours(ours):
    said = register(ours)
    assert said["op"] == "register"
    assert (said["key"], said["name"], said["slots"], said["port"]) == ("k", "n", 2, 5000)
    assert said["labels"] == {"os": "linux"}
    assert said["identity"] == "1f2e"
    assert said["running"] == [{"lease": "L0", "epoch": 3, "since_s": 1.5}]


def test_registration_refused(ours):
    ours.link.register(())
    ours.say({"id": ours.hear()["id"], "ok": False, "error": "BadRequest", "message": "no such key here"})
    (down,) = ours.told()
    assert isinstance(down, ev.LinkDown)
    assert "no such key here" in down.why


def test_match_keys_are_offered_and_never_the_same(ours):
    register(ours)
    for _ in range(2):
        ours.link.offer()
    offered = [event.matchkey for event in ours.told(2)]
    heard = [ours.hear(), ours.hear()]
    assert heard == [[tracker.PUT, "k", [5000, key], None] for key in offered]
    assert len(set(offered)) == 2
    assert all(len(key) == len("k:") + 32 for key in offered)


def test_a_match_key_that_was_made_before_is_offered(ours):
    register(ours)
    ours.link.make_key()
    (made,) = ours.told()
    assert isinstance(made, ev.KeyMade)
    ours.link.offer(made.matchkey)
    assert ours.hear() == [tracker.PUT, "k", [5000, made.matchkey], None]
    assert not ours.taken()


def test_one_of_several_addresses_and_a_proxy_without_a_tracker():
    script = Script(ours=True)
    script.link = TrackerLink(script.loop, [("127.0.0.1", 1), script.listener.getsockname()], {**CARD, "port": None})
    script.link.connect(1)
    script.pump(script._accepted)
    script.sock.sendall(tracker.MAGIC_BYTES)
    script.say({"ok": False, "error": "NoControlLink", "message": "this proxy has no tracker"})
    (down,) = script.told()
    assert (down.none, 0 <= down.jitter < 1) == (True, True)
    assert "this proxy has no tracker" in down.why
    script.link.connect(0)
    (down,) = script.told()
    assert not down.none
    script.close()


def test_orders_are_obeyed_and_answered(ours):
    register(ours)
    lease = {"lease": "L1", "epoch": 7}
    ours.say({"op": "taken", "id": 1, **lease, "matchkey": "k:1", "user": "u", "address": "a", "limit_s": 9})
    ours.say({"op": "end", "id": 2, **lease, "reason": "unused"})
    taken, end = ours.told(2)
    assert (taken.lease, taken.epoch, taken.matchkey, taken.limit_s) == ("L1", 7, "k:1", 9)
    assert (end.lease, end.epoch, end.reason) == ("L1", 7, "unused")
    assert [ours.hear(), ours.hear()] == [{"id": 1, "ok": True}, {"id": 2, "ok": True}]


def test_it_says_that_it_lives_when_it_is_asked(ours):
    register(ours)
    ours.say({"op": "keepalive", "id": 0})
    assert ours.hear() == {"id": 0, "ok": True}
    assert not ours.taken()


def test_orders_of_later_trackers_are_refused_politely(ours):
    register(ours)
    ours.say({"op": "drain", "id": 5, "server": None})
    ours.say({"op": "dance", "id": 6})
    answers = [ours.hear(), ours.hear()]
    assert [(answer["id"], answer["ok"]) for answer in answers] == [(5, False), (6, False)]
    assert not ours.taken()


def test_a_lease_that_cannot_be_is_refused_and_logged_now_and_then(ours, caplog):
    register(ours)
    told = {"op": "taken", "lease": "L1", "matchkey": "k:1", "user": "u", "address": "a", "limit_s": None}
    for number in range(3):
        ours.say({**told, "id": number, "epoch": 2**53 + 1})
        assert not ours.hear()["ok"]
    assert not ours.taken()
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "epoch" in line


def test_a_tracker_that_does_not_believe_the_proxy(ours):
    ours.link.register(())
    ours.say({"id": ours.hear()["id"], "ok": False, "error": "NoControlLink", "message": "type --proxy-from"})
    (down,) = ours.told()
    assert (type(down), down.none, down.why) == (ev.LinkDown, True, "type --proxy-from")


def test_reports_about_leases(ours):
    register(ours)
    ours.link.report_start("L1", 7, "10.0.0.1:5")
    ours.link.report_end("L1", 7, "crashed", ("sleep",), (), "")
    started, ended = ours.hear(), ours.hear()
    assert (started["op"], started["lease"], started["peer"]) == ("lease_started", "L1", "10.0.0.1:5")
    assert (ended["op"], ended["outcome"]) == ("lease_ended", "crashed")
    assert ended["cleaned"] == {"processes": ["sleep"]}
    assert started["id"] != ended["id"]


def test_a_tracker_that_leaves(ours):
    ours.sock.close()
    assert [type(event) for event in ours.told()] == [ev.LinkDown]


def test_a_tracker_that_talks_nonsense(ours):
    ours.say([1, 2, 3])
    assert [type(event) for event in ours.told()] == [ev.LinkDown]


def test_no_descriptors_left(ours, monkeypatch):
    def none(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("rpcsys.server.supervisor.tracker_link.Link", none)
    ours.link.connect()
    (down,) = ours.told()
    assert down.why == "Too many open files"


def test_no_tracker_at_all():
    script = Script(ours=True)
    script.listener.close()
    script.link.connect()
    (down,) = script.told()
    assert isinstance(down, ev.LinkDown)
    script.loop.close()


def test_registration_with_tvms(tvms):
    tvms.link.register(())
    assert tvms.hear() == [tracker.UPDATE_INFO, {"key": "server:k", "addr": [None, 5000]}]
    tvms.say(0)
    assert [type(event) for event in tvms.told()] == [ev.Registered]


def test_tvms_replies_come_in_order(tvms):
    tvms.link.offer()
    (offered,) = tvms.told()
    tvms.link.poll()
    assert [tvms.hear()[0], tvms.hear()[0]] == [tracker.PUT, tracker.GET_PENDING]
    tvms.say(0)
    tvms.say([offered.matchkey])
    (pending,) = tvms.told()
    assert pending.matchkeys == (offered.matchkey,)


def test_tvms_tracker_refuses(tvms):
    tvms.link.offer()
    tvms.told()
    tvms.say(-1)
    (down,) = tvms.told()
    assert "-1" in down.why


def test_tvms_tracker_that_stopped_answering(tvms):
    for _ in range(MAX_UNANSWERED + 2):
        tvms.link.poll()
    assert [type(event) for event in tvms.told()] == [ev.LinkDown]


# The end


def test_the_last_reports_are_heard_before_the_link_closes(ours, monkeypatch):
    monkeypatch.setattr(tracker_link, "FAREWELL_S", 3600.0)
    register(ours)
    ours.link.report_end("L1", 1, "closed", (), (), "")
    heard = ours.hear()
    answer = threading.Timer(0.3, ours.say, [{"id": heard["id"], "ok": True}])
    answer.start()
    ours.link.finish()
    answer.join()
    assert heard["lease"] == "L1"


def test_a_tracker_that_hears_nothing_holds_up_no_end(ours):
    register(ours)
    ours.link.report_end("L1", 1, "closed", (), (), "")
    started = time.monotonic()
    ours.link.finish()
    assert FAREWELL_S <= time.monotonic() - started < SOON_S


def test_where_nothing_was_reported_the_end_is_at_once(tvms, monkeypatch):
    monkeypatch.setattr(select, "select", None)
    tvms.link.finish()


LEASE = {"lease": "L1", "epoch": 7}
ORDERS = {
    "taken": {"op": "taken", "id": 1, **LEASE, "matchkey": "k:1", "user": "u", "address": "a", "limit_s": 9.5},
    "end": {"op": "end", "id": 2, **LEASE, "reason": "unused"},
    "limit": {"op": "limit", "id": 3, **LEASE, "limit_s": 9.5},
    "keepalive": {"op": "keepalive", "id": 0},
    "registered": {"id": 4, "ok": True, "server": "s1"},
    "refused": {"id": 4, "ok": False, "error": "BadRequest", "message": "m"},
}
LINK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def harmless(events):
    """Whether what a link told the server is what a tracker of ours may tell it, or that the link is down."""
    for event in events:
        if isinstance(event, ev.KeyTaken):
            assert (type(event.lease), type(event.epoch)) == (str, int)
            assert event.limit_s is None or 0 <= event.limit_s < float("inf")
            assert all(map(str.isprintable, (event.lease, event.matchkey, event.user, event.address)))
        if isinstance(event, ev.LinkDown):
            assert len(event.why) < 600
            assert event.why.isprintable()
            return True
    return False


@LINK
@given(st.sampled_from(sorted(ORDERS)).flatmap(lambda name: st.lists(lies(ORDERS[name]), min_size=1, max_size=3)))
def test_lies_of_a_tracker_or_of_a_proxy_before_it(said):
    script = Script(ours=True)
    try:
        script.meet()
        script.link.register(())
        script.hear()
        for one in said:
            script.sock.sendall(framed(one))
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda: any(isinstance(event, ev.LinkDown) for event in script.events))
        assert harmless(script.taken())
    finally:
        script.close()


@LINK
@given(
    st.sampled_from([b"", tracker.MAGIC_BYTES]),
    st.binary(max_size=40) | st.sampled_from([framed(WELCOME)[:-3], b"\x04\0\0\0null", b"\xff\xff\xff\x7f"]),
)
def test_openings_of_any_form(magic, said):
    """One LinkDown, after which the server waits and tries again; or, where it happens to be none, a link."""
    script = Script(ours=True)
    script.sock = None
    try:
        script.link.connect()
        script.pump(script._accepted)
        script.sock.sendall(magic + said)
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda: any(isinstance(event, ev.LinkDown) for event in script.events))
        assert harmless(script.taken())
    finally:
        script.close()


def test_an_end_after_each_byte():
    opening = tracker.MAGIC_BYTES + framed(WELCOME) + framed(ORDERS["taken"])
    for cut in range(len(opening)):
        script = Script(ours=True)
        script.link.connect()
        script.pump(script._accepted)
        script.sock.sendall(opening[:cut])
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda events=script.events: any(isinstance(event, ev.LinkDown) for event in events))
        events = script.taken()
        assert harmless(events)
        assert not any(isinstance(event, ev.KeyTaken) for event in events)
        script.close()
