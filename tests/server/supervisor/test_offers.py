"""The link to a tracker and the match keys offered over it, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import CLOSED, DOWN, MAX_REASONS, MAX_UNREPORTED, TRANSITIONS
from tests.server.transcripts import Transcript, kinds, taken


def test_a_match_key_is_valid_once(tracked):
    taken(tracked)
    tracked.greet(5, "k:1")
    assert tracked.greet(6, "k:1") == [do.Refuse(6, "mismatch")]


def test_the_plain_key_is_refused_with_a_tracker(tracked):
    assert tracked.greet(5, "k") == [do.Refuse(5, "mismatch")]


def test_a_taken_and_unused_key_is_replaced(tracked):
    taken(tracked)
    assert tracked.tick(7.9) == []
    actions = tracked.tick(0.2)
    assert actions == [do.ReportEnd("L1", 1, "unused"), do.Offer()]
    assert tracked.greet(5, "k:1") == [do.Refuse(5, "mismatch")]


def test_reconnecting_takes_less_than_five_seconds(tracked):
    tracked.post(ev.LinkDown, "gone")
    before = tracked.now
    for _ in range(12):
        while tracked.state.offers.link is DOWN:
            tracked.tick(0.1)
        assert tracked.now - before < 5
        before = tracked.now
        tracked.post(ev.LinkDown, "refused")


def test_where_another_replica_leads_there_is_no_pause(tracked):
    for _ in range(3):
        tracked.post(ev.LinkDown, "refused")
        tracked.tick(5)
    tracked.post(ev.LinkDown, "another tracker leads now", at_once=True)
    assert kinds(tracked.tick(0)) == [do.Connect]
    assert tracked.logged()[-1] == "another tracker leads now"


def test_the_reason_for_a_lost_link_is_logged_once(tracked):
    why = "no tracker at 127.0.0.1:1 (Connection refused)"
    for _ in range(2):
        tracked.post(ev.LinkDown, why)
        tracked.tick(5)
    assert [text for text in tracked.logged() if why in text] == [f"{why}; trying again until it is back"]


def test_another_reason_for_a_lost_link_is_logged_too(tracked):
    """A lab that is closed lets a server go, and refuses it from then on: the refusal says what to do."""
    for _ in range(3):
        for why in ("it closed the connection", "the lab wants credentials"):
            tracked.post(ev.LinkDown, why)
            tracked.tick(5)
    lost = [text.partition(";")[0] for text in tracked.logged() if "trying again" in text]
    assert lost == ["it closed the connection", "the lab wants credentials"]
    for number in range(100):
        tracked.post(ev.LinkDown, f"reason {number}")
        tracked.tick(5)
    assert len([text for text in tracked.logged() if "trying again" in text]) == MAX_REASONS


def test_a_silent_tracker_is_disconnected(tracked):
    tracked.post(ev.LinkDown, "gone")
    assert kinds(tracked.tick(0.15)) == [do.Connect]
    assert kinds(tracked.tick(5.1)) == [do.Disconnect]
    assert kinds(tracked.tick(1)) == [do.Connect]


def test_a_lost_link_voids_offered_keys_but_not_taken_ones():
    script = Transcript(tracked=True, slots=2)
    script.boot()
    assert script.register() == ["k:1", "k:2"]
    taken(script, "k:1")
    script.post(ev.LinkDown, "gone")
    assert script.greet(1, "k:2") == [do.Refuse(1, "mismatch")]
    assert kinds(script.greet(2, "k:1")) == [do.Start]
    script.replay()


def test_a_taken_key_keeps_its_slot_after_a_reconnect():
    script = Transcript(tracked=True)
    script.boot()
    script.register()
    taken(script, "k:1")
    script.post(ev.LinkDown, "gone")
    script.tick(0.2)
    assert script.register() == []
    assert script.offers(script.tick(8)) == ["k:2"]


def test_unconfirmed_ends_are_bounded(tracked):
    for number in range(2 * MAX_UNREPORTED):
        tracked.post(ev.LeaseRevoked, f"L{number}", 1, "unused")
    assert len(tracked.state.offers.unreported) == MAX_UNREPORTED


# With TVM's tracker


@pytest.fixture
def on_tvm():
    script = Transcript(tracked=True)
    script.boot()
    assert script.register(ours=False) == ["k:1"]
    yield script
    script.replay()


def test_a_session_from_tvms_tracker_has_no_lease(on_tvm):
    (started,) = on_tvm.greet(1, "k:1", None)
    assert (started.kind, started.lease) == ("tvm", None)
    on_tvm.post(ev.ChildDone, 1, "closed")
    assert on_tvm.offers(on_tvm.child_dies(1)) == ["k:2"]


def test_a_key_that_polls_show_as_taken_is_replaced(on_tvm):
    assert on_tvm.tick(2.1) == [do.Poll()]
    on_tvm.post(ev.Pending, ("k:1",))
    on_tvm.tick(2)
    on_tvm.post(ev.Pending, ())
    on_tvm.post(ev.Pending, (), after=4)
    actions = on_tvm.tick(2.1)
    assert do.Offer() in actions
    assert on_tvm.offers(actions) == ["k:2"]


def test_a_key_that_is_pending_again_is_not_taken(on_tvm):
    on_tvm.post(ev.Pending, ())
    on_tvm.post(ev.Pending, ("k:1",))
    assert do.Offer() not in on_tvm.tick(20)


def test_only_closed_is_a_final_state():
    assert all(DOWN in after.values() or state in (DOWN, CLOSED) for state, after in TRANSITIONS.items() if after)
    assert {state for after in TRANSITIONS.values() for state in after.values()} == TRANSITIONS.keys()
