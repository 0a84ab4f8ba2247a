"""Hosts that die, are succeeded, and are wanted no more."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import deployment_events as se
from rpcsys.server.supervisor.model_hosts import LASTED_S
from tests.server.deployed import HOST, ONE, Script, hand


def test_a_host_that_dies_is_started_again_after_growing_pauses(script):
    pauses = []
    for child in (1, 2, 3, 4):
        script.dies(child)
        due = script.hosting.deadline()
        pauses.append(due - script.now)
        script.now = due
        assert script.act([]) == [do.Spawn(child + 1, HOST)]
        script.serving(child + 1)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    script.now += LASTED_S
    script.dies(5)
    assert script.hosting.deadline() - script.now == pytest.approx(pauses[0])


def test_a_module_that_cannot_be_loaded_here_any_more():
    script = Script(ONE)
    script.visit(1)
    script.hosting.ready(1)
    (away,) = script.say(se.Unloadable, 1, "onnxruntime is gone")
    assert (away.kind, "onnxruntime is gone" in away.text) == ("Busy", True)


def test_a_stuck_host_is_succeeded_by_one_of_the_same_version(script):
    assert script.say(se.Stuck, 1) == [do.Spawn(2, HOST)]
    assert script.visit(1) == []
    assert script.serving(2) == [se.TellChild(1, (("leave", "successor"),)), hand(2, 1)]


def test_withdrawn(script):
    assert script.say(se.Catalogue, ()) == [se.TellChild(1, (("leave", ""),))]
    (away,) = script.visit(1)
    assert "nothing is deployed" in away.text


def test_the_zygote_takes_all_hosts_along(script):
    assert script.act(script.hosting.zygote(False)) == [se.Reread()]
    assert script.visit(1) == []
    assert script.act(script.hosting.zygote(True)) == [do.Spawn(2, HOST)]


def test_the_tracker_is_told_what_changes(script):
    (told,) = script.hosting.announce(())
    assert told.modules == (("head", ONE.version, True, 0, 0, 0),)
    assert script.hosting.announce(told.modules) == []
    script.say(se.Load, 1, 1, 2, 3)
    assert script.hosting.announce(told.modules)[0].modules == (("head", ONE.version, True, 1, 2, 3),)
