"""Killed and crashed clients, sessions and daemons: which peers notice, and how soon."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import rpcsys
from rpcsys.errors import SessionLost
from tests.live.daemons import START_S, Daemons, queue, wait_free, wait_until
from tests.live.fault_lab import KEY, FaultLab, all_gone, busy
from tests.live.probe import MISMATCH, SessionProbe, TrackerProbe, asker

SOON_S = 2.0  # the documented limit is a second; a busy machine needs more
LOST_S = 5.0


@pytest.fixture
def lab(fault_lab: FaultLab) -> FaultLab:
    return fault_lab.start(slots=2)


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# --- the queue ---------------------------------------------------------------------------------


def test_two_are_served_at_once_and_the_third_waits(lab: FaultLab):
    first, second = lab.client().leased(), lab.client().leased()
    third = lab.client()
    lab.pending(1)
    for client in (first, second):
        assert client.call("pid")["value"] == client.session_pid
    assert first.session_pid != second.session_pid
    assert first.workdir != second.workdir
    assert third.silent()
    first.close()
    third.leased()
    assert queue(lab.tracker, KEY) == {"free": 0, "pending": 0}
    second.close()
    third.close()
    lab.free(2)


def test_a_killed_waiting_client_leaves_no_trace(lab: FaultLab):
    holders = [lab.client().leased(), lab.client().leased()]
    waiting = lab.client()
    lab.pending(1)
    waiting.kill()
    lab.pending(0, SOON_S)
    holders[0].close()
    lab.free(1)  # the killed client does not get it
    lab.still_serves()


@pytest.mark.parametrize("kind", ["rpcsys"], indirect=True)
def test_the_lease_of_a_client_killed_before_its_session_ends_at_once(lab: FaultLab, record_property):
    """The tracker sees the closed connection and does not wait until the match key counts as unused."""
    with asker(lab.tracker.address) as probe:
        assert probe.ask([1, {"op": "hello", "version": "0.1.0"}])["ok"]
        granted = probe.ask({"op": "request", "id": 1, "key": KEY})
        assert granted["ok"], granted
        lab.free(1)
    record_property("device free again after, s", round(lab.free(2, SOON_S), 3))
    place = granted["leases"][0]
    with SessionProbe((place["host"], place["port"]), place["matchkey"]) as session:
        assert session.code == MISMATCH
    lab.still_serves()


# --- SIGKILL -----------------------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["nothing", "spin", "hold_gil"])
def test_a_killed_client_gives_its_device_back(lab: FaultLab, doing: str, record_property):
    client = lab.client().leased()
    if doing != "nothing":
        client.send(doing)
        busy(client.session_pid)
    client.kill()
    record_property("device free again after, s", round(lab.free(2, SOON_S), 3))
    all_gone([client.session_pid], SOON_S)


@pytest.mark.parametrize("doing", ["nothing", "spin"])
def test_a_killed_session_process_affects_only_its_client(lab: FaultLab, doing: str, record_property):
    mine, other = lab.client().leased(), lab.client().leased()
    if doing != "nothing":
        mine.send(doing)
        busy(mine.session_pid)
    killed(mine.session_pid)
    start = time.monotonic()
    answer = mine.read(SOON_S) if doing != "nothing" else mine.call("pid", deadline_s=SOON_S)
    record_property("client knows after, s", round(time.monotonic() - start, 3))
    is_lost(lab, answer)
    assert other.call("pid")["value"] == other.session_pid
    lab.free(1)


@pytest.mark.parametrize("kind", ["rpcsys"], indirect=True)
def test_the_client_of_a_process_that_is_killed_before_it_answers_knows_why(fault_lab: FaultLab):
    lab = fault_lab.start(slots=1)
    waits = lab.server.tree(inits=False)[-1]
    os.kill(waits, signal.SIGSTOP)
    with rpcsys.connect_tracker(lab.tracker.where) as tracker, ThreadPoolExecutor(1) as pool:
        opened = pool.submit(tracker.request, KEY)
        wait_until(lambda: "session 1 of" in lab.server.stderr(), START_S, "the process has its client")
        killed(waits)
        with pytest.raises(SessionLost, match="SIGKILL, before the session was open; request a device again"):
            opened.result(START_S)
    lab.still_serves()


@pytest.mark.parametrize("how", ["crash", "leave"])
def test_code_that_ends_its_process_ends_only_its_session(lab: FaultLab, how: str):
    mine, other = lab.client().leased(), lab.client().leased()
    is_lost(lab, mine.call(how, deadline_s=LOST_S))
    assert other.call("pid")["value"] == other.session_pid
    lab.free(1)
    lab.still_serves()


def is_lost(lab: FaultLab, answer: dict) -> None:
    """Check for an error with a message; in our client, also for its class."""
    assert answer["message"].strip()
    if lab.kind == "rpcsys":
        assert "SessionLost" in answer["error"]
        assert "\n" not in answer["message"]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["ours", "tvm"])
def test_sessions_survive_a_killed_tracker(fault_lab: FaultLab, flavour: str, record_property):
    lab = fault_lab.start(slots=2, tracker_flavour=flavour)
    client = lab.client().leased()
    port = lab.tracker.address[1]
    lab.tracker.destroy()
    assert client.call("pid")["value"] == client.session_pid
    lab.tracker = lab.daemons.tracker(flavour=flavour, port=port)
    record_property("registered again after, s", round(lab.free(1, LOST_S), 3))
    assert client.call("pid")["value"] == client.session_pid
    client.close()
    lab.free(2)
    lab.still_serves()


def test_a_killed_server_leaves_no_process(lab: FaultLab, record_property):
    idle, calling = lab.client().leased(), lab.client().leased()
    left_behind = [idle.call("spawn")["value"], idle.call("daemonise")["value"]]
    calling.send("spin")
    busy(calling.session_pid)
    tree = [*lab.server.tree(), *left_behind]
    assert calling.session_pid in tree
    lab.server.kill()
    start = time.monotonic()
    is_lost(lab, calling.read(LOST_S))
    is_lost(lab, idle.call("pid", deadline_s=LOST_S))
    record_property("clients know after, s", round(time.monotonic() - start, 3))
    all_gone(tree, LOST_S)
    with TrackerProbe(lab.tracker.address) as probe:
        assert probe.summary()["server_info"] == []
    assert queue(lab.tracker, KEY)["free"] == 0


def test_a_killed_zygote_is_replaced(lab: FaultLab):
    (zygote,) = [child.pid for child in lab.server.children()]
    killed(zygote)
    all_gone([zygote], SOON_S)
    assert lab.server.running()
    lab.free(2)
    lab.still_serves()


# --- the link to the tracker -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["ours", "tvm"])
def test_a_server_started_before_its_tracker_registers_later(daemons: Daemons, flavour: str):
    """It serves at once and registers when the tracker starts."""
    tracker = daemons.tracker(flavour=flavour)
    port = tracker.address[1]
    tracker.destroy()
    server = daemons.server(KEY, "--tracker", f"127.0.0.1:{port}", "--preload", "none")
    wait_until(lambda: "tracker" in server.stderr(), LOST_S, "it logs that the tracker is missing")
    wait_free(daemons.tracker(flavour=flavour, port=port), KEY, 1, LOST_S)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["ours", "tvm"])
def test_a_match_key_that_is_never_used_is_renewed(daemons: Daemons, flavour: str, record_property):
    tracker = daemons.tracker(flavour=flavour)
    daemons.server(KEY, "--preload", "none", tracker=tracker)
    with TrackerProbe(tracker.address) as probe:
        probe.lease(KEY)
        assert queue(tracker, KEY)["free"] == 0
        took = wait_free(tracker, KEY, 1, 20)
    record_property("offered again after, s", round(took, 1))
