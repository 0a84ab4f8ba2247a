"""The zygote, its children, hanging imports, and processes that survive SIGKILL, as transcripts of a whole server."""

from __future__ import annotations

import itertools

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import DOWN
from tests.server.transcripts import Transcript, only

# Processes that die


def test_a_dead_waiting_child_is_replaced_with_growing_pauses(direct):
    assert direct.post(ev.ChildDead, 1, -9) == []
    assert direct.tick(0.2) == [do.Spawn(3)]
    assert direct.post(ev.ChildDead, 3, 1) == []
    assert direct.tick(0.15) == []
    assert direct.tick(0.1) == [do.Spawn(4)]
    for child in range(4, 12):
        direct.post(ev.ChildDead, child, 1)
        assert direct.tick(11) == [do.Spawn(child + 1)]
    assert sum("waiting session process died" in line for line in direct.logged()) == 1


def test_the_zygotes_death_ends_its_sessions_and_only_them():
    script = Transcript(slots=2)
    script.boot()
    script.greet(1)
    actions = script.post(ev.ZygoteDown, ("sleep",))
    assert actions == [do.Finish(1, 1)]
    script.post(ev.Removed, 1)
    assert script.greet(2) == []
    assert script.tick(0.2) == [do.StartZygote()]
    assert script.post(ev.ZygoteUp) == [do.Spawn(3, at_once=True), do.Spawn(4)]
    assert script.post(ev.ChildReady, 3)[0].conn == 2
    script.replay()


def test_a_zygote_that_dies_at_once_is_restarted_after_a_pause():
    script = Transcript()
    for _ in range(6):
        script.post(ev.ZygoteDown)
        script.tick(5)
    pauses = [event.now for event, actions in script.log if do.StartZygote() in actions]
    gaps = [late - early for early, late in itertools.pairwise(pauses)]
    assert len(pauses) == 6
    assert gaps == sorted(gaps)


# Imports that hang


def test_a_hanging_import_at_the_start_ends_the_server():
    script = Transcript(import_s=5.0)
    script.post(ev.Importing, "--preload a")
    script.post(ev.Importing, "--preload b", after=4.0)
    assert script.tick(4.0) == []
    (kill, leave) = script.tick(2.0)
    assert kill == do.KillZygote()
    assert leave.why.startswith("--preload b: the import is not done after 5 s")
    script.replay()


def test_a_later_hanging_import_is_logged_and_tried_again(direct):
    direct.post(ev.ZygoteDown)
    direct.tick(5.0)
    direct.post(ev.Importing, "--import slow")
    assert direct.tick(61.0) == [do.KillZygote()]
    assert any(line.startswith("--import slow:") for line in direct.logged())
    assert do.StartZygote() in direct.post(ev.ZygoteDown) + direct.tick(10.0)


def test_a_child_whose_import_hangs_is_killed():
    script = Transcript()
    script.boot()
    script.greet(1)
    script.post(ev.ChildDone, 1, "closed")
    script.post(ev.Importing, "--preload numpy", 2)
    assert do.Kill(2) in script.tick(61.0)
    script.replay()


# Boards that cannot be cleaned


@pytest.mark.parametrize("how", ["left", "stuck", "its own", "after the zygote"])
def test_a_board_that_is_not_clean_is_not_offered_again(tracked, how):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1")
    if how == "left":
        tracked.post(ev.ChildDead, 1, 0)
        tracked.post(ev.Removed, 1, (), ("/tmp/x (Operation not permitted)",))
    elif how == "stuck":
        tracked.post(ev.Unkilled, ("dd",))
    elif how == "its own":
        tracked.post(ev.Unkilled, ("dd",), 1)
    else:
        tracked.post(ev.ZygoteDown)
        tracked.post(ev.Unkilled, ("dd",))
    assert tracked.state.slots.free == 0
    assert sum("this board is not clean and is not offered" in line for line in tracked.logged()) == 1
    before = len(tracked.out)
    if tracked.state.offers.link is DOWN:
        tracked.tick(5.0)
        tracked.post(ev.LinkUp, True)
        tracked.post(ev.Registered)
    assert only(tracked.out[before:], do.Offer) == []
    assert only(tracked.greet(9, key="k:2"), do.Refuse)


@pytest.mark.parametrize("whose", ["its own", "others"])
def test_a_board_is_offered_again_after_stuck_processes_have_ended(tracked, whose):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1")
    tracked.post(ev.Unkilled, ("dd",), 1 if whose == "its own" else None)
    assert tracked.state.processes.unclean == "no signal ends dd"
    tracked.child_dies(1)
    if whose == "others":
        assert tracked.state.processes.unclean
        tracked.post(ev.Unkilled, ())
    assert tracked.state.processes.unclean == ""
    assert any("clean again" in line for line in tracked.logged())
    before = len(tracked.out)
    tracked.post(ev.LinkDown, "it went")
    tracked.tick(5.0)
    tracked.post(ev.LinkUp, True)
    tracked.post(ev.Registered)
    assert only(tracked.out[before:], do.Offer)
    tracked.replay()


def test_a_slow_zygote_does_not_withdraw_the_board(tracked):
    tracked.post(ev.KeyTaken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.greet(1, key="k:1")
    tracked.post(ev.HungUp, 1)
    for _ in range(12):
        tracked.tick(5.0)
    assert len(only(tracked.out, do.Kill)) > 2
    assert tracked.state.processes.unclean == ""
    tracked.child_dies(1)
    assert tracked.state.slots.free > 0
