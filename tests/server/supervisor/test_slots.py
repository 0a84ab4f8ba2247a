"""Slots and sessions, as transcripts of a whole server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.slots import (
    CLEANING,
    END_SEEN,
    ENDING,
    EXPLAINING,
    LATE_S,
    OVER,
    OVERDUE,
    RUNNING,
    STARTED,
    TRANSITIONS,
    UNEXPLAINED,
    SessionRecord,
)
from tests.server.transcripts import Transcript, kinds, only

# Sessions


def test_a_session_from_start_to_end(direct):
    assert direct.visit(7) == [do.Start(1, 7, 1, "rpcsys/1", "peer7")]
    assert direct.say(ev.ChildDone, 1, "closed") == [do.Spawn(3)]
    assert direct.say(ev.ChildDead, 1, 0) == [do.Finish(1, 7)]
    assert direct.say(ev.Removed, 1) == []
    assert direct.state.slots.free == 2
    assert any("closed" in line for line in direct.logged())


def test_two_at_once_and_the_third_waits(direct):
    direct.visit(1)
    direct.visit(2, session=None)
    assert direct.visit(3) == []
    assert direct.say(ev.HungUp, 1) == [do.Spawn(3)]
    direct.say(ev.ChildReady, 3)
    started = only(direct.bury(1), do.Start)
    assert [(action.conn, action.child) for action in started] == [(3, 3)]


def test_the_session_waits_for_its_child_rather_than_its_client_for_an_error(direct):
    direct.visit(1)
    direct.visit(2)
    direct.say(ev.ChildDone, 1, "closed")
    direct.bury(1)  # the slot is free before its new child is ready
    assert direct.visit(3) == []
    assert direct.say(ev.ChildReady, 3) == [do.Start(3, 3, 3, "rpcsys/1", "peer3")]


def test_a_client_that_leaves_before_its_child_is_there(direct):
    direct.visit(1)
    direct.visit(2)
    direct.say(ev.ChildDone, 1, "closed")
    direct.bury(1)
    direct.visit(3)
    assert direct.say(ev.HungUp, 3) == [do.Finish(3, 3)]


def test_a_spare_child_waits_while_all_slots_are_taken():
    script = Transcript(spares=1)
    script.boot()
    assert script.visit(1) == [do.Start(1, 1, 1, "rpcsys/1", "peer1"), do.Spawn(2)]
    script.say(ev.ChildReady, 2)
    script.visit(2)
    assert script.say(ev.ChildDone, 1, "closed") == []  # its successor is there already
    assert only(script.bury(1), do.Start) == [do.Start(2, 2, 2, "rpcsys/1", "peer2")]


def test_a_spare_child_is_one_for_all_slots():
    script = Transcript(slots=2, spares=1)
    script.boot()
    assert kinds(script.visit(1)) == [do.Start]
    assert kinds(script.visit(2)) == [do.Start, do.Spawn]
    script.say(ev.ChildReady, 3)
    script.say(ev.ChildDone, 1, "closed")
    assert only(script.bury(1), do.Spawn) == []  # the spare one waits for the free slot now


def test_nothing_is_forked_while_a_client_waits_for_its_session_and_its_first_call():
    script = Transcript(slots=2, spares=1, quiet_s=0.05)
    script.boot()
    script.visit(1)
    assert kinds(script.visit(2)) == [do.Start]
    script.say(ev.SessionOpened, 1)
    assert script.tick(0.02) == []  # the other one is still being opened
    script.say(ev.SessionOpened, 2)
    assert script.tick(0.004) == []
    assert script.tick(0.002) == [do.Spawn(3)]
    script.replay()


def test_a_client_without_a_child_waits_for_no_quiet():
    """Sessions of one slot in quick succession: the next one needs the child that was not made for quiet's sake."""
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    for number in (1, 2):
        if number == 2:
            script.say(ev.ChildDone, 1, "closed")
            script.bury(1)
            assert script.tick(0.06)[-1:] == [do.Spawn(2)]
            script.say(ev.ChildReady, 2)
        script.visit(number)
    script.visit(3)
    script.say(ev.ChildDone, 2, "closed")
    assert do.Spawn(3) in script.bury(2)
    script.replay()


def test_quiet_is_short_for_clients_that_are_greeted_unseen():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    script.visit(1, session=None)
    assert script.tick(0.005) == []
    assert script.tick(0.006) == [do.Spawn(2)]


def test_a_session_that_is_never_opened_holds_up_no_fork():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    assert kinds(script.visit(1)) == [do.Start]
    assert script.tick(0.06) == [do.Spawn(2)]


def test_no_more_wait_than_slots_when_nobody_is_served():
    script = Transcript(spares=1)
    script.boot()
    script.visit(1)
    script.say(ev.ChildReady, 2)
    script.say(ev.ChildDone, 1, "closed")
    script.bury(1)
    assert sorted(script.state.processes.children) == [2]


def test_a_client_gone_gives_the_process_a_moment_and_then_no_more(direct):
    direct.visit(1)
    direct.say(ev.HungUp, 1)
    assert direct.tick(0.3) == []
    assert direct.tick(0.2) == [do.Kill(1)]
    direct.bury(1, -9)
    assert any("lost" in line for line in direct.logged())


def test_a_process_that_says_done_and_stays(direct):
    direct.visit(1)
    direct.say(ev.ChildDone, 1, "closed")
    assert direct.tick(3) == [do.Kill(1)]
    direct.bury(1, -9)
    assert any("closed" in line for line in direct.logged())


def test_a_process_that_survives_its_kill_is_killed_again(direct):
    direct.visit(1)
    direct.say(ev.HungUp, 1)
    assert direct.tick(6) == [do.Kill(1), do.Kill(1)]


def test_what_was_killed_is_in_the_log(direct):
    direct.visit(1)
    direct.bury(1, -11, ("sleep", "worker"))
    assert any("crashed; had to be killed: sleep, worker" in line for line in direct.logged())


def test_a_session_that_cannot_start(direct):
    direct.visit(1)
    kill, finish, spawn = direct.say(ev.StartFailed, 1, "no space left on device")
    assert (type(kill), type(spawn)) == (do.Kill, do.Spawn)
    assert finish.unanswered
    assert finish.error[0] == "SessionLost"
    assert "a session could not start: no space left on device" in finish.error[1]
    direct.say(ev.Removed, 1)
    assert direct.state.slots.free == 2
    direct.say(ev.ChildDead, 1, -9)
    assert not any("waiting session process died" in line for line in direct.logged())


# Time limits


def test_an_rpcsys_session_has_the_first_word_about_its_limit(direct):
    assert direct.visit(1, timeout_s=3.0)[0].limit_s == 3.0
    assert direct.tick(3.4) == []
    assert direct.tick(0.2) == [do.Kill(1), do.Spawn(3)]
    (finish,) = only(direct.bury(1, -9), do.Finish)
    assert finish.error[0] == "SessionTimeout"
    assert "limit of 3 s" in finish.error[1]
    assert any("timeout" in line for line in direct.logged())


def test_a_limit_asked_for_later(direct):
    direct.visit(1)
    direct.say(ev.LimitAsked, 1, 2.0)
    direct.say(ev.LimitAsked, 1, 9.0)
    assert do.Kill(1) in direct.tick(2.6)


def test_a_tvm_client_is_told_by_another_child(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    assert direct.tick(2) == [do.Kill(1), do.Spawn(3)]
    start, spare = direct.say(ev.ChildDead, 1, -9)
    assert start == do.Start(1, 1, 2, "tvm-end", "peer1", 2.0, words=start.words)
    assert start.words.startswith("RPCSessionTimeoutError: the session reached its time limit of 2 s")
    assert spare == do.Spawn(4)
    assert direct.say(ev.ChildDone, 2, "ended") == []
    assert direct.say(ev.ChildDead, 2, 0) == [do.Finish(1, 1)]
    direct.say(ev.Removed, 1)
    assert direct.state.slots.free == 2


def test_a_session_that_leaves_its_cpus_is_told_of_once(direct):
    direct.visit(1)
    before = len(direct.logged())
    for _ in range(5):
        assert direct.say(ev.CpusLeft, 1) == []
    assert len(direct.logged()) == before + 1
    direct.say(ev.ChildDone, 1, "closed")
    direct.bury(1)
    line = direct.logged()[-1]
    assert "had to be removed: threads from other CPUs than its slot's" in line
    assert direct.say(ev.CpusLeft, 1) == []


@pytest.mark.parametrize("starved", [False, True])
def test_a_tvm_client_without_memory_is_told_by_another_child(starved):
    board = Transcript(slots=1, spares=1, memory=512 << 20)
    board.boot()
    board.visit(1, session=None)
    board.say(ev.ChildReady, 2)
    if not starved:
        assert board.say(ev.MemoryExceeded, 1) == [do.Kill(1)]
    start = board.say(ev.ChildDead, 1, -9, starved=starved)[0]
    assert (start.child, start.kind) == (2, "tvm-end")
    assert start.words.startswith("MemoryLimit: the session's memory limit of 512 MB was hit")
    board.say(ev.ChildDone, 2, "ended")
    assert board.say(ev.ChildDead, 2, 0)[0] == do.Finish(1, 1)
    assert any("session 1 of peer1 ended" in line and ": memory" in line for line in logged_end(board))


def logged_end(board):
    board.say(ev.Removed, 1)
    return board.logged()


def test_a_tvm_client_that_left_is_told_nothing(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    direct.say(ev.HungUp, 1)
    direct.tick(2)
    assert kinds(direct.say(ev.ChildDead, 1, -9)) == [do.Finish]


def test_explaining_takes_no_longer_than_it_may(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    direct.tick(2)
    direct.say(ev.ChildDead, 1, -9)
    assert direct.tick(2.1) == [do.Kill(2)]


# CPUs, memory


def test_each_session_has_a_slot_of_its_own():
    script = Transcript(slots=3)
    script.boot()
    assert [script.visit(conn)[0].slot for conn in (1, 2, 3)] == [0, 1, 2]
    script.say(ev.ChildDone, 2, "closed")
    script.say(ev.ChildReady, 4)
    script.bury(2)
    assert script.visit(4)[0].slot == 1
    script.replay()


def test_a_session_with_too_much_memory_is_ended_and_told():
    script = Transcript(memory=512 << 20)
    script.boot()
    script.visit(1)
    assert script.say(ev.MemoryExceeded, 1) == [do.Kill(1), do.Spawn(2)]
    assert script.say(ev.MemoryExceeded, 1) == []
    (finish,) = only(script.bury(1, -9), do.Finish)
    assert finish.error[0] == "MemoryLimit"
    assert "512 MB" in finish.error[1]
    assert any("memory" in line for line in script.logged())
    script.replay()


def test_a_crash_for_want_of_memory_is_called_by_its_name():
    script = Transcript(memory=512 << 20)
    script.boot()
    script.visit(1)
    (finish,) = only(script.say(ev.ChildDead, 1, -11, starved=True), do.Finish)
    assert finish.error[0] == "MemoryLimit"
    script.replay()


def test_shared_memory_is_looked_for_where_namespaces_are_shared():
    script = Transcript(slots=2)
    script.say(ev.ZygoteUp, "Operation not permitted")
    assert any("Operation not permitted" in line for line in script.logged())
    script.say(ev.ChildReady, 1)
    script.say(ev.ChildReady, 2)
    assert script.visit(1)[0].note
    assert not script.visit(2)[0].note
    assert only(script.say(ev.ChildDead, 1, 0), do.Finish)[0].sweep == "busy"
    script.say(ev.Removed, 1)
    assert only(script.say(ev.ChildDead, 2, 0), do.Finish)[0].sweep == "idle"
    script.replay()


# What a session is between two events


def session(*events, kind="rpcsys/1", **fields):
    made = SessionRecord(7, "peer", kind, number=3, **fields)
    for event in events:
        made.move(event)
    return made


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((STARTED,), RUNNING),
        ((STARTED, END_SEEN, END_SEEN), ENDING),
        ((STARTED, END_SEEN, UNEXPLAINED), OVERDUE),
        ((STARTED, UNEXPLAINED, STARTED), EXPLAINING),
        ((STARTED, UNEXPLAINED, STARTED, OVER), CLEANING),
        ((OVER,), CLEANING),
    ],
)
def test_states(events, state):
    assert session(*events).state is state


def test_every_session_can_be_cleaned_and_nothing_follows():
    assert all(after.get(OVER) is CLEANING for state, after in TRANSITIONS.items() if state is not CLEANING)
    with pytest.raises(KeyError):
        session(OVER, STARTED)


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=5))
def test_the_shortest_limit_holds(limits):
    one = session(STARTED)
    for limit in limits:
        one.limit(limit)
    given_limits = [limit for limit in limits if limit is not None]
    assert one.limit_s == min(given_limits, default=None)
    assert one.due == (min(given_limits) + LATE_S if given_limits else None)


def test_a_tvm_session_has_no_time_to_tell_of_its_limit():
    one = session(STARTED, kind="tvm")
    one.limit(5.0)
    assert one.due == 5.0


def test_what_the_log_says():
    one = session(lease="L1", limit_s=9.0)
    assert one.began_text() == "session 3 of peer begins: rpcsys/1, for at most 9 s lease=L1"
    one.outcome, one.cleaned, one.removed = "lost", ("sh", "cc"), ("/dev/shm/a",)
    text = "session 3 of peer ended after 1.2 s: lost; had to be killed: sh, cc; had to be removed: /dev/shm/a lease=L1"
    assert one.ended_text(1.24) == text
