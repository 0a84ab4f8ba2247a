"""The supervisor's decisions about clients of deployed modules and about deployers, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.deployments import HEARD_S, MAX_CLIENTS, MAX_DEPLOYERS, WAIT_S
from tests.server.deployed import HOST, ONE, TWO, DeploymentsTranscript, hand


def test_a_client_waits_for_its_host():
    script = DeploymentsTranscript(ONE)
    assert script.greet(1) == []
    assert script.serving(1) == [hand(1, 1)]
    assert script.greet(2) == [hand(1, 2)]


def test_a_clients_wait_for_a_host_is_bounded():
    script = DeploymentsTranscript(ONE)
    script.greet(1)
    assert script.deployments.deadline() == script.now + WAIT_S
    script.now += WAIT_S
    (away,) = script.act([])
    assert (away.conn, away.kind) == (1, "Busy")
    assert script.deployments.deadline() is None


@pytest.mark.parametrize(("name", "words"), [("haed", "it has head"), ("x", "it has head"), ("../head", "it has head")])
def test_an_unknown_module_is_refused_with_the_known_names(script, name, words):
    (away,) = script.greet(1, name)
    assert away.kind == "ServerRefused"
    assert words in away.text


def test_a_waiting_client_that_hangs_up_is_dropped():
    script = DeploymentsTranscript(ONE)
    script.greet(1)
    assert script.hung_up(1) == [do.Drop(1)]
    assert script.hung_up(1) is None
    assert script.serving(1) == []


def test_a_new_version_is_tested_then_serves_and_the_old_host_leaves(script):
    assert script.greet(9, "") == [do.Spawn(2, ChildKind.DEPLOYER)]
    assert script.act(script.deployments.ready(2)) == [do.BeDeployer(2, 9, "peer9")]
    assert script.post(ev.Try, 2, TWO) == [do.Spawn(3, HOST)]
    assert script.serving(3) == [do.SendToChild(2, "tried", "")]
    assert script.greet(1) == [hand(1, 1)]  # the old host, until the disk is switched
    assert script.post(ev.HandedOver, 1, 1) == [do.CloseHere(1)]
    assert script.post(ev.Changed, 2) == [do.Reread()]
    assert script.post(ev.Catalogue, (TWO,)) == [do.SendToChild(1, "leave", "successor")]
    assert script.post(ev.Leaving, 1) == [do.SendToChild(2, "seen", True)]  # no call can reach the old host
    assert script.greet(2) == [hand(3, 2)]
    assert script.post(ev.Moved, 1, 3, "peer3", True) == [hand(3, 3, False, True)]
    assert script.dies(1) == []
    assert list(script.deployments.hosts.by_child) == [3]


def test_a_deployers_wait_for_old_hosts_is_bounded(script):
    script.greet(9, "")
    script.act(script.deployments.ready(2))
    script.post(ev.Changed, 2)
    assert script.post(ev.Catalogue, ()) == [do.SendToChild(1, "leave", "")]
    assert script.deployments.deadline() == script.now + HEARD_S
    script.now += HEARD_S
    assert script.act([]) == [do.SendToChild(2, "seen", True)]


@pytest.mark.parametrize("how", ["cannot be loaded", "dies"])
def test_a_version_that_cannot_be_loaded_is_reported_to_its_deployer(script, how):
    script.greet(9, "")
    script.deployments.ready(2)
    script.post(ev.Try, 2, TWO)
    script.deployments.ready(3)
    (report,) = script.post(ev.Unloadable, 3, "it is broken") if how == "cannot be loaded" else script.dies(3)
    assert report.child == 2
    assert report.value in ("it is broken", "its process ended by signal 9")
    assert script.greet(1) == [hand(1, 1)]


def test_the_tested_host_ends_with_its_deployer(script):
    script.greet(9, "")
    script.deployments.ready(2)
    script.post(ev.Try, 2, TWO)
    script.serving(3)
    assert script.hung_up(9) == []
    script.now = script.deployments.deadline()
    assert script.act([]) == [do.Kill(2)]  # its time to clean up is over
    assert script.dies(2) == [do.Drop(9), do.Reread()]
    assert script.post(ev.Catalogue, (ONE,)) == [do.Kill(3)]


def test_a_switched_version_serves_after_its_deployers_death(script):
    script.greet(9, "")
    script.deployments.ready(2)
    script.post(ev.Try, 2, TWO)
    script.serving(3)
    script.dies(2)
    assert script.post(ev.Catalogue, (TWO,)) == [do.SendToChild(1, "leave", "successor")]
    assert script.greet(1) == [hand(3, 1)]


def test_a_client_that_a_dead_host_refused_waits_for_the_next(script):
    assert script.greet(1) == [hand(1, 1)]
    assert script.post(ev.NotTaken, 1, 1) == [do.Kill(1)]
    assert script.greet(2) == []
    script.dies(1)
    script.now = script.deployments.deadline()
    script.act([])
    assert script.serving(2) == [hand(2, 1), hand(2, 2)]


def test_a_client_waits_for_the_next_host_until_one_has_said_that_it_has_it(script):
    assert script.greet(1) == [hand(1, 1)]
    assert script.greet(2) == [hand(1, 2)]
    assert script.post(ev.HandedOver, 1, 2) == [do.CloseHere(2)]
    assert script.dies(1) == []
    script.now = script.deployments.deadline()
    script.act([])
    assert script.serving(2) == [hand(2, 1)]
    assert script.post(ev.NotTaken, 1, 1) == []  # of the first host, and late
    assert script.post(ev.HandedOver, 2, 1) == [do.CloseHere(1)]
    assert script.post(ev.HandedOver, 2, 1) == []


def test_a_client_that_hangs_up_while_it_is_handed_over_is_dropped(script):
    script.greet(1)
    assert script.hung_up(1) == [do.Drop(1)]
    assert script.post(ev.HandedOver, 1, 1) == []
    script.greet(2)
    script.stop()
    assert script.dies(1) == [do.Drop(2)]


def test_stopping_drops_clients_and_ends_hosts(script):
    script.greet(9, "")
    assert script.stop() == [do.Kill(2), do.SendToChild(1, "leave", "")]
    assert script.deployments.busy
    script.dies(2)
    script.dies(1)
    assert not script.deployments.busy


def test_clients_of_one_host_are_bounded(script):
    script.post(ev.Load, 1, 0, 0, MAX_CLIENTS - 1)
    assert script.greet(1) == [hand(1, 1)]
    (away,) = script.greet(2)
    assert away.kind == "Busy"


def test_deployers_are_bounded(script):
    for conn in range(MAX_DEPLOYERS):
        assert isinstance(script.greet(conn, "")[0], do.Spawn)
    (away,) = script.greet(99, "")
    assert away.kind == "Busy"
