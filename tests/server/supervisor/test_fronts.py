"""Clients whose TLS a front ends, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.link.openings import OPENING_S
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from tests.server.transcripts import NAME, SEED, WHOLE, Transcript, kinds, only, pinned_server, taken


@pytest.fixture
def script():
    """A server in a lab, with one slot and one match key that is taken."""
    script = pinned_server()
    taken(script, WHOLE, limit_s=60.0)
    yield script
    script.replay()


def front_of(actions):
    """The number of the front in the action that makes it."""
    (spawned,) = [action for action in only(actions, do.Spawn) if action.kind is ChildKind.FRONT]
    return spawned.child


def opening(script, conn=6):
    """A TVM client at the front; the front's number."""
    child = front_of(script.greet(conn, NAME, session=None))
    actions = script.post(ev.ChildReady, child)
    assert only(actions, do.BeFront) == [do.BeFront(child)]
    assert only(actions, do.Secure) == [do.Secure(child, conn, WHOLE, SEED, False)]
    return child


def test_a_tvm_client_is_admitted_once_the_front_has_its_whole_key(script):
    opening(script)
    started, report = script.post(ev.Secured, 6, None, None, 30.0)
    assert (started.conn, started.kind, started.limit_s) == (6, "tvm", 30.0)
    assert (started.pinned, started.seed, started.lease) == ("", "", "L1")
    assert kinds([report]) == [do.ReportStart]


def test_the_next_client_gets_the_same_front(script):
    child = opening(script)
    script.post(ev.Secured, 6)
    script.post(ev.ChildDone, 1, "closed")
    script.child_dies(1)
    script.post(ev.Removed, 1)
    script.post(ev.KeyMade, WHOLE, SEED)
    assert script.greet(7, NAME, session=None) == [do.Secure(child, 7, WHOLE, SEED, False)]


def test_meanwhile_nobody_else_has_the_key(script):
    opening(script)
    assert script.greet(7, NAME) == [do.Refuse(7, "mismatch")]
    assert script.greet(8, NAME, session=None) == [do.Refuse(8, "mismatch")]


def test_who_has_no_secret_ends_as_unused(script):
    opening(script)
    actions = script.post(ev.Broken, 6, "its secret is another one")
    assert do.Drop(6) in actions
    assert only(actions, do.ReportEnd) == [do.ReportEnd("L1", 1, "unused")]
    assert only(actions, do.Offer) == [do.Offer()]
    assert script.post(ev.Secured, 6) == [do.Drop(6)]


def test_a_front_that_does_not_answer_costs_the_attempt_only(script):
    opening(script)
    assert do.Drop(6) in script.tick(OPENING_S + 0.1)


def test_a_dead_front_ends_its_openings_and_is_made_again(script):
    child = opening(script)
    actions = script.child_dies(child)
    assert do.Drop(6) in actions
    assert do.ReportEnd("L1", 1, "unused") in actions
    script.post(ev.KeyMade, WHOLE, SEED)
    assert front_of(script.greet(7, NAME, session=None)) != child


def test_a_dead_zygote_takes_the_front_along(script):
    child = opening(script)
    assert do.Drop(6) in script.post(ev.ZygoteDown)
    script.post(ev.ZygoteUp, after=30.0)
    script.post(ev.KeyMade, WHOLE, SEED)
    assert front_of(script.greet(7, NAME, session=None)) != child


def test_a_revoked_key_is_void_when_its_client_is_through(script):
    opening(script)
    script.post(ev.LeaseRevoked, "L1", 1, "ended by mo", "mo has ended it")
    assert do.Refuse(6, "mismatch") in script.post(ev.Secured, 6)


def test_a_leased_key_is_for_no_deployed_module(script):
    opening(script)
    assert do.Refuse(6, "mismatch") in script.post(ev.Secured, 6, "rpcsys/1", "head")


def test_a_server_that_stops_drops_them(script):
    opening(script)
    assert do.Drop(6) in script.post(ev.StopAsked)


def test_with_a_standing_key_and_deployed_modules_all_clients_go_to_the_front():
    script = Transcript(pinned=True, standing=WHOLE, standing_seed=SEED, slots=2, deploy=True)
    script.boot()
    child = front_of(script.greet(6, NAME))
    assert only(script.post(ev.ChildReady, child), do.Secure) == [do.Secure(child, 6, WHOLE, SEED, True)]
    (started,) = only(script.post(ev.Secured, 6, "rpcsys/1"), do.Start)
    assert (started.kind, started.pinned) == ("rpcsys/1", "")
    assert script.greet(7, NAME) == [do.Secure(child, 7, WHOLE, SEED, True)]
    (away,) = only(script.post(ev.Secured, 7, "rpcsys/1", "head"), do.TurnAway)
    assert "nothing is deployed on this server" in away.text
    assert script.greet(8, NAME) == [do.Secure(child, 8, WHOLE, SEED, True)]
    (spawned,) = only(script.post(ev.Secured, 8, "rpcsys/1", ""), do.Spawn)
    assert spawned.kind is ChildKind.DEPLOYER
    script.replay()
