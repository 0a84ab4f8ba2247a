"""Sessions of TVM's clients, where only their children have TVM's Python, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from tests.server.transcripts import Transcript, kinds, only


@pytest.fixture
def apart():
    script = Transcript(spares=1, tvm_apart=True)
    script.boot()
    return script


def test_the_first_tvm_client_waits_for_a_child_of_its_kind_and_the_next_ones_do_not(apart):
    assert apart.greet(1, session=None) == [do.Spawn(2, ChildKind.TVM, at_once=True)]
    apart.post(ev.Importing, "--tvm python", 2)
    assert apart.tick(30) == []
    assert apart.post(ev.ChildReady, 2)[0] == do.Start(1, 1, 2, "tvm", "peer1")
    assert apart.state.slots.sessions[1].started == apart.now  # its time limit begins only now
    assert apart.post(ev.ChildDone, 2, "closed") == [do.Spawn(3, ChildKind.TVM)]
    apart.post(ev.ChildReady, 3)
    apart.child_dies(2)
    assert kinds(apart.greet(2, session=None))[0] is do.Start
    apart.replay()


def test_our_clients_take_no_child_of_tvms_kind_and_tvms_none_of_ours(apart):
    assert apart.greet(1) == [do.Start(1, 1, 1, "rpcsys/1", "peer1"), do.Spawn(2)]
    apart.post(ev.ChildReady, 2)
    apart.greet(2, session=None)
    apart.post(ev.ChildDone, 1, "closed")
    assert apart.child_dies(1)[-1] == do.Spawn(3, ChildKind.TVM, at_once=True)
    assert apart.post(ev.ChildReady, 3)[0].child == 3


def test_children_for_tvms_clients_are_as_many_as_these_were_at_once():
    script = Transcript(slots=3, spares=1, tvm_apart=True)
    script.boot()
    for conn in (1, 2):
        script.greet(conn, session=None)
    for child in (4, 5):
        script.post(ev.ChildReady, child)
        script.post(ev.ChildDone, child, "closed")
        script.child_dies(child)
    waiting = [child.kind for _, child in script.state.processes.for_sessions()]
    assert waiting.count(ChildKind.TVM) == 2
    assert waiting.count(ChildKind.SESSION) == 3


def test_a_tvm_client_that_hangs_up_during_the_import_leaves_a_child_for_the_next(apart):
    apart.greet(1, session=None)
    assert apart.post(ev.HungUp, 1) == [do.Finish(1, 1)]
    apart.post(ev.Removed, 1)
    assert apart.post(ev.ChildReady, 2) == []
    assert kinds(apart.greet(2, session=None))[0] is do.Start


@pytest.mark.parametrize("hangs", [False, True])
def test_tvms_clients_are_dropped_when_its_python_cannot_be_imported(hangs):
    script = Transcript(slots=2, spares=1, tvm_apart=True, import_s=5.0)
    script.boot()
    script.greet(1, session=None)
    script.post(ev.Importing, "--tvm python", 3)
    if hangs:
        assert script.tick(6) == [do.Kill(3)]
    else:
        assert script.post(ev.Failed, "--tvm python: no numpy", 3) == []
    dead = script.child_dies(3, 1)
    assert do.Finish(1, 1) in dead
    assert not only(dead, do.Spawn)  # the next client is the next try
    assert any("crashed" in line for line in script.logged())
    assert any("--tvm python" in line for line in script.logged())
    assert kinds(script.greet(2)) == [do.Start]
    assert script.greet(3, session=None) == [do.Spawn(4, ChildKind.TVM, at_once=True)]
    script.replay()


def test_the_start_of_a_tvm_clients_lease_is_reported_before_the_import():
    board = Transcript(tracked=True, spares=1, tvm_apart=True)
    board.boot()
    (key,) = board.register()
    board.post(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5")
    (report,) = only(board.greet(1, key=key, session=None), do.ReportStart)
    assert report.lease == "l"
    board.post(ev.LinkDown, "gone")
    board.tick(10)
    (register,) = only(board.post(ev.LinkUp, True), do.RegisterServer)
    assert register.running == (("l", 1, 0.0),)
    assert not only(board.post(ev.ChildReady, 2), do.ReportStart)
