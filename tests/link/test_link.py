"""The link to a tracker: addresses, the hello, blocking and non-blocking use, and all its ends."""

import json
import select
import selectors
import socket
import struct
import threading
import time

import pytest

from rpcsys import link as link_module
from rpcsys.errors import (
    Cancelled,
    ProtocolError,
    TrackerError,
    TrackerLost,
    TrackerUnreachable,
    UnknownKey,
    WaitTimeout,
)
from rpcsys.link.link import Link, error_of
from tests.scripted_peers import MAGIC, WELCOME, exactly


def raw(value):
    data = json.dumps(value).encode()
    return struct.pack("<i", len(data)) + data


class FakeTracker:
    """Accepts one connection and runs the test's script on it, in a thread."""

    def __init__(self, *script):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(30)
        self.address = self.listener.getsockname()
        self.script = script
        self.got = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        conn, _ = self.listener.accept()
        with conn:
            conn.settimeout(30)
            for step in self.script:
                if isinstance(step, bytes):
                    conn.sendall(step)
                elif step == "magic":
                    assert exactly(conn, 4) == MAGIC
                elif step == "frame":
                    (size,) = struct.unpack("<i", exactly(conn, 4))
                    self.got.append(json.loads(exactly(conn, size)))
                elif step == "end":
                    assert conn.recv(1) == b""
                else:
                    time.sleep(step)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.thread.join(30)
        self.listener.close()
        assert not self.thread.is_alive()


OURS = ("magic", MAGIC, "frame", raw(WELCOME))
TVMS = ("magic", MAGIC, "frame", raw(0))


# --- the hello ---------------------------------------------------------------------------------


def test_the_hello_tells_our_tracker_from_tvms():
    with FakeTracker(*OURS, "end") as tracker:
        with Link.open(tracker.address, user="ann") as link:
            assert link.ours is True
            assert link.tracker == WELCOME
            assert link.ready
    (hello,) = tracker.got
    assert hello[0] == 1
    assert (hello[1]["op"], hello[1]["user"]) == ("hello", "ann")
    with FakeTracker(*TVMS, "end") as tracker, Link.open(tracker.address) as link:
        assert link.ours is False


def test_the_magic_is_sent_alone():
    """TVM's tracker takes all bytes that it receives first as the magic."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link(listener.getsockname())
        link.advance()
        conn, _ = listener.accept()
        with conn:
            conn.settimeout(0.3)
            link.advance()
            assert conn.recv(100) == MAGIC
            link.advance()
            with pytest.raises(TimeoutError):
                conn.recv(100)
        link.close()


def test_another_thread_ends_a_wait():
    with FakeTracker(*OURS, "frame", "end") as tracker, Link.open(tracker.address) as link:
        caught = []

        def wait():
            try:
                link.ask("request", timeout=None)
            except Cancelled as error:
                caught.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        while len(tracker.got) < 2:  # it asks
            time.sleep(0.01)
        link.hang_up()
        thread.join(30)
        assert caught == ["the request was cancelled"]
        link.hang_up()
        with pytest.raises(Cancelled):
            link.ask("request", timeout=None)


@pytest.mark.parametrize(
    "script",
    [
        ("magic",),
        ("magic", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("magic", MAGIC, "frame"),
        ("magic", MAGIC, "frame", raw({"ok": False})),
        ("magic", MAGIC, "frame", raw("hello yourself")),
        ("magic", MAGIC, "frame", struct.pack("<i", 2**30)),
        ("magic", MAGIC, "frame", struct.pack("<i", 1) + b"?"),
    ],
)
def test_a_peer_without_the_protocol_is_no_tracker(script):
    with FakeTracker(*script) as tracker:
        with pytest.raises(TrackerUnreachable, match=r"no tracker at 127\.0\.0\.1:"):
            Link.open(tracker.address)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"that is a page \(HTTP\); give the tracker's own port"),
        (struct.pack("<i", 0xFF273), "that is a device server or a proxy; give the tracker's own port"),
        (b"SSH-2.0-OpenSSH\r\n", "it does not speak the tracker's protocol"),
        (b"", "it closed the connection, as TVM's device servers"),
    ],
)
def test_what_is_at_the_address_is_named(answer, what):
    with FakeTracker("magic", answer) as tracker, pytest.raises(TrackerUnreachable, match=what) as caught:
        Link.open(tracker.address)
    assert "\n" not in str(caught.value)


def test_without_a_tracker_the_link_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(TrackerUnreachable, match="Connection refused"):
        Link.open(address)
    with pytest.raises(TrackerUnreachable, match=r"`rpcsys tracker --port 9190`"):
        Link.open("no-such-host.invalid:9190")


def test_a_tracker_without_an_answer_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = time.monotonic()
        with pytest.raises(TrackerUnreachable, match="no answer in time"):
            Link.open(listener.getsockname(), timeout=0.3)
        assert time.monotonic() - before < 10


def test_all_addresses_of_a_name_are_tried():
    """localhost is often ::1 first, and the tracker listens on 127.0.0.1."""
    with FakeTracker(*OURS, "end") as tracker, Link.open(("localhost", tracker.address[1])) as link:
        assert link.ready


# --- messages ----------------------------------------------------------------------------------


def test_ask_passes_its_events_on_and_keeps_other_messages():
    events = [{"id": 1, "event": "queued", "position": n} for n in (2, 1)]
    push = {"op": "taken", "id": 1}
    with FakeTracker(
        *OURS, "frame", raw(events[0]) + raw(push) + raw(0) + raw(events[1])[:9], 0.05, raw(events[1])[9:],
        raw({"id": 7, "ok": True}), raw({"id": 1, "ok": True, "x": 5}), "end",
    ) as tracker:  # fmt: skip
        with Link.open(tracker.address) as link:
            seen = []
            assert link.ask("request", timeout=30, on_event=seen.append, key="k")["x"] == 5
            assert seen == events
            assert [link.receive(1) for _ in range(3)] == [push, 0, {"id": 7, "ok": True}]
            with pytest.raises(TimeoutError):
                link.receive(0)
    assert tracker.got[1] == {"op": "request", "id": 1, "key": "k"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("UnknownKey", UnknownKey),
        ("WaitTimeout", WaitTimeout),
        ("BadRequest", TrackerError),
        ("SystemExit", TrackerError),
    ],
)
def test_a_refusal_is_raised_as_the_error_that_it_names(name, kind):
    error = error_of({"id": 1, "ok": False, "error": name, "message": "no"})
    assert type(error) is kind
    assert str(error) == "no"
    assert str(error_of({"ok": False}))


def advance_for_ever(link):
    while True:
        assert select.select([link], [], [], 30)[0], "the link has something to do"
        link.advance()


def test_a_proxys_address_is_not_named_as_the_trackers():
    with FakeTracker(*OURS) as tracker, Link(tracker.address, proxy=True) as link:
        with pytest.raises(TrackerLost, match=r"^the tracker behind the proxy at 127\.0\.0\.1:\d+ is gone "):
            advance_for_ever(link)
        link.close()
        with pytest.raises(TrackerLost, match=r"^the link to the tracker behind the proxy at \S+ is closed$"):
            link.advance()


def test_a_missing_answer_ends_the_wait():
    with FakeTracker(*OURS, "frame", "frame", "end") as tracker, Link.open(tracker.address) as link:
        with pytest.raises(TrackerLost, match="did not answer summary"):
            link.ask("summary", timeout=0.2)
        with pytest.raises(TimeoutError):
            link.command([1], timeout=0.2)


def test_a_tracker_that_closes_the_connection_is_lost():
    with FakeTracker(*OURS, "frame", raw(0), "frame") as tracker:
        link = Link.open(tracker.address)
        assert link.command([1], timeout=30) == 0
        with pytest.raises(TrackerLost, match="gone"):
            link.command([1], timeout=30)
        link.close()
        link.close()
        with pytest.raises(TrackerLost, match="not open"):
            link.send([1])
        with pytest.raises(TrackerLost):
            link.receive(1)


def test_an_invalid_frame_is_a_protocol_error():
    bad = struct.pack("<i", 3) + b"nan"
    with FakeTracker(*OURS, "frame", bad) as tracker, Link.open(tracker.address) as link:
        with pytest.raises(ProtocolError):
            link.command([1], timeout=30)


def test_a_tracker_that_stops_reading_is_lost(monkeypatch):
    monkeypatch.setattr(link_module.link, "MAX_UNSENT", 1 << 20)
    with FakeTracker(*OURS, "frame", 0.5) as tracker, Link.open(tracker.address) as link:
        with pytest.raises(TrackerLost):
            flood(link)


def flood(link):
    for _ in range(1000):
        link.send(["x" * 100_000])


# --- in a loop ---------------------------------------------------------------------------------


def turn(link, until, deadline_s=30):
    """Run a loop on selectors, registered once, until ``until(messages)``; the messages."""
    messages = []
    selector = selectors.DefaultSelector()
    selector.register(link, selectors.EVENT_READ)
    end = time.monotonic() + deadline_s
    while not until(messages):
        assert time.monotonic() < end
        selector.select(1)
        messages += link.advance()
    selector.close()
    return messages


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_one_registration_works_from_lookup_to_message(host):
    with FakeTracker(*OURS, "frame", raw(0) * 3, "end") as tracker:
        link = Link((host, tracker.address[1]))
        number = link.fileno()
        turn(link, lambda _: link.ready)
        assert link.fileno() == number
        link.send([7])
        assert turn(link, lambda messages: len(messages) == 3) == [0, 0, 0]
        link.close()


def test_a_loop_is_woken_by_the_end_of_the_link():
    with FakeTracker(*OURS) as tracker:
        link = Link(tracker.address)
        with pytest.raises(TrackerLost):
            turn(link, lambda _: False)
        link.close()


def test_unsent_messages_are_sent_later():
    big = ["x" * 900_000]
    with FakeTracker(*OURS, 0.3, "frame", "frame", "frame", raw("done"), "end") as tracker:
        with Link.open(tracker.address) as link:
            for _ in range(3):
                link.send(big)
            assert turn(link, bool) == ["done"]
    assert tracker.got[1:] == [big] * 3


# --- TVM's commands, whose replies carry no id ----------------------------------------------------
