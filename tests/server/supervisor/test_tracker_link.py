"""The server's link to a scripted tracker."""

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
from tests.scripted_peers import WELCOME, framed, mutated

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


class ScriptedTracker:
    """A tracker that the test plays; ``ours`` decides how it answers the hello."""

    def __init__(self, ours, card=CARD, capabilities=()):
        self.ours = ours
        self.capabilities = capabilities
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.loop = Loop()
        self.events = self.loop.events
        self.link = TrackerLink(self.loop, [self.listener.getsockname()], card)
        self.reader = tracker.TrackerFrameReader()

    def connect(self):
        """Accept the link and answer its hello."""
        self.link.connect()
        self.pump(self._accepted)
        self.sock.sendall(tracker.MAGIC_BYTES)
        assert self.receive()[0] == tracker.PING
        welcome = {"ok": True, "tracker": "rpcsys", "version": "0", "capabilities": self.capabilities}
        self.send(welcome if self.ours else 0)
        self.pump(lambda: self.events)
        (up,) = self.take_events()
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
        """Run the link's loop until ``until()`` is true; its value."""
        end = time.monotonic() + SOON_S
        while True:
            found = until()
            if found:
                return found
            assert time.monotonic() < end
            self.link.flush()  # as the service does after each event
            self.loop.run_once(0.01)

    def receive(self):
        """The next message of the link."""

        def message():
            try:
                self.reader.feed(self.sock.recv(65536))
            except BlockingIOError:
                pass
            frame = self.reader.next()
            return None if frame is None else [tracker.decode_json(frame)]

        return self.pump(message)[0]

    def send(self, message):
        self.sock.sendall(tracker.encode(message))

    def take_events(self):
        """Remove and return the events so far."""
        events = list(self.events)
        self.events.clear()
        return events

    def next_events(self, count=1):
        """Wait for ``count`` events; remove and return them."""
        self.pump(lambda: len(self.events) >= count)
        return self.take_events()

    def close(self):
        self.link.close()
        self.loop.close()
        self.listener.close()
        self.sock.close()


@pytest.fixture
def ours():
    script = ScriptedTracker(ours=True)
    script.connect()
    yield script
    script.close()


@pytest.fixture
def tvms():
    script = ScriptedTracker(ours=False)
    script.connect()
    yield script
    script.close()


def register(script):
    script.link.register((("L0", 3, 1.5),))
    said = script.receive()
    script.send({"id": said["id"], "ok": True, "server": "s1"})
    assert [type(event) for event in script.next_events()] == [ev.Registered]
    return said


def test_registration_with_ours(ours):
    said = register(ours)
    assert said["op"] == "register"
    assert (said["key"], said["name"], said["slots"], said["port"]) == ("k", "n", 2, 5000)
    assert said["labels"] == {"os": "linux"}
    assert said["identity"] == "1f2e"
    assert said["running"] == [{"lease": "L0", "epoch": 3, "since_s": 1.5}]


@pytest.mark.parametrize(("able", "most"), [(None, 32), ([], 32), (["labels", "versions"], 37)])
def test_an_older_tracker_gets_no_more_labels_than_it_accepts(able, most):
    card = {**CARD, "labels": {f"l{number}": "x" for number in range(37)}}
    script = ScriptedTracker(ours=True, card=card, capabilities=able)
    try:
        script.connect()
        assert list(register(script)["labels"]) == list(card["labels"])[:most]
    finally:
        script.close()


def test_a_refused_registration_ends_the_link(ours):
    ours.link.register(())
    ours.send({"id": ours.receive()["id"], "ok": False, "error": "BadRequest", "message": "no such key here"})
    (down,) = ours.next_events()
    assert isinstance(down, ev.LinkDown)
    assert "no such key here" in down.why


def test_every_offered_match_key_is_new(ours):
    register(ours)
    for _ in range(2):
        ours.link.offer()
    offered = [event.matchkey for event in ours.next_events(2)]
    heard = [ours.receive(), ours.receive()]
    assert heard == [[tracker.PUT, "k", [5000, key], None] for key in offered]
    assert len(set(offered)) == 2
    assert all(len(key) == len("k:") + 32 for key in offered)


def test_a_given_match_key_is_offered(ours):
    register(ours)
    ours.link.make_key()
    (made,) = ours.next_events()
    assert isinstance(made, ev.KeyMade)
    ours.link.offer(made.matchkey)
    assert ours.receive() == [tracker.PUT, "k", [5000, made.matchkey], None]
    assert not ours.take_events()


def test_a_proxy_without_a_tracker_is_link_down_with_none():
    script = ScriptedTracker(ours=True)
    addresses = [("127.0.0.1", 1), script.listener.getsockname()]
    script.link = TrackerLink(script.loop, addresses, {**CARD, "port": None}, proxies=True)
    script.link.connect(1)
    script.pump(script._accepted)
    script.sock.sendall(tracker.MAGIC_BYTES)
    script.send({"ok": False, "error": "NoControlLink", "message": "this proxy has no tracker"})
    (down,) = script.next_events()
    assert (down.none, 0 <= down.jitter < 1) == (True, True)
    assert "this proxy has no tracker" in down.why
    script.link.connect(0)
    (down,) = script.next_events()
    assert not down.none
    how = "is the proxy running, and is that its address?"
    assert down.why == f"no tracker behind the proxy at 127.0.0.1:1 (Connection refused): {how}"
    script.close()


def test_orders_are_obeyed_and_answered(ours):
    register(ours)
    lease = {"lease": "L1", "epoch": 7}
    ours.send({"op": "taken", "id": 1, **lease, "matchkey": "k:1", "user": "u", "address": "a", "limit_s": 9})
    ours.send({"op": "end", "id": 2, **lease, "reason": "unused"})
    taken, end = ours.next_events(2)
    assert (taken.lease, taken.epoch, taken.matchkey, taken.limit_s) == ("L1", 7, "k:1", 9)
    assert (end.lease, end.epoch, end.reason) == ("L1", 7, "unused")
    assert [ours.receive(), ours.receive()] == [{"id": 1, "ok": True}, {"id": 2, "ok": True}]


def test_members_are_admitted_and_unadmitted(ours):
    use = {"what": "serve", "modules": ["head"], "member": "ann"}
    register(ours)
    ours.send({"op": "unadmit", "id": 9, **use})
    assert ours.receive()["ok"] is False  # it has no modules
    ours.link.introduce(pin="1f" * 32)
    ours.link.register((), (("serve", ("head",), "ann"),))
    said = ours.receive()
    assert (said["pin"], said["admitted"]) == ("1f" * 32, [use])
    ours.send({"op": "admit", "id": 1, **use, "secret": "5c" * 16, "until_s": 600})
    ours.send({"op": "unadmit", "id": 2, **use, "why": "over"})
    admitted, over = (dict(vars(event), now=0.0) for event in ours.next_events(2))
    assert admitted == {"now": 0.0, **use, "modules": ("head",), "secret": "5c" * 16, "until_s": 600}
    assert over == {"now": 0.0, **use, "modules": ("head",), "why": "over"}
    assert [ours.receive(), ours.receive()] == [{"id": 1, "ok": True}, {"id": 2, "ok": True}]


def test_a_heartbeat_is_answered(ours):
    register(ours)
    ours.send({"op": "keepalive", "id": 0})
    assert ours.receive() == {"id": 0, "ok": True}
    assert not ours.take_events()


def test_unknown_requests_of_later_trackers_are_refused(ours):
    register(ours)
    ours.send({"op": "drain", "id": 5, "server": None})
    ours.send({"op": "dance", "id": 6})
    answers = [ours.receive(), ours.receive()]
    assert [(answer["id"], answer["ok"]) for answer in answers] == [(5, False), (6, False)]
    assert not ours.take_events()


def test_an_invalid_lease_is_refused_and_logged_now_and_then(ours, caplog):
    register(ours)
    fields = {"op": "taken", "lease": "L1", "matchkey": "k:1", "user": "u", "address": "a", "limit_s": None}
    for number in range(3):
        ours.send({**fields, "id": number, "epoch": 2**53 + 1})
        assert not ours.receive()["ok"]
    assert not ours.take_events()
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "epoch" in line


def test_a_tracker_that_does_not_accept_the_proxy_is_link_down(ours):
    ours.link.register(())
    ours.send({"id": ours.receive()["id"], "ok": False, "error": "NoControlLink", "message": "type --proxy-from"})
    (down,) = ours.next_events()
    assert (type(down), down.none, down.why) == (ev.LinkDown, True, "type --proxy-from")


def test_reports_about_leases(ours):
    register(ours)
    ours.link.report_start("L1", 7, "10.0.0.1:5")
    ours.link.report_end("L1", 7, "crashed", ("sleep",), (), "", "its process was ended by SIGABRT")
    with pytest.raises(BlockingIOError):
        ours.sock.recv(1)
    ours.link.offer()  # the reports go with it
    started, ended, (command, *_) = ours.receive(), ours.receive(), ours.receive()
    assert command == tracker.PUT
    ours.link.report_health("it is stopped")
    ours.link.close()  # not before it has sent all
    assert ours.receive()["problem"] == "it is stopped"
    assert (started["op"], started["lease"], started["peer"]) == ("lease_started", "L1", "10.0.0.1:5")
    assert (ended["op"], ended["outcome"]) == ("lease_ended", "crashed")
    assert ended["why"] == "its process was ended by SIGABRT"
    assert ended["cleaned"] == {"processes": ["sleep"]}
    assert started["id"] != ended["id"]


def test_a_closed_connection_is_link_down(ours):
    ours.sock.close()
    assert [type(event) for event in ours.next_events()] == [ev.LinkDown]


def test_an_invalid_message_is_link_down(ours):
    ours.send([1, 2, 3])
    assert [type(event) for event in ours.next_events()] == [ev.LinkDown]


def test_without_descriptors_the_link_is_down(ours, monkeypatch):
    def none(*_, **__):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("rpcsys.server.supervisor.tracker_link.link_to", none)
    ours.link.connect()
    (down,) = ours.next_events()
    assert down.why == "no tracker can be reached (Too many open files)"


def test_an_unreachable_tracker_is_link_down():
    script = ScriptedTracker(ours=True)
    script.listener.close()
    script.link.connect()
    (down,) = script.next_events()
    assert isinstance(down, ev.LinkDown)
    script.loop.close()


def test_registration_with_tvms(tvms):
    tvms.link.register(())
    assert tvms.receive() == [tracker.UPDATE_INFO, {"key": "server:k", "addr": [None, 5000]}]
    tvms.send(0)
    assert [type(event) for event in tvms.next_events()] == [ev.Registered]


def test_tvms_replies_come_in_order(tvms):
    tvms.link.offer()
    (offered,) = tvms.next_events()
    tvms.link.poll()
    assert [tvms.receive()[0], tvms.receive()[0]] == [tracker.PUT, tracker.GET_PENDING]
    tvms.send(0)
    tvms.send([offered.matchkey])
    (pending,) = tvms.next_events()
    assert pending.matchkeys == (offered.matchkey,)


def test_a_refusal_of_tvms_tracker_is_link_down(tvms):
    tvms.link.offer()
    tvms.next_events()
    tvms.send(-1)
    (down,) = tvms.next_events()
    assert "-1" in down.why


def test_a_silent_tvm_tracker_is_link_down(tvms):
    for _ in range(MAX_UNANSWERED + 2):
        tvms.link.poll()
    assert [type(event) for event in tvms.next_events()] == [ev.LinkDown]


# The end


def test_the_link_closes_after_the_last_reports_are_answered(ours, monkeypatch):
    monkeypatch.setattr(tracker_link, "FAREWELL_S", 3600.0)
    register(ours)
    ours.link.report_end("L1", 1, "closed", (), (), "")
    heard = ours.receive()
    answer = threading.Timer(0.3, ours.send, [{"id": heard["id"], "ok": True}])
    answer.start()
    ours.link.finish()
    answer.join()
    assert heard["lease"] == "L1"


def test_a_tracker_that_does_not_answer_does_not_delay_the_end(ours):
    register(ours)
    ours.link.report_end("L1", 1, "closed", (), (), "")
    started = time.monotonic()
    ours.link.finish()
    assert FAREWELL_S <= time.monotonic() - started < SOON_S


def test_without_reports_the_end_is_immediate(tvms, monkeypatch):
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
    """Whether all events of a link are possible with a tracker of ours, or report that the link is down."""
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
@given(st.sampled_from(sorted(ORDERS)).flatmap(lambda name: st.lists(mutated(ORDERS[name]), min_size=1, max_size=3)))
def test_random_messages_of_a_tracker_do_no_harm(said):
    script = ScriptedTracker(ours=True)
    try:
        script.connect()
        script.link.register(())
        script.receive()
        for one in said:
            script.sock.sendall(framed(one))
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda: any(isinstance(event, ev.LinkDown) for event in script.events))
        assert harmless(script.take_events())
    finally:
        script.close()


@LINK
@given(
    st.sampled_from([b"", tracker.MAGIC_BYTES]),
    st.binary(max_size=40) | st.sampled_from([framed(WELCOME)[:-3], b"\x04\0\0\0null", b"\xff\xff\xff\x7f"]),
)
def test_random_openings_lead_to_a_link_or_link_down(magic, said):
    """The link posts one LinkDown, or stays up if the opening happens to be valid."""
    script = ScriptedTracker(ours=True)
    script.sock = None
    try:
        script.link.connect()
        script.pump(script._accepted)
        script.sock.sendall(magic + said)
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda: any(isinstance(event, ev.LinkDown) for event in script.events))
        assert harmless(script.take_events())
    finally:
        script.close()


def test_a_connection_may_end_after_each_byte():
    opening = tracker.MAGIC_BYTES + framed(WELCOME) + framed(ORDERS["taken"])
    for cut in range(len(opening)):
        script = ScriptedTracker(ours=True)
        script.link.connect()
        script.pump(script._accepted)
        script.sock.sendall(opening[:cut])
        script.sock.shutdown(socket.SHUT_WR)
        script.pump(lambda events=script.events: any(isinstance(event, ev.LinkDown) for event in events))
        events = script.take_events()
        assert harmless(events)
        assert not any(isinstance(event, ev.KeyTaken) for event in events)
        script.close()
