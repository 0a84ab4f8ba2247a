"""The user's access to a tracker, with a real tracker and real servers; and with peers that are no trackers."""

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
    TrackerError,
    TrackerLost,
    TrackerUnreachable,
    UnknownKey,
    UsageError,
    WaitTimeout,
)
from rpcsys.lab import Lab
from tests.device import WAIT_S, scripted_server, until

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


def test_a_request_opens_a_session(tracker):
    with tracker.request("board") as session:
        assert session.lease["key"] == "board"
        assert session.info["key"] == "board"
        array = np.arange(10)
        assert np.array_equal(session.get_function("testing.echo")(array), array)
        assert tracker.summary()["queue_info"]["board"]["free"] == 0
    until(lambda: tracker.summary()["queue_info"]["board"]["free"] == 1, "the board to be free again")


def test_a_waiting_request_is_in_the_queue(tracker):
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
    thread.join(WAIT_S)
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
        thread.join(WAIT_S)
    assert order == [5, 3, 1]


def test_a_wait_above_its_timeout_is_an_error(tracker):
    with tracker.request("board"):
        with pytest.raises(WaitTimeout) as caught:
            tracker.request("board", wait_timeout=0.3)
        assert "\n" not in str(caught.value)
        assert tracker.summary()["queue_info"]["board"]["pending"] == 0


def test_an_unknown_key_is_an_error(tracker):
    with pytest.raises((UnknownKey, WaitTimeout)):
        tracker.request("bord", wait_timeout=8)


def test_a_lease_has_its_limit(tracker):
    with tracker.request("board", session_timeout=300) as session:
        assert session.info["limit_s"] == 300


def test_a_session_that_has_ended_is_not_renewed(tracker):
    session = tracker.request("board")
    assert tracker.renew(session, 60) > 0
    session.close()
    with pytest.raises(TrackerError, match="the lease has ended with its session"):
        tracker.renew(session, 60)


def test_the_text_summary_lists_servers_and_queues(lab, tracker):
    text = tracker.text_summary()
    assert "Server List" in text
    assert "server:board" in text
    assert "Queue Status" in text
    assert repr(tracker) == "<tracker {}:{}>".format(*lab.tracker_address)
    assert tracker.user == module._login_name()


def test_an_address_from_arguments_or_environment(lab, monkeypatch):
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
        thread.join(WAIT_S)
    assert errors == []


def test_a_query_after_close_connects_again(tracker):
    tracker.close()
    assert "board" in tracker.summary()["queue_info"]


def test_an_address_without_a_tracker_is_unreachable():
    with scripted_server(hang_up=True) as address:
        pass
    with pytest.raises(TrackerUnreachable, match=r"no tracker at .*Connection refused"):
        rpcsys.connect_tracker(address)


@pytest.mark.parametrize("says", [b"\0" * 100, b"\x71\xf2\x02\x00\xff\xff\xff\x7f"])
def test_another_protocol_is_no_tracker(says):
    with (
        scripted_server(says) as address,
        pytest.raises(TrackerUnreachable, match="does not speak the tracker's protocol"),
    ):
        rpcsys.connect_tracker(address, timeout=5)


def test_a_silent_peer_is_no_tracker():
    with scripted_server() as address, pytest.raises(TrackerUnreachable, match="no answer in time"):
        rpcsys.connect_tracker(address, timeout=0.3)


@pytest.mark.parametrize(
    "address", ["", ":9190", "host:x", "host:99999", "29190", 29190, ("host",), ("host", "x"), 1.5]
)
def test_an_invalid_address_is_a_usage_error(address):
    with pytest.raises(ConfigError, match=r"write '?HOST:"):
        rpcsys.connect_tracker(address)


def test_labels_are_checked_before_the_tracker_is_asked(tracker):
    with pytest.raises(UsageError, match="the value of 'cores' is 2"):
        tracker.request("board", labels={"cores": 2})
    assert tracker.summary()["leases"] == []


def test_a_user_id_without_a_name_is_unknown(monkeypatch):
    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert module._login_name() == "unknown"


# ---------------------------------------------------------------- devices that do not answer


@pytest.fixture
def openings(monkeypatch):
    """Have the next openings of sessions raise these errors; later ones are real."""
    errors, tried = [], []
    real = connection.open_session

    def open_session(*args, **kwargs):
        tried.append(args[0])
        if errors:
            raise errors.pop(0)
        return real(*args, **kwargs)

    monkeypatch.setattr(connection, "open_session", open_session)
    return errors, tried


def test_another_device_is_tried_after_one_that_does_not_answer(tracker, openings, caplog):
    """The server offers another match key after the first was not used."""
    errors, tried = openings
    errors.append(ServerRefused("its turn is over; request it again through the tracker"))
    with tracker.request("board", wait_timeout=60) as session:
        assert session.get_function("testing.echo")(1) == 1
    assert len(tried) == 2
    assert caplog.messages == ["a device of board did not answer, asking for a device again: its turn is over"]


def test_devices_that_never_answer_are_an_error(openings):
    errors, tried = openings
    errors.extend([ServerUnreachable("gone"), ServerRefused("taken"), ServerUnreachable("gone for good")])
    with Lab({"board": 1}) as lab, lab.connect() as tracker:  # its server stays apart for a while
        with pytest.raises(ServerUnreachable, match="gone for good"):
            tracker.request("board", wait_timeout=60)
    assert len(tried) == 3


def test_a_lost_tracker_is_an_error():
    with Lab({"board": 1}) as lab, lab.connect() as tracker:
        session = tracker.request("board")
        lab.daemons[0].process.kill()
        with pytest.raises((TrackerLost, TrackerUnreachable)):
            tracker.request("board")
        assert session.get_function("testing.echo")(1) == 1
        session.close()
