"""Hosts that die, are replaced, or are withdrawn."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.model_hosts import LASTED_S
from tests.server.deployed import HOST, ONE, DeploymentsTranscript, hand


def test_a_host_that_dies_is_started_again_after_growing_pauses(script):
    pauses = []
    for child in (1, 2, 3, 4):
        script.dies(child)
        due = script.deployments.deadline()
        pauses.append(due - script.now)
        script.now = due
        assert script.act([]) == [do.Spawn(child + 1, HOST)]
        script.serving(child + 1)
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    script.now += LASTED_S
    script.dies(5)
    assert script.deployments.deadline() - script.now == pytest.approx(pauses[0])


def test_a_module_that_cannot_be_loaded_is_refused():
    script = DeploymentsTranscript(ONE)
    script.greet(1)
    script.deployments.ready(1)
    (away,) = script.post(ev.Unloadable, 1, "onnxruntime is gone")
    assert (away.kind, "onnxruntime is gone" in away.text) == ("Busy", True)


def test_a_stuck_host_is_replaced_by_one_of_the_same_version(script):
    assert script.post(ev.Stuck, 1) == [do.Spawn(2, HOST)]
    assert script.greet(1) == []
    assert script.serving(2) == [do.SendToChild(1, "leave", "successor"), hand(2, 1)]


def test_a_withdrawn_modules_host_leaves(script):
    assert script.post(ev.Catalogue, ()) == [do.SendToChild(1, "leave", "")]
    (away,) = script.greet(1)
    assert "nothing is deployed" in away.text


def test_the_zygotes_death_ends_all_hosts(script):
    assert script.zygote(False) == [do.Reread()]
    assert script.greet(1) == []
    assert script.zygote(True) == [do.Spawn(2, HOST)]


def test_the_report_has_each_modules_state_and_load(script):
    assert script.deployments.hosts.table() == (("head", ONE.version, True, 0, 0, 0),)
    script.post(ev.Load, 1, 1, 2, 3)
    assert script.deployments.hosts.table() == (("head", ONE.version, True, 1, 2, 3),)
