"""Slots and sessions, as transcripts of a whole server."""

from __future__ import annotations

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.session_record import LATE_S
from tests.server.transcripts import NAME, WHOLE, Transcript, kinds, only, pinned_server, taken

# Sessions


def test_a_session_from_start_to_end(direct):
    assert direct.greet(7) == [do.Start(1, 7, 1, "rpcsys/1", "peer7")]
    assert direct.post(ev.ChildDone, 1, "closed") == [do.Spawn(3)]
    assert direct.post(ev.ChildDead, 1, 0) == [do.Finish(1, 7)]
    assert direct.post(ev.Removed, 1) == []
    assert direct.state.slots.free == 2
    assert any("closed" in line for line in direct.logged())


def test_the_third_client_of_two_slots_waits(direct):
    direct.greet(1)
    direct.greet(2, session=None)
    assert direct.greet(3) == []
    assert direct.post(ev.HungUp, 1) == [do.Spawn(3, at_once=True)]
    direct.post(ev.ChildReady, 3)
    started = only(direct.child_dies(1), do.Start)
    assert [(action.conn, action.child) for action in started] == [(3, 3)]


def test_a_session_waits_for_a_child_that_starts(direct):
    direct.greet(1)
    direct.greet(2)
    direct.post(ev.ChildDone, 1, "closed")
    direct.child_dies(1)  # the slot is free before its new child is ready
    assert direct.greet(3) == []
    assert direct.post(ev.ChildReady, 3) == [do.Start(3, 3, 3, "rpcsys/1", "peer3")]


def test_a_client_that_hangs_up_before_its_child_is_ready_is_dropped(direct):
    direct.greet(1)
    direct.greet(2)
    direct.post(ev.ChildDone, 1, "closed")
    direct.child_dies(1)
    direct.greet(3)
    assert direct.post(ev.HungUp, 3) == [do.Finish(3, 3)]


def test_a_spare_child_waits_while_all_slots_are_taken():
    script = Transcript(spares=1)
    script.boot()
    assert script.greet(1) == [do.Start(1, 1, 1, "rpcsys/1", "peer1"), do.Spawn(2)]
    script.post(ev.ChildReady, 2)
    script.greet(2)
    assert script.post(ev.ChildDone, 1, "closed") == []  # its replacement already waits
    assert only(script.child_dies(1), do.Start) == [do.Start(2, 2, 2, "rpcsys/1", "peer2")]


def test_there_is_one_spare_child_for_all_slots():
    script = Transcript(slots=2, spares=1)
    script.boot()
    assert kinds(script.greet(1)) == [do.Start]
    assert kinds(script.greet(2)) == [do.Start, do.Spawn]
    script.post(ev.ChildReady, 3)
    script.post(ev.ChildDone, 1, "closed")
    assert only(script.child_dies(1), do.Spawn) == []  # the spare child now waits for the free slot


def test_nothing_is_forked_while_a_client_waits_for_its_session_and_its_first_call():
    script = Transcript(slots=2, spares=1, quiet_s=0.05)
    script.boot()
    script.greet(1)
    assert kinds(script.greet(2)) == [do.Start]
    script.post(ev.SessionOpened, 1)
    assert script.tick(0.02) == []  # the other session is still opening
    script.post(ev.SessionOpened, 2)
    assert script.tick(0.004) == []
    assert script.tick(0.002) == [do.Spawn(3)]
    script.replay()


def test_a_session_without_a_child_ends_the_pause_in_forking():
    """Sessions of one slot in quick succession: the next one needs a child at once."""
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    for number in (1, 2):
        if number == 2:
            assert script.post(ev.ChildDone, 1, "closed") == [do.Spawn(2)]
            script.child_dies(1)
            script.post(ev.ChildReady, 2)
        script.greet(number)
    script.greet(3)
    script.child_dies(2)
    script.post(ev.Removed, 2)
    assert do.Start in kinds(script.post(ev.ChildReady, 3))
    script.replay()


def test_a_session_whose_end_is_in_sight_ends_the_pause_in_forking():
    script = Transcript(slots=2, spares=1, quiet_s=0.05)
    script.boot()
    script.greet(1)
    script.greet(2)
    assert script.post(ev.ChildDone, 1, "closed") == []  # the second one's client is about to make its first call
    assert script.post(ev.ChildDone, 2, "closed") == [do.Spawn(3), do.Spawn(4)]


def test_no_child_is_forked_while_a_tvm_client_may_measure():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    script.greet(1, session=None)
    assert script.tick(60) == []
    assert script.post(ev.HungUp, 1) == [do.Spawn(2)]  # beside the end of its processes
    assert script.post(ev.ChildReady, 2) == []
    script.post(ev.ChildDone, 1, "closed")
    script.child_dies(1)
    assert kinds(script.greet(2, session=None)) == [do.Start]
    assert script.tick(60) == []
    script.replay()


def test_a_session_that_ends_beside_a_tvm_client_has_one_successor_forked():
    script = Transcript(slots=3, spares=1)
    script.boot()
    for conn in (1, 2, 3):
        script.greet(conn, session=None)
    assert script.post(ev.HungUp, 2) == [do.Spawn(4)]
    script.child_dies(2)
    assert script.tick(60) == []
    assert kinds(script.greet(4, session=None)) == []
    assert kinds(script.post(ev.ChildReady, 4)) == [do.Start]


def test_a_session_that_never_opens_delays_no_fork_for_long():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    assert kinds(script.greet(1)) == [do.Start]
    assert script.tick(0.06) == [do.Spawn(2)]


def test_idle_children_are_one_for_each_slot():
    script = Transcript(spares=1)
    script.boot()
    script.greet(1)
    script.post(ev.ChildReady, 2)
    script.post(ev.ChildDone, 1, "closed")
    script.child_dies(1)
    assert sorted(script.state.processes.children) == [2]


def test_a_process_is_killed_soon_after_its_client_hung_up(direct):
    direct.greet(1)
    direct.post(ev.HungUp, 1)
    assert direct.tick(0.3) == []
    assert direct.tick(0.2) == [do.Kill(1)]
    direct.child_dies(1, -9)
    assert any("lost" in line for line in direct.logged())


def test_a_process_that_is_done_and_stays_is_killed(direct):
    direct.greet(1)
    direct.post(ev.ChildDone, 1, "closed")
    assert direct.tick(3) == [do.Kill(1)]
    direct.child_dies(1, -9)
    assert any("closed" in line for line in direct.logged())


def test_a_process_that_survives_its_kill_is_killed_again(direct):
    direct.greet(1)
    direct.post(ev.HungUp, 1)
    assert direct.tick(6) == [do.Kill(1), do.Kill(1)]


def test_killed_processes_are_logged(direct):
    direct.greet(1)
    direct.child_dies(1, -11, ("sleep", "worker"))
    text = "crashed (its process was ended by SIGSEGV); had to be killed: sleep, worker"
    assert any(text in line for line in direct.logged())


@pytest.mark.parametrize(
    ("status", "how"),
    [(-6, "was ended by SIGABRT"), (3, "ended with exit status 3"), (0, "ended with exit status 0"),
     (-40, "was ended by signal 40")],
)  # fmt: skip
def test_a_process_that_ends_itself_is_explained(direct, status, how):
    direct.greet(1)
    direct.post(ev.SessionOpened, 1)
    (finish,) = only(direct.child_dies(1, status), do.Finish)
    why = f"the session is over: its process {how}, probably through the code that it ran; request a device again"
    assert finish.error == ("SessionLost", why)
    assert any(f"crashed (its process {how})" in line for line in direct.logged())


def test_a_session_that_cannot_start_is_a_fault(direct):
    direct.greet(1)
    kill, finish, spawn = direct.post(ev.StartFailed, 1, "no space left on device")
    assert (type(kill), type(spawn)) == (do.Kill, do.Spawn)
    assert finish.unanswered
    assert finish.error[0] == "SessionLost"
    assert "a session could not start: no space left on device" in finish.error[1]
    direct.post(ev.Removed, 1)
    assert direct.state.slots.free == 2
    direct.post(ev.ChildDead, 1, -9)
    assert not any("waiting session process died" in line for line in direct.logged())


# Time limits


def test_an_rpcsys_session_reports_its_limit_itself(direct):
    assert direct.greet(1, timeout_s=3.0)[0].limit_s == 3.0
    assert direct.tick(3.4) == []
    assert direct.tick(0.2) == [do.Kill(1), do.Spawn(3)]
    (finish,) = only(direct.child_dies(1, -9), do.Finish)
    assert finish.error[0] == "SessionTimeout"
    assert "limit of 3 s" in finish.error[1]
    assert any("timeout" in line for line in direct.logged())


def test_a_limit_can_be_requested_later(direct):
    direct.greet(1)
    direct.post(ev.LimitAsked, 1, 2.0)
    direct.post(ev.LimitAsked, 1, 9.0)
    assert do.Kill(1) in direct.tick(2.6)


def test_another_child_sends_a_tvm_client_the_timeout(direct):
    direct.greet(1, session=None, timeout_s=2.0)
    assert direct.tick(2) == [do.Kill(1), do.Spawn(3)]
    start, spare = direct.post(ev.ChildDead, 1, -9)
    assert start == do.Start(1, 1, 2, "tvm-end", "peer1", 2.0, words=start.words)
    assert start.words.startswith("RPCSessionTimeoutError: the session reached its time limit of 2 s")
    assert spare == do.Spawn(4)
    assert direct.post(ev.ChildDone, 2, "ended") == []
    assert direct.post(ev.ChildDead, 2, 0) == [do.Finish(1, 1)]
    direct.post(ev.Removed, 1)
    assert direct.state.slots.free == 2


def test_a_session_that_leaves_its_cpus_is_logged_once(direct):
    direct.greet(1)
    before = len(direct.logged())
    for _ in range(5):
        assert direct.post(ev.CpusLeft, 1) == []
    assert len(direct.logged()) == before + 1
    direct.post(ev.ChildDone, 1, "closed")
    direct.child_dies(1)
    line = direct.logged()[-1]
    assert "had to be removed: threads from other CPUs than its slot's" in line
    assert direct.post(ev.CpusLeft, 1) == []


@pytest.mark.parametrize("starved", [False, True])
def test_another_child_sends_a_tvm_client_the_memory_limit(starved):
    board = Transcript(slots=1, spares=1, memory=512 << 20)
    board.boot()
    board.greet(1, session=None)
    if not starved:
        assert board.post(ev.MemoryExceeded, 1) == [do.Kill(1), do.Spawn(2)]
    assert only(board.post(ev.ChildDead, 1, -9, starved=starved), do.Start) == []
    start = board.post(ev.ChildReady, 2)[0]
    assert (start.child, start.kind) == (2, "tvm-end")
    assert start.words.startswith("MemoryLimit: the session's memory limit of 512 MB was hit")
    board.post(ev.ChildDone, 2, "ended")
    assert board.post(ev.ChildDead, 2, 0)[0] == do.Finish(1, 1)
    assert any("session 1 of peer1 ended" in line and ": memory" in line for line in logged_end(board))


def logged_end(board):
    board.post(ev.Removed, 1)
    return board.logged()


def test_a_tvm_client_that_hung_up_is_sent_nothing(direct):
    direct.greet(1, session=None, timeout_s=2.0)
    direct.post(ev.HungUp, 1)
    direct.tick(2)
    assert kinds(direct.post(ev.ChildDead, 1, -9)) == [do.Finish]


def test_explaining_has_a_time_limit(direct):
    direct.greet(1, session=None, timeout_s=2.0)
    direct.tick(2)
    direct.post(ev.ChildDead, 1, -9)
    assert direct.tick(2.1) == [do.Kill(2)]


# CPUs, memory


def test_each_session_has_a_slot_of_its_own():
    script = Transcript(slots=3)
    script.boot()
    assert [script.greet(conn)[0].slot for conn in (1, 2, 3)] == [0, 1, 2]
    script.post(ev.ChildDone, 2, "closed")
    script.post(ev.ChildReady, 4)
    script.child_dies(2)
    assert script.greet(4)[0].slot == 1
    script.replay()


def test_a_session_with_too_much_memory_is_ended_with_an_error():
    script = Transcript(memory=512 << 20)
    script.boot()
    script.greet(1)
    assert script.post(ev.MemoryExceeded, 1) == [do.Kill(1), do.Spawn(2)]
    assert script.post(ev.MemoryExceeded, 1) == []
    (finish,) = only(script.child_dies(1, -9), do.Finish)
    assert finish.error[0] == "MemoryLimit"
    assert "512 MB" in finish.error[1]
    assert any("memory" in line for line in script.logged())
    script.replay()


def test_a_crash_for_lack_of_memory_has_the_outcome_memory():
    script = Transcript(memory=512 << 20)
    script.boot()
    script.greet(1)
    (finish,) = only(script.post(ev.ChildDead, 1, -11, starved=True), do.Finish)
    assert finish.error[0] == "MemoryLimit"
    script.replay()


def test_shared_memory_is_searched_with_shared_namespaces():
    script = Transcript(slots=2)
    script.post(ev.ZygoteUp, "Operation not permitted")
    assert any("Operation not permitted" in line for line in script.logged())
    script.post(ev.ChildReady, 1)
    script.post(ev.ChildReady, 2)
    assert script.greet(1)[0].note
    assert not script.greet(2)[0].note
    assert only(script.post(ev.ChildDead, 1, 0), do.Finish)[0].sweep == "busy"
    script.post(ev.Removed, 1)
    assert only(script.post(ev.ChildDead, 2, 0), do.Finish)[0].sweep == "idle"
    script.replay()


# Reasons that reach a client


def leased(session, timeout_s=None, **taken):
    board = Transcript(tracked=True, spares=1)
    board.boot()
    (key,) = board.register()
    board.post(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", **taken)
    return board, board.greet(1, key=key, session=session, timeout_s=timeout_s)


def test_the_holder_of_an_ended_lease_is_sent_the_reason():
    board, _ = leased("rpcsys/1")
    board.post(ev.LeaseRevoked, "l", 1, "ended", "eve ended it: maintenance")
    (finish,) = only(board.child_dies(1), do.Finish)
    assert finish.error == ("SessionLost", "the session is over: eve ended it: maintenance")


def test_a_tvm_client_is_sent_the_reason_too():
    board, _ = leased(None)
    board.post(ev.LeaseRevoked, "l", 1, "ended", "eve ended it: maintenance")
    board.post(ev.ChildReady, 2)
    (start,) = only(board.post(ev.ChildDead, 1, -9), do.Start)
    assert start.words == "SessionLost: the session is over: eve ended it: maintenance"


def test_the_longest_time_of_a_key_reaches_the_session():
    board, actions = leased("rpcsys/1", limit_s=60, longest_s=60)
    (start,) = only(actions, do.Start)
    assert (start.limit_s, start.longest_s) == (60, 60)
    board.tick(60 + LATE_S)
    (finish,) = only(board.child_dies(1), do.Finish)
    assert "no session of this key may last longer than 60 s" in finish.error[1]


def test_a_tvm_clients_own_limit_is_reported_to_the_tracker():
    _, actions = leased(None, timeout_s=9.0)
    (report,) = only(actions, do.ReportStart)
    assert report.limit_s == 9.0


def test_a_stopping_server_gives_the_reason(direct):
    direct.greet(1)
    direct.post(ev.StopAsked)
    direct.post(ev.StopAsked)
    (finish,) = only(direct.child_dies(1), do.Finish)
    assert finish.error == ("SessionLost", "the session is over: its server was stopped")


# Holds


def test_connections_attach_to_a_hold_under_its_match_key(tracked):
    key = "k:1"
    taken(tracked, key)
    tracked.greet(1, key)
    assert tracked.greet(2, key) == [do.Refuse(2, "mismatch")], "a match key is good once"
    tracked.post(ev.Held, 1)
    assert tracked.greet(3, key) == [do.Attach(3, 1, "peer3")]
    assert tracked.greet(4, key, session=None) == [do.Refuse(4, "mismatch")]
    assert tracked.greet(5, "k:other") == [do.Refuse(5, "mismatch")]
    assert tracked.post(ev.HungUp, 3) == [], "the process of the hold sees its end"
    tracked.post(ev.ChildDone, 1, "closed")
    assert tracked.greet(6, key) == [do.Refuse(6, "mismatch")], "its end is in sight"


def test_an_encrypted_hold_is_named_in_the_clear_and_its_secret_is_not():
    pinned = pinned_server()
    taken(pinned, WHOLE)
    pinned.greet(1, NAME)
    pinned.post(ev.Held, 1)
    assert pinned.greet(2, WHOLE) == [do.Refuse(2, "mismatch")]
    assert pinned.greet(3, NAME) == [do.Attach(3, 1, "peer3")]
    pinned.replay()
