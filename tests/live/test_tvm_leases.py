"""Leases on TVM's own servers, which do not report the end of a session, and behind TVM's proxy."""

from __future__ import annotations

import pytest

import rpcsys
from tests.live.daemons import START_S, Daemon, Daemons, wait_free, wait_until
from tests.live.probe import TrackerProbe

KEY = "board"
END_S = 30.0


def over(tracker: Daemon) -> list[str]:
    """The log lines about ended leases."""
    return [line for line in tracker.stderr().splitlines() if " over lease=" in line]


@pytest.fixture
def tracker(daemons: Daemons) -> Daemon:
    return daemons.tracker()


@pytest.fixture
def viewer(tracker: Daemon):
    with rpcsys.connect_tracker(tracker.address) as connected:
        yield connected


def test_a_session_lasts_until_the_next_offer(daemons: Daemons, tracker: Daemon, viewer: rpcsys.Tracker):
    rpc = pytest.importorskip("tvm.rpc")
    daemons.server(KEY, tracker=tracker, flavour="tvm")
    remote = rpc.connect_tracker(*tracker.address).request(KEY)
    (lease,) = viewer.leases()
    assert (lease["state"], lease["holder"]) == ("silent", "127.0.0.1")
    del remote
    wait_until(lambda: over(tracker), END_S, "the lease to end")
    (line,) = over(tracker)
    assert "outcome=closed" in line
    assert "offers itself again" in line


@pytest.mark.slow
def test_an_unused_lease_is_no_fault(daemons: Daemons, tracker: Daemon, viewer: rpcsys.Tracker):
    """The server polls its match keys and offers a new one after some seconds."""
    pytest.importorskip("tvm")
    daemons.server(KEY, tracker=tracker, flavour="tvm")
    with TrackerProbe(tracker.address) as taker:
        taker.lease(KEY)  # without a session
        wait_until(lambda: over(tracker), END_S, "the lease to end")
    (line,) = over(tracker)
    assert "outcome=unused" in line
    assert "nobody opened a session" in line
    assert "fault=" not in line
    wait_free(tracker, KEY, 1, END_S)
    (server,) = viewer.summary()["servers"]
    assert (server["state"], server["reason"]) == ("ok", "")


def test_a_server_that_dies_in_its_session(daemons: Daemons, tracker: Daemon, viewer: rpcsys.Tracker):
    rpc = pytest.importorskip("tvm.rpc")
    server = daemons.server(KEY, tracker=tracker, flavour="tvm")
    remote = rpc.connect_tracker(*tracker.address).request(KEY)
    server.destroy()
    wait_until(lambda: over(tracker), END_S, "the lease to end")
    (line,) = over(tracker)
    assert "outcome=lost" in line
    assert "the server's connection ended" in line
    assert viewer.leases() == []
    del remote


def test_behind_tvms_proxy_the_oldest_is_taken_to_have_ended(daemons: Daemons, tracker: Daemon, viewer: rpcsys.Tracker):
    rpc = pytest.importorskip("tvm.rpc")
    proxy = daemons.proxy("--tracker", tracker.where, flavour="tvm")
    for _ in range(2):
        daemons.behind(proxy, KEY)
    wait_free(tracker, KEY, 2, START_S)
    sessions = [rpc.connect_tracker(*tracker.address).request(KEY) for _ in range(2)]
    leases = viewer.leases()
    assert [lease["state"] for lease in leases] == ["inferred", "inferred"]
    (row,) = viewer.summary()["servers"]
    assert (row["running"], row["limits"]) == (2, False)
    sessions.pop()  # the second one; the tracker cannot know which
    wait_until(lambda: len(viewer.leases()) == 1, END_S, "one to end")
    assert viewer.leases()[0]["lease"] == leases[1]["lease"]
    sessions.pop()
    wait_until(lambda: viewer.leases() == [], END_S, "the other to end")
    wait_free(tracker, KEY, 2, START_S)
    assert all("outcome=closed" in line for line in over(tracker))
