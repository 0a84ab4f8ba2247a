"""The decisions of a device server as a whole, as transcripts: its start, its end, and any order of events."""

from __future__ import annotations

import random

import pytest

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.process_table import SERVING
from rpcsys.server.supervisor.session_record import CLEANING
from tests.server.transcripts import Transcript, taken

# Starting


def test_ready_is_announced_when_a_session_could_be_served():
    script = Transcript()
    assert script.out == [do.StartZygote()]
    assert script.post(ev.ZygoteUp) == [do.Spawn(1)]
    assert script.post(ev.ChildReady, 1) == [do.Announce()]


def test_sessions_of_ours_and_the_tracker_wait_for_the_devices_and_tvms_clients_do_not():
    script = Transcript(slots=3, search=True)
    assert script.out == [do.FindDevices(), do.StartZygote()]
    assert script.boot() == [do.Announce()]
    assert script.greet(1) == []
    (start,) = script.greet(2, session=None)
    assert (start.conn, start.kind) == (2, "tvm")
    (start,) = script.post(ev.DevicesFound, ("cpu:0", "opencl:0"), ("a driver hangs",))
    assert (start.conn, start.kind) == (1, "rpcsys/1")
    assert script.logged()[-3:-1] == ["a driver hangs", "devices: cpu:0, opencl:0"]
    (start,) = script.greet(3)
    assert start.conn == 3
    script.replay()


@pytest.mark.parametrize("first", ["devices", "child"])
def test_a_server_registers_once_it_can_serve_and_knows_its_devices(first):
    script = Transcript(tracked=True, search=True)
    script.post(ev.ZygoteUp)
    events = [(ev.DevicesFound, ("cpu:0",), ()), (ev.ChildReady, 1)]
    early, late = events if first == "devices" else events[::-1]
    assert script.post(*early) == ([] if first == "devices" else [do.Announce()])
    assert script.post(*late)[-1] == do.Connect(0)


def test_a_client_that_leaves_before_the_devices_are_known_leaves_nothing(direct):
    script = Transcript(search=True)
    script.boot()
    script.greet(1)
    (finish,) = script.post(ev.HungUp, 1)
    assert isinstance(finish, do.Finish)
    script.post(ev.Removed, finish.session)
    assert script.post(ev.DevicesFound, ("cpu:0",), ()) == []
    assert script.greet(2) != []


def test_imports_that_fail_end_a_server_that_never_served():
    script = Transcript()
    assert script.post(ev.Failed, "--import nope: no such module") == [do.Exit("--import nope: no such module")]


def test_imports_that_fail_later_are_logged(direct):
    assert direct.post(ev.Failed, "--import nope: gone") == []
    assert "--import nope: gone" in direct.logged()


def test_an_import_for_tvms_clients_that_fails_ends_no_server_that_starts():
    script = Transcript(tvm_apart=True)
    script.post(ev.ZygoteUp)
    assert script.greet(1, session=None) == [do.Spawn(2, ChildKind.TVM, at_once=True)]
    assert script.post(ev.Failed, "--tvm python: gone", 2) == []
    script.child_dies(2, 1)
    assert script.post(ev.ChildReady, 1) == [do.Announce()]


# Unknown ids


def test_events_with_unknown_ids_change_nothing(direct):
    for kind, args in [
        (ev.ChildReady, (99,)),
        (ev.ChildDone, (99, "closed")),
        (ev.ChildDead, (99, 0)),
        (ev.LimitAsked, (99, 1.0)),
        (ev.StartFailed, (99, "")),
        (ev.Removed, (99,)),
        (ev.HungUp, (99,)),
        (ev.Broken, (99, "")),
        (ev.Opened, (99, "p", "client", "k")),
        (ev.KeyMade, ("k:9",)),
        (ev.LeaseRevoked, ("L", 1, "")),
    ]:
        assert direct.post(kind, *args) == []


# Stopping


def test_without_sessions_the_server_stops_at_once(tracked):
    assert tracked.post(ev.StopAsked) == [do.StopListening(), do.Disconnect(), do.Exit()]


def test_ends_of_leases_are_reported_while_it_stops(tracked):
    tracked.post(ev.KeyTaken, "L1", 1, "k:1", "u", "a", None)
    tracked.greet(1, key="k:1")
    assert tracked.post(ev.StopAsked) == [do.StopListening(), do.ReportHealth("it is being stopped")]
    assert tracked.post(ev.KeyMade, "k:9") == []
    tracked.post(ev.ChildDone, 1, "closed")
    actions = tracked.child_dies(1)
    assert [action for action in actions if isinstance(action, do.ReportEnd)] == [do.ReportEnd("L1", 1, "closed")]
    assert actions[-2:] == [do.Disconnect(), do.Exit()]


def test_unused_leases_are_reported_when_it_stops(tracked):
    tracked.post(ev.KeyTaken, "L1", 1, "k:1", "u", "a", None)
    assert do.ReportEnd("L1", 1, "unused") in tracked.post(ev.StopAsked)


def test_a_stopping_server_reports_ends_after_a_reconnect(tracked):
    tracked.post(ev.KeyTaken, "L1", 1, "k:1", "u", "a", None)
    tracked.greet(1, key="k:1")
    tracked.post(ev.LinkDown, "gone")
    assert tracked.post(ev.StopAsked) == [do.StopListening()]
    assert tracked.tick(1) == [do.Connect()]
    tracked.post(ev.ChildDone, 1, "closed")
    assert do.Exit() not in tracked.child_dies(1)
    assert [type(action) for action in tracked.post(ev.LinkUp, True)] == [do.RegisterServer]
    actions = tracked.post(ev.Registered)
    assert actions[0] == do.ReportEnd("L1", 1, "closed")
    assert actions[-2:] == [do.Disconnect(), do.Exit()]


def test_a_lost_tracker_does_not_delay_the_stop(tracked):
    tracked.post(ev.KeyTaken, "L1", 1, "k:1", "u", "a", None)
    tracked.greet(1, key="k:1")
    tracked.post(ev.LinkDown, "gone")
    tracked.post(ev.StopAsked)
    tracked.post(ev.ChildDone, 1, "closed")
    assert do.Exit() in tracked.child_dies(1)


def test_stop_lets_sessions_finish(direct):
    direct.greet(1)
    direct.post(ev.Accepted, 2, "peer")
    assert direct.post(ev.StopAsked) == [do.StopListening(), do.Drop(2)]
    assert direct.post(ev.Accepted, 3, "peer") == [do.Drop(3)]
    direct.post(ev.ChildDone, 1, "closed")
    assert direct.child_dies(1)[-1] == do.Exit()


def test_a_patient_stop_waits_as_long_as_its_sessions(direct):
    direct.greet(1)
    assert direct.post(ev.StopAsked, True) == [do.StopListening()]
    assert direct.tick(100_000) == []
    assert direct.post(ev.StopAsked, True) == []
    direct.post(ev.ChildDone, 1, "closed")
    assert direct.child_dies(1)[-1] == do.Exit()


def test_a_second_signal_shortens_a_patient_stop(direct):
    direct.greet(1)
    direct.post(ev.StopAsked, True)
    direct.tick(100)
    assert direct.post(ev.StopAsked) == []
    assert direct.tick(9.9) == []
    assert direct.tick(0.2) == [do.Kill(1)]
    assert direct.child_dies(1, -9)[-1] == do.Exit()


def test_stop_ends_sessions_after_the_grace(direct):
    direct.greet(1)
    direct.post(ev.StopAsked)
    assert direct.tick(9.9) == []
    assert direct.tick(0.2) == [do.Kill(1)]
    assert direct.child_dies(1, -9)[-1] == do.Exit()


def test_a_second_stop_ends_sessions_at_once(direct):
    direct.greet(1)
    direct.post(ev.StopAsked)
    assert direct.post(ev.StopAsked) == [do.Kill(1)]


# At random


def anything(chance, script, step):
    """Post one random event, with a present, past or unknown id."""
    sessions = script.state.slots.sessions
    child = chance.choice([*script.state.processes.children, 1])
    conn = chance.choice([*(session.conn for session in sessions.values()), 1])
    gone = [number for number, session in sessions.items() if session.state is CLEANING]
    key = chance.choice([*script.state.offers.keys, "k", "k:bad"])
    acts = [
        lambda: script.greet(1000 + step, key, chance.choice(["rpcsys/1", None])),
        lambda: script.post(ev.ChildReady, child),
        lambda: script.post(ev.ChildDone, child, "closed"),
        lambda: script.post(ev.ChildDead, child, chance.choice([0, 1, -9])),
        lambda: script.post(ev.HungUp, conn),
        lambda: script.post(ev.Removed, chance.choice([*gone, 99])),
        lambda: script.post(chance.choice([ev.ZygoteDown, ev.ZygoteUp, ev.ZygoteUp, ev.ZygoteUp])),
        lambda: script.post(ev.LinkDown, "gone"),
        lambda: script.post(ev.LinkUp, True),
        lambda: script.post(ev.Registered),
        lambda: taken(script, key, f"L{step}", step),
        lambda: script.tick(chance.random() * 3),
    ]
    return chance.choice(acts)()


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_breaks_a_server(seed):
    """In any order of events, the sessions never exceed the slots, deadlines move, and the log replays."""
    chance = random.Random(seed)
    script = Transcript(slots=2, tracked=seed % 2 == 1)
    script.boot()
    for step in range(300):
        script.offers(anything(chance, script, step))
        assert len(script.state.slots.sessions) <= 2
        served = [child.session for child in script.state.processes.children.values() if child.state is SERVING]
        assert len(set(served)) == len(served)
    script.replay()
