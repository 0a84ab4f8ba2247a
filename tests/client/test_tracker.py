"""A tracker as a user sees it, with the real one and real servers; and with things that are none."""

from __future__ import annotations

import getpass
import threading

import numpy as np
import pytest

import rpcsys
from rpcsys.client import connection
from rpcsys.client import tracker as module
from rpcsys.errors import (
    ConfigError,
    ServerRefused,
    ServerUnreachable,
    TrackerLost,
    TrackerUnreachable,
    UnknownKey,
    WaitTimeout,
)
from rpcsys.lab import Lab
from tests.device import PATIENCE_S, impostor, until

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def lab():
    with Lab({"board": 1}) as lab:
        yield lab


@pytest.fixture
def tracker(lab):
    with lab.connect() as tracker:
        until(lambda: tracker.summary()["queue_info"]["board"] == {"free": 1, "pending": 0}, "a free board")
        yield tracker


def test_a_device_on_request(tracker):
    with tracker.request("board") as session:
        assert session.lease["key"] == "board"
        assert session.info["key"] == "board"
        array = np.arange(10)
        assert np.array_equal(session.get_function("testing.echo")(array), array)
        assert tracker.summary()["queue_info"]["board"]["free"] == 0
    until(lambda: tracker.summary()["queue_info"]["board"]["free"] == 1, "the board to be free again")


def test_the_queue(tracker):
    told, found = [], []
    first = tracker.request("board")

    def wait():
        with tracker.request("board", on_queued=told.append) as session:
            found.append(session.get_function("testing.echo")(1))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: tracker.summary()["queue_info"]["board"]["pending"] == 1, "the second to queue")
    until(lambda: told, "word of the place in the queue")
    assert (told[0]["position"], told[0]["ahead"]) == (1, 0)
    first.close()
    thread.join(PATIENCE_S)
    assert found == [1]


def test_higher_priority_goes_first(tracker):
    order = []
    first = tracker.request("board")

    def wait(priority):
        with tracker.request("board", priority=priority):
            order.append(priority)

    threads = []
    for pending, priority in enumerate((1, 5, 3), start=1):
        threads.append(threading.Thread(target=wait, args=(priority,)))
        threads[-1].start()
        until(lambda: tracker.summary()["queue_info"]["board"]["pending"] == pending, "one more to queue")  # noqa: B023
    first.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == [5, 3, 1]


def test_a_wait_that_takes_too_long(tracker):
    with tracker.request("board"):
        with pytest.raises(WaitTimeout) as caught:
            tracker.request("board", wait_timeout=0.3)
        assert "\n" not in str(caught.value)
        assert tracker.summary()["queue_info"]["board"]["pending"] == 0


def test_a_key_that_nobody_has(tracker):
    with pytest.raises((UnknownKey, WaitTimeout)):
        tracker.request("bord", wait_timeout=8)


def test_a_limit_of_the_lease(tracker):
    with tracker.request("board", session_timeout=300) as session:
        assert session.info["limit_s"] == 300


def test_what_there_is(lab, tracker):
    text = tracker.text_summary()
    assert "Server List" in text
    assert "server:board" in text
    assert "Queue Status" in text
    assert repr(tracker) == "<tracker {}:{}>".format(*lab.tracker_address)
    assert tracker.user == module._login_name()


def test_ways_to_say_where_the_tracker_is(lab, monkeypatch):
    host, port = lab.tracker_address
    for address in ((host, port), f"{host}:{port}", (host, str(port))):
        with rpcsys.connect_tracker(address, user="someone") as tracker:
            assert tracker.user == "someone"
    monkeypatch.setenv("RPCSYS_TRACKER_HOST", host)
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", str(port))
    rpcsys.connect_tracker().close()


def test_many_threads_share_a_tracker(tracker):
    errors = []

    def work():
        try:
            for _ in range(20):
                assert "board" in tracker.summary()["queue_info"]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []


def test_after_close_there_is_a_connection_anew(tracker):
    tracker.close()
    assert "board" in tracker.summary()["queue_info"]


def test_nobody_there():
    with impostor(hang_up=True) as address:
        pass
    with pytest.raises(TrackerUnreachable, match=r"no tracker at .*Connection refused"):
        rpcsys.connect_tracker(address)


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100, b"\x71\xf2\x02\x00\xff\xff\xff\x7f"]
)
def test_what_is_no_tracker(says):
    with impostor(says) as address, pytest.raises(TrackerUnreachable, match="does not speak the tracker's protocol"):
        rpcsys.connect_tracker(address, timeout=5)


def test_what_says_nothing():
    with impostor() as address, pytest.raises(TrackerUnreachable, match="no answer in time"):
        rpcsys.connect_tracker(address, timeout=0.3)


@pytest.mark.parametrize("address", ["", ":9190", "host:x", "host:99999"])
def test_what_is_no_address(address):
    with pytest.raises(ConfigError):
        rpcsys.connect_tracker(address)


def test_a_login_without_a_name(monkeypatch):
    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert module._login_name() == "unknown"


# ---------------------------------------------------------------- devices that do not answer


@pytest.fixture
def openings(monkeypatch):
    """Have the next sessions end with these errors before they begin; the rest as it is."""
    errors, tried = [], []
    real = connection.open_session

    def open_session(*args, **kwargs):
        tried.append(args[0])
        if errors:
            raise errors.pop(0)
        return real(*args, **kwargs)

    monkeypatch.setattr(connection, "open_session", open_session)
    return errors, tried


def test_a_device_that_does_not_answer_is_not_the_end(tracker, openings):
    """The server offers another match key once it sees that the first was not used."""
    errors, tried = openings
    errors.append(ServerUnreachable("gone"))
    with tracker.request("board", wait_timeout=60) as session:
        assert session.get_function("testing.echo")(1) == 1
    assert len(tried) == 2


def test_a_device_that_never_answers(tracker, openings):
    errors, tried = openings
    errors.extend([ServerUnreachable("gone"), ServerRefused("taken"), ServerUnreachable("gone for good")])
    with pytest.raises(ServerUnreachable, match="gone for good"):
        tracker.request("board", wait_timeout=60)
    assert len(tried) == 3


def test_a_lost_tracker():
    with Lab({"board": 1}) as lab, lab.connect() as tracker:
        session = tracker.request("board")
        lab.daemons[0].process.kill()
        with pytest.raises((TrackerLost, TrackerUnreachable)):
            tracker.request("board")
        assert session.get_function("testing.echo")(1) == 1
        session.close()
