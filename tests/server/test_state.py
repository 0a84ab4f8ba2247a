"""The decisions of a device server, as transcripts."""

import itertools
import random

import pytest

from rpcsys.server import events as ev
from rpcsys.server.health import TellHealth
from rpcsys.server.state import HANDSHAKE_S, MAX_OPENINGS, MAX_VISITORS
from tests.server.transcripts import Transcript


def kinds(actions):
    return [type(action) for action in actions]


def only(actions, kind):
    return [action for action in actions if isinstance(action, kind)]


@pytest.fixture
def direct():
    """A server without a tracker, ready, with two slots."""
    script = Transcript(slots=2)
    script.boot()
    yield script
    script.replay()


@pytest.fixture
def tracked():
    """A server of one slot registered with our tracker; its match key is k:1."""
    script = Transcript(tracked=True)
    assert kinds(script.boot()) == [ev.Announce, ev.Connect]
    assert script.register() == ["k:1"]
    yield script
    script.replay()


# Starting


def test_ready_is_announced_when_a_session_could_be_served():
    script = Transcript()
    assert script.out == [ev.StartZygote()]
    assert script.say(ev.ZygoteUp) == [ev.Spawn(1)]
    assert script.say(ev.ChildReady, 1) == [ev.Announce()]


def test_imports_that_fail_end_a_server_that_never_served():
    script = Transcript()
    assert script.say(ev.Failed, "--import nope: no such module") == [
        ev.Exit("--import nope: no such module")
    ]


def test_imports_that_fail_later_are_logged(direct):
    assert direct.say(ev.Failed, "--import nope: gone") == []
    assert "--import nope: gone" in direct.logged()


# Sessions without a tracker


def test_a_session_from_start_to_end(direct):
    assert direct.visit(7) == [ev.Start(1, 7, 1, "rpcsys/1", "peer7")]
    assert direct.say(ev.ChildDone, 1, "closed") == [ev.Spawn(3)]
    assert direct.say(ev.ChildDead, 1, 0) == [ev.Finish(1, 7)]
    assert direct.say(ev.Removed, 1) == []
    assert direct.state.board.free == 2
    assert any("closed" in line for line in direct.logged())


def test_two_at_once_and_the_third_waits(direct):
    direct.visit(1)
    direct.visit(2, session=None)
    assert direct.visit(3) == []
    assert direct.say(ev.HungUp, 1) == [ev.Spawn(3)]
    direct.say(ev.ChildReady, 3)
    started = only(direct.bury(1), ev.Start)
    assert [(action.conn, action.child) for action in started] == [(3, 3)]


def test_a_visitor_that_leaves_is_forgotten(direct):
    for conn in (1, 2, 3, 4):
        direct.visit(conn)
    assert direct.say(ev.HungUp, 3) == [ev.Drop(3)]
    direct.say(ev.HungUp, 1)
    direct.say(ev.ChildReady, 3)
    assert [action.conn for action in only(direct.bury(1), ev.Start)] == [4]


def test_only_so_many_wait(direct):
    for conn in range(MAX_VISITORS + 2):
        direct.visit(conn)
    assert direct.visit(999) == [ev.Refuse(999, "mismatch")]


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({"key": "other"}, "mismatch"),
        ({"session": "rpcsys/9"}, "version"),
        ({"serve": "resnet"}, "deploys nothing"),
    ],
)
def test_refused(direct, fields, how):
    assert direct.visit(1, **fields) == [ev.Refuse(1, how)]


def test_a_server_is_no_client(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.say(ev.Opened, 1, "peer", "server", "k") == [ev.Refuse(1, "mismatch")]


def test_tvm_clients_only_where_they_can_be_served():
    script = Transcript(tvm=False)
    script.boot()
    assert script.visit(1, session=None) == [ev.Refuse(1, "mismatch")]
    assert kinds(script.visit(2)) == [ev.Start]


def test_the_session_waits_for_its_child_rather_than_its_client_for_an_error(direct):
    direct.visit(1)
    direct.visit(2)
    direct.say(ev.ChildDone, 1, "closed")
    direct.bury(1)  # the slot is free before its new child is ready
    assert direct.visit(3) == []
    assert direct.say(ev.ChildReady, 3) == [ev.Start(3, 3, 3, "rpcsys/1", "peer3")]


def test_a_client_that_leaves_before_its_child_is_there(direct):
    direct.visit(1)
    direct.visit(2)
    direct.say(ev.ChildDone, 1, "closed")
    direct.bury(1)
    direct.visit(3)
    assert direct.say(ev.HungUp, 3) == [ev.Finish(3, 3)]


def test_a_spare_child_waits_while_all_slots_are_taken():
    script = Transcript(spares=1)
    script.boot()
    assert script.visit(1) == [ev.Start(1, 1, 1, "rpcsys/1", "peer1"), ev.Spawn(2)]
    script.say(ev.ChildReady, 2)
    script.visit(2)
    assert script.say(ev.ChildDone, 1, "closed") == []  # its successor is there already
    assert only(script.bury(1), ev.Start) == [ev.Start(2, 2, 2, "rpcsys/1", "peer2")]


def test_a_spare_child_is_one_for_all_slots():
    script = Transcript(slots=2, spares=1)
    script.boot()
    assert kinds(script.visit(1)) == [ev.Start]
    assert kinds(script.visit(2)) == [ev.Start, ev.Spawn]
    script.say(ev.ChildReady, 3)
    script.say(ev.ChildDone, 1, "closed")
    assert only(script.bury(1), ev.Spawn) == []  # the spare one waits for the free slot now


def test_nothing_is_forked_while_a_client_waits_for_its_session_and_its_first_call():
    script = Transcript(slots=2, spares=1, quiet_s=0.05)
    script.boot()
    script.visit(1)
    assert kinds(script.visit(2)) == [ev.Start]
    script.say(ev.SessionOpened, 1)
    assert script.tick(0.02) == []  # the other one is still being opened
    script.say(ev.SessionOpened, 2)
    assert script.tick(0.004) == []
    assert script.tick(0.002) == [ev.Spawn(3)]
    script.replay()


def test_a_client_without_a_child_waits_for_no_quiet():
    """Sessions of one slot in quick succession: the next one needs the child that was not made for quiet's sake."""
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    for number in (1, 2):
        if number == 2:
            script.say(ev.ChildDone, 1, "closed")
            script.bury(1)
            assert script.tick(0.06)[-1:] == [ev.Spawn(2)]
            script.say(ev.ChildReady, 2)
        script.visit(number)
    script.visit(3)
    script.say(ev.ChildDone, 2, "closed")
    assert ev.Spawn(3) in script.bury(2)
    script.replay()


def test_quiet_is_short_for_clients_that_are_greeted_unseen():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    script.visit(1, session=None)
    assert script.tick(0.005) == []
    assert script.tick(0.006) == [ev.Spawn(2)]


def test_a_session_that_is_never_opened_holds_up_no_fork():
    script = Transcript(spares=1, quiet_s=0.05)
    script.boot()
    assert kinds(script.visit(1)) == [ev.Start]
    assert script.tick(0.06) == [ev.Spawn(2)]


def test_no_more_wait_than_slots_when_nobody_is_served():
    script = Transcript(spares=1)
    script.boot()
    script.visit(1)
    script.say(ev.ChildReady, 2)
    script.say(ev.ChildDone, 1, "closed")
    script.bury(1)
    assert sorted(script.state.board.children) == [2]


def test_a_client_gone_gives_the_process_a_moment_and_then_no_more(direct):
    direct.visit(1)
    direct.say(ev.HungUp, 1)
    assert direct.tick(0.3) == []
    assert direct.tick(0.2) == [ev.Kill(1)]
    direct.bury(1, -9)
    assert any("lost" in line for line in direct.logged())


def test_a_process_that_says_done_and_stays(direct):
    direct.visit(1)
    direct.say(ev.ChildDone, 1, "closed")
    assert direct.tick(3) == [ev.Kill(1)]
    direct.bury(1, -9)
    assert any("closed" in line for line in direct.logged())


def test_a_process_that_survives_its_kill_is_killed_again(direct):
    direct.visit(1)
    direct.say(ev.HungUp, 1)
    assert direct.tick(6) == [ev.Kill(1), ev.Kill(1)]


def test_what_was_killed_is_in_the_log(direct):
    direct.visit(1)
    direct.bury(1, -11, ("sleep", "worker"))
    assert any("crashed; had to be killed: sleep, worker" in line for line in direct.logged())


def test_a_session_that_cannot_start(direct):
    direct.visit(1)
    kill, finish, spawn = direct.say(ev.StartFailed, 1, "no space left on device")
    assert (type(kill), type(spawn)) == (ev.Kill, ev.Spawn)
    assert finish.unanswered
    assert finish.error[0] == "SessionLost"
    assert "a session could not start: no space left on device" in finish.error[1]
    direct.say(ev.Removed, 1)
    assert direct.state.board.free == 2
    direct.say(ev.ChildDead, 1, -9)
    assert not any("waiting session process died" in line for line in direct.logged())


# Time limits


def test_an_rpcsys_session_has_the_first_word_about_its_limit(direct):
    assert direct.visit(1, timeout_s=3.0)[0].limit_s == 3.0
    assert direct.tick(3.4) == []
    assert direct.tick(0.2) == [ev.Kill(1), ev.Spawn(3)]
    (finish,) = only(direct.bury(1, -9), ev.Finish)
    assert finish.error[0] == "SessionTimeout"
    assert "limit of 3 s" in finish.error[1]
    assert any("timeout" in line for line in direct.logged())


def test_a_limit_asked_for_later(direct):
    direct.visit(1)
    direct.say(ev.LimitAsked, 1, 2.0)
    direct.say(ev.LimitAsked, 1, 9.0)
    assert ev.Kill(1) in direct.tick(2.6)


def test_a_tvm_client_is_told_by_another_child(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    assert direct.tick(2) == [ev.Kill(1), ev.Spawn(3)]
    start, spare = direct.say(ev.ChildDead, 1, -9)
    assert start == ev.Start(1, 1, 2, "tvm-end", "peer1", 2.0, words=start.words)
    assert start.words.startswith("RPCSessionTimeoutError: the session reached its time limit of 2 s")
    assert spare == ev.Spawn(4)
    assert direct.say(ev.ChildDone, 2, "ended") == []
    assert direct.say(ev.ChildDead, 2, 0) == [ev.Finish(1, 1)]
    direct.say(ev.Removed, 1)
    assert direct.state.board.free == 2


@pytest.mark.parametrize("starved", [False, True])
def test_a_tvm_client_without_memory_is_told_by_another_child(starved):
    board = Transcript(slots=1, spares=1, memory=512 << 20)
    board.boot()
    board.visit(1, session=None)
    board.say(ev.ChildReady, 2)
    if not starved:
        assert board.say(ev.MemoryExceeded, 1) == [ev.Kill(1)]
    start = board.say(ev.ChildDead, 1, -9, starved=starved)[0]
    assert (start.child, start.kind) == (2, "tvm-end")
    assert start.words.startswith("MemoryLimit: the session's memory limit of 512 MB was hit")
    board.say(ev.ChildDone, 2, "ended")
    assert board.say(ev.ChildDead, 2, 0)[0] == ev.Finish(1, 1)
    assert any("session 1 of peer1 ended" in line and ": memory" in line for line in logged_end(board))


def logged_end(board):
    board.say(ev.Removed, 1)
    return board.logged()


def test_a_tvm_client_that_left_is_told_nothing(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    direct.say(ev.HungUp, 1)
    direct.tick(2)
    assert kinds(direct.say(ev.ChildDead, 1, -9)) == [ev.Finish]


def test_telling_takes_no_longer_than_it_may(direct):
    direct.visit(1, session=None, timeout_s=2.0)
    direct.tick(2)
    direct.say(ev.ChildDead, 1, -9)
    assert direct.tick(2.1) == [ev.Kill(2)]


# Processes that die


def test_a_child_that_dies_waiting_is_replaced_with_growing_pauses(direct):
    assert direct.say(ev.ChildDead, 1, -9) == []
    assert direct.tick(0.2) == [ev.Spawn(3)]
    assert direct.say(ev.ChildDead, 3, 1) == []
    assert direct.tick(0.15) == []
    assert direct.tick(0.1) == [ev.Spawn(4)]
    for child in range(4, 12):
        direct.say(ev.ChildDead, child, 1)
        assert direct.tick(11) == [ev.Spawn(child + 1)]
    assert sum("waiting session process died" in line for line in direct.logged()) == 1


def test_the_zygotes_death_ends_its_sessions_and_only_them():
    script = Transcript(slots=2)
    script.boot()
    script.visit(1)
    actions = script.say(ev.ZygoteDown, ("sleep",))
    assert actions == [ev.Finish(1, 1)]
    script.say(ev.Removed, 1)
    assert script.visit(2) == []
    assert script.tick(0.2) == [ev.StartZygote()]
    assert script.say(ev.ZygoteUp) == [ev.Spawn(3), ev.Spawn(4)]
    assert script.say(ev.ChildReady, 3)[0].conn == 2
    script.replay()


def test_a_zygote_that_dies_at_once_is_not_started_at_once():
    script = Transcript()
    for _ in range(6):
        script.say(ev.ZygoteDown)
        script.tick(5)
    pauses = [event.now for event, actions in script.log if ev.StartZygote() in actions]
    gaps = [late - early for early, late in itertools.pairwise(pauses)]
    assert len(pauses) == 6
    assert gaps == sorted(gaps)


def test_messages_about_unknown_things_change_nothing(direct):
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
        (ev.Offered, ("k:9",)),
        (ev.EndLease, ("L", 1, "")),
    ]:
        assert direct.say(kind, *args) == []


# Greetings


def test_half_a_greeting_and_silence(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.tick(HANDSHAKE_S - 0.1) == []
    assert direct.tick(0.2) == [ev.Drop(1)]


def test_garbage_is_dropped_with_a_line(direct):
    direct.say(ev.Accepted, 1, "peer")
    assert direct.say(ev.Broken, 1, "peer: not the opening of a session") == [ev.Drop(1)]
    assert "connection dropped: peer: not the opening of a session" in direct.logged()


def test_of_too_many_strangers_the_oldest_goes(direct):
    for conn in range(MAX_OPENINGS):
        assert direct.say(ev.Accepted, conn, "peer") == []
    assert direct.say(ev.Accepted, MAX_OPENINGS, "peer") == [ev.Drop(0)]


# With our tracker


def taken(script, key="k:1", lease="L1", epoch=1, limit_s=None):
    return script.say(ev.Taken, lease, epoch, key, "user", "10.0.0.1", limit_s)


def test_a_lease_from_start_to_end(tracked):
    taken(tracked, limit_s=60.0)
    started, report = tracked.visit(5, "k:1")
    assert (started.lease, started.limit_s) == ("L1", 60.0)
    assert report == ev.Started("L1", 1, "peer5")
    tracked.say(ev.ChildDone, 1, "closed")
    actions = tracked.bury(1, 0, ("sleep",))
    assert ev.Ended("L1", 1, "closed", ("sleep",)) in actions
    assert tracked.offers(actions) == ["k:2"]


def test_a_match_key_serves_once(tracked):
    taken(tracked)
    tracked.visit(5, "k:1")
    assert tracked.visit(6, "k:1") == [ev.Refuse(6, "mismatch")]


def test_the_plain_key_is_no_match_key(tracked):
    assert tracked.visit(5, "k") == [ev.Refuse(5, "mismatch")]


def test_a_client_faster_than_the_trackers_word_is_held_back(tracked):
    assert tracked.visit(5, "k:1") == []
    started, report = taken(tracked, limit_s=30.0)
    assert (started.lease, started.limit_s) == ("L1", 30.0)
    assert report == ev.Started("L1", 1, "peer5")


def test_but_not_for_long(tracked):
    tracked.visit(5, "k:1")
    (started,) = tracked.tick(3)
    assert started.lease is None
    assert taken(tracked) == [ev.Started("L1", 1, "peer5")]


def test_nor_when_the_tracker_is_gone(tracked):
    tracked.visit(5, "k:1")
    assert kinds(tracked.say(ev.LinkDown, "gone")) == [ev.Start]


def test_a_key_taken_and_not_used_is_renewed(tracked):
    taken(tracked)
    assert tracked.tick(7.9) == []
    actions = tracked.tick(0.2)
    assert actions == [ev.Ended("L1", 1, "unused"), ev.Offer()]
    assert tracked.visit(5, "k:1") == [ev.Refuse(5, "mismatch")]


def test_a_key_used_for_what_cannot_be_served_is_renewed_at_once(tracked):
    taken(tracked)
    assert tracked.visit(5, "k:1", "rpcsys/9") == [
        ev.Refuse(5, "version"),
        ev.Ended("L1", 1, "unused"),
        ev.Offer(),
    ]


def test_the_tracker_takes_an_unused_lease_back(tracked):
    taken(tracked)
    assert tracked.say(ev.EndLease, "L1", 1, "unused") == [ev.Offer()]


def test_but_a_session_that_was_opened_meanwhile_goes_on(tracked):
    taken(tracked)
    tracked.visit(5, "k:1")
    assert tracked.say(ev.EndLease, "L1", 1, "unused") == []


def test_the_tracker_ends_a_session(tracked):
    taken(tracked)
    tracked.visit(5, "k:1")
    assert tracked.say(ev.EndLease, "L1", 0, "operator") == []  # an older lease
    assert tracked.say(ev.EndLease, "L1", 1, "operator") == [ev.Kill(1), ev.Spawn(2)]
    assert ev.Ended("L1", 1, "ended") in tracked.bury(1, -9)


def test_a_tracker_that_vanishes_and_comes_back(tracked):
    taken(tracked)
    tracked.visit(5, "k:1")
    assert tracked.say(ev.LinkDown, "it closed the connection") == []
    tracked.say(ev.ChildDone, 1, "closed")
    tracked.bury(1)
    assert tracked.tick(0.2) == [ev.Connect()]
    (register,) = tracked.say(ev.LinkUp, True)
    assert register == ev.Register()
    assert tracked.say(ev.Registered) == [ev.Ended("L1", 1, "closed"), ev.Offer()]
    assert sum("no tracker" in line for line in tracked.logged()) == 1


def test_running_leases_are_told_again(tracked):
    taken(tracked)
    tracked.visit(5, "k:1")
    tracked.say(ev.LinkDown, "gone", after=4.0)
    tracked.tick(0.2)
    (register,) = tracked.say(ev.LinkUp, True)
    ((lease, epoch, since),) = register.running
    assert (lease, epoch) == ("L1", 1)
    assert since == pytest.approx(4.2)


def test_connecting_again_never_takes_five_seconds(tracked):
    tracked.say(ev.LinkDown, "gone")
    before = tracked.now
    for _ in range(12):
        while tracked.state.offers.link == "down":
            tracked.tick(0.1)
        assert tracked.now - before < 5
        before = tracked.now
        tracked.say(ev.LinkDown, "refused")


def test_a_tracker_that_never_answers_is_given_up(tracked):
    tracked.say(ev.LinkDown, "gone")
    assert kinds(tracked.tick(0.15)) == [ev.Connect]
    assert kinds(tracked.tick(5.1)) == [ev.Disconnect]
    assert kinds(tracked.tick(1)) == [ev.Connect]


def test_offered_keys_die_with_the_link_and_taken_ones_do_not():
    script = Transcript(tracked=True, slots=2)
    script.boot()
    assert script.register() == ["k:1", "k:2"]
    taken(script, "k:1")
    script.say(ev.LinkDown, "gone")
    assert script.visit(1, "k:2") == [ev.Refuse(1, "mismatch")]
    assert kinds(script.visit(2, "k:1")) == [ev.Start]
    script.replay()


def test_a_lingering_key_keeps_its_slot():
    script = Transcript(tracked=True)
    script.boot()
    script.register()
    taken(script, "k:1")
    script.say(ev.LinkDown, "gone")
    script.tick(0.2)
    assert script.register() == []
    assert script.offers(script.tick(8)) == ["k:2"]


# With TVM's tracker


@pytest.fixture
def on_tvm():
    script = Transcript(tracked=True)
    script.boot()
    assert script.register(ours=False) == ["k:1"]
    yield script
    script.replay()


def test_a_session_without_a_lease(on_tvm):
    (started,) = on_tvm.visit(1, "k:1", None)
    assert (started.kind, started.lease) == ("tvm", None)
    on_tvm.say(ev.ChildDone, 1, "closed")
    assert on_tvm.offers(on_tvm.bury(1)) == ["k:2"]


def test_polls_find_a_key_that_was_taken_and_not_used(on_tvm):
    assert on_tvm.tick(2.1) == [ev.Poll()]
    on_tvm.say(ev.Pending, ("k:1",))
    on_tvm.tick(2)
    on_tvm.say(ev.Pending, ())
    on_tvm.say(ev.Pending, (), after=4)
    actions = on_tvm.tick(2.1)
    assert ev.Offer() in actions
    assert on_tvm.offers(actions) == ["k:2"]


def test_a_key_that_is_back_was_never_taken(on_tvm):
    on_tvm.say(ev.Pending, ())
    on_tvm.say(ev.Pending, ("k:1",))
    assert ev.Offer() not in on_tvm.tick(20)


# Stopping


def test_stop_without_sessions_is_at_once(tracked):
    assert tracked.say(ev.Stop) == [ev.StopListening(), ev.Disconnect(), ev.Exit()]


def test_leases_that_end_while_it_stops_are_still_told(tracked):
    tracked.say(ev.Taken, "L1", 1, "k:1", "u", "a", None)
    tracked.visit(1, key="k:1")
    assert tracked.say(ev.Stop) == [ev.StopListening(), TellHealth("it is being stopped")]
    assert tracked.say(ev.Offered, "k:9") == []
    tracked.say(ev.ChildDone, 1, "closed")
    told = tracked.bury(1)
    assert [action for action in told if isinstance(action, ev.Ended)] == [ev.Ended("L1", 1, "closed")]
    assert told[-2:] == [ev.Disconnect(), ev.Exit()]


def test_leases_that_nobody_has_used_end_when_it_stops(tracked):
    tracked.say(ev.Taken, "L1", 1, "k:1", "u", "a", None)
    assert ev.Ended("L1", 1, "unused") in tracked.say(ev.Stop)


def test_a_tracker_that_is_away_when_it_stops_is_told_when_it_is_back(tracked):
    tracked.say(ev.Taken, "L1", 1, "k:1", "u", "a", None)
    tracked.visit(1, key="k:1")
    tracked.say(ev.LinkDown, "gone")
    assert tracked.say(ev.Stop) == [ev.StopListening()]
    assert tracked.tick(1) == [ev.Connect()]
    tracked.say(ev.ChildDone, 1, "closed")
    assert ev.Exit() not in tracked.bury(1)
    assert [type(action) for action in tracked.say(ev.LinkUp, True)] == [ev.Register]
    told = tracked.say(ev.Registered)
    assert told[0] == ev.Ended("L1", 1, "closed")
    assert told[-2:] == [ev.Disconnect(), ev.Exit()]


def test_a_tracker_that_stays_away_holds_up_no_stop(tracked):
    tracked.say(ev.Taken, "L1", 1, "k:1", "u", "a", None)
    tracked.visit(1, key="k:1")
    tracked.say(ev.LinkDown, "gone")
    tracked.say(ev.Stop)
    tracked.say(ev.ChildDone, 1, "closed")
    assert ev.Exit() in tracked.bury(1)


def test_stop_lets_sessions_finish(direct):
    direct.visit(1)
    direct.say(ev.Accepted, 2, "peer")
    assert direct.say(ev.Stop) == [ev.StopListening(), ev.Drop(2)]
    assert direct.say(ev.Accepted, 3, "peer") == [ev.Drop(3)]
    direct.say(ev.ChildDone, 1, "closed")
    assert direct.bury(1)[-1] == ev.Exit()


def test_a_patient_stop_waits_as_long_as_its_sessions(direct):
    direct.visit(1)
    assert direct.say(ev.Stop, True) == [ev.StopListening()]
    assert direct.tick(100_000) == []
    assert direct.say(ev.Stop, True) == []
    direct.say(ev.ChildDone, 1, "closed")
    assert direct.bury(1)[-1] == ev.Exit()


def test_a_patient_stop_can_be_hurried(direct):
    direct.visit(1)
    direct.say(ev.Stop, True)
    direct.tick(100)
    assert direct.say(ev.Stop) == []
    assert direct.tick(9.9) == []
    assert direct.tick(0.2) == [ev.Kill(1)]
    assert direct.bury(1, -9)[-1] == ev.Exit()


def test_and_ends_them_after_the_grace(direct):
    direct.visit(1)
    direct.say(ev.Stop)
    assert direct.tick(9.9) == []
    assert direct.tick(0.2) == [ev.Kill(1)]
    assert direct.bury(1, -9)[-1] == ev.Exit()


def test_or_when_told_twice(direct):
    direct.visit(1)
    direct.say(ev.Stop)
    assert direct.say(ev.Stop) == [ev.Kill(1)]


# At random


def anything(chance, script, step):
    """One event of any kind, about anything there is or was."""
    board = script.state.board
    child = chance.choice([*board.children, 1])
    conn = chance.choice([*(session.conn for session in board.sessions.values()), 1])
    gone = [number for number, session in board.sessions.items() if session.state == "cleaning"]
    key = chance.choice([*script.state.offers.keys, "k", "k:bad"])
    acts = [
        lambda: script.visit(1000 + step, key, chance.choice(["rpcsys/1", None])),
        lambda: script.say(ev.ChildReady, child),
        lambda: script.say(ev.ChildDone, child, "closed"),
        lambda: script.say(ev.ChildDead, child, chance.choice([0, 1, -9])),
        lambda: script.say(ev.HungUp, conn),
        lambda: script.say(ev.Removed, chance.choice([*gone, 99])),
        lambda: script.say(chance.choice([ev.ZygoteDown, ev.ZygoteUp, ev.ZygoteUp, ev.ZygoteUp])),
        lambda: script.say(ev.LinkDown, "gone"),
        lambda: script.say(ev.LinkUp, True),
        lambda: script.say(ev.Registered),
        lambda: taken(script, key, f"L{step}", step),
        lambda: script.tick(chance.random() * 3),
    ]
    return chance.choice(acts)()


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_breaks_a_server(seed):
    """Whatever comes in whatever order: slots are never oversold, deadlines move, and the log replays."""
    chance = random.Random(seed)
    script = Transcript(slots=2, tracked=seed % 2 == 1)
    script.boot()
    for step in range(300):
        script.offers(anything(chance, script, step))
        board = script.state.board
        assert len(board.sessions) <= 2
        served = [child.session for child in board.children.values() if child.state == "serving"]
        assert len(set(served)) == len(served)
    script.replay()


# CPUs, memory, imports that hang, boards that cannot be cleaned


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
    assert script.say(ev.MemoryExceeded, 1) == [ev.Kill(1), ev.Spawn(2)]
    assert script.say(ev.MemoryExceeded, 1) == []
    (finish,) = only(script.bury(1, -9), ev.Finish)
    assert finish.error[0] == "MemoryLimit"
    assert "512 MB" in finish.error[1]
    assert any("memory" in line for line in script.logged())
    script.replay()


def test_a_crash_for_want_of_memory_is_called_by_its_name():
    script = Transcript(memory=512 << 20)
    script.boot()
    script.visit(1)
    (finish,) = only(script.say(ev.ChildDead, 1, -11, starved=True), ev.Finish)
    assert finish.error[0] == "MemoryLimit"
    script.replay()


def test_the_lease_of_a_tvm_session_says_that_memory_ended_it(tracked):
    tracked.say(ev.Taken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.visit(1, key="k:1", session=None)
    tracked.say(ev.MemoryExceeded, 1)
    (ended,) = only(tracked.bury(1, -9), ev.Ended) or only(tracked.out, ev.Ended)
    assert (ended.lease, ended.outcome) == ("L", "memory")


def test_what_was_removed_is_in_the_log_and_in_the_lease(tracked):
    tracked.say(ev.Taken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.visit(1, key="k:1")
    tracked.say(ev.ChildDone, 1, "closed", ("/dev/shm/a",))
    tracked.say(ev.ChildDead, 1, 0, ("sh",), removed=("/dev/shm/b",))
    (ended,) = only(tracked.say(ev.Removed, 1, ("System V queue 3",)), ev.Ended)
    assert ended.cleaned == ("sh",)
    assert ended.removed == ("/dev/shm/a", "/dev/shm/b", "System V queue 3")
    assert any("had to be removed: /dev/shm/a, /dev/shm/b, System V" in line for line in tracked.logged())


def test_shared_memory_is_looked_for_where_namespaces_are_shared():
    script = Transcript(slots=2)
    script.say(ev.ZygoteUp, "Operation not permitted")
    assert any("Operation not permitted" in line for line in script.logged())
    script.say(ev.ChildReady, 1)
    script.say(ev.ChildReady, 2)
    assert script.visit(1)[0].note
    assert not script.visit(2)[0].note
    assert only(script.say(ev.ChildDead, 1, 0), ev.Finish)[0].sweep == "busy"
    script.say(ev.Removed, 1)
    assert only(script.say(ev.ChildDead, 2, 0), ev.Finish)[0].sweep == "idle"
    script.replay()


def test_an_import_that_hangs_before_the_server_serves_ends_it():
    script = Transcript(import_s=5.0)
    script.say(ev.Importing, "--preload a")
    script.say(ev.Importing, "--preload b", after=4.0)
    assert script.tick(4.0) == []
    (kill, leave) = script.tick(2.0)
    assert kill == ev.KillZygote()
    assert leave.why.startswith("--preload b: the import is not done after 5 s")
    script.replay()


def test_an_import_that_hangs_later_is_logged_and_tried_again(direct):
    direct.say(ev.ZygoteDown)
    direct.tick(5.0)
    direct.say(ev.Importing, "--import slow")
    assert direct.tick(61.0) == [ev.KillZygote()]
    assert any(line.startswith("--import slow:") for line in direct.logged())
    assert ev.StartZygote() in direct.say(ev.ZygoteDown) + direct.tick(10.0)


def test_an_import_of_a_child_hangs():
    script = Transcript()
    script.boot()
    script.visit(1)
    script.say(ev.ChildDone, 1, "closed")
    script.say(ev.Importing, "--preload numpy", 2)
    assert ev.Kill(2) in script.tick(61.0)
    script.replay()


@pytest.mark.parametrize("how", ["left", "stuck", "unkillable", "after the zygote"])
def test_a_board_that_is_not_clean_is_not_offered_again(tracked, how):
    tracked.say(ev.Taken, "L", 1, "k:1", "me", "1.2.3.4")
    tracked.visit(1, key="k:1")
    if how == "left":
        tracked.say(ev.ChildDead, 1, 0)
        tracked.say(ev.Removed, 1, (), ("/tmp/x (Operation not permitted)",))
    elif how == "stuck":
        tracked.bury(1)
        tracked.say(ev.ChildDead, 1, 0, stuck=("dd",))
    elif how == "unkillable":
        tracked.say(ev.HungUp, 1)
        tracked.tick(12.0)
    else:
        tracked.say(ev.ZygoteDown, (), ("dd",))
    assert tracked.state.board.free == 0
    assert sum("is not offered any more" in line for line in tracked.logged()) == 1
    before = len(tracked.out)
    if tracked.state.offers.link == "down":
        tracked.tick(5.0)
        tracked.say(ev.LinkUp, True)
        tracked.say(ev.Registered)
    assert only(tracked.out[before:], ev.Offer) == []
    assert only(tracked.visit(9, key="k:2"), ev.Refuse)


def test_what_is_offered_of_a_board_that_is_not_clean_is_taken_back():
    script = Transcript(tracked=True, slots=2)
    script.boot()
    keys = script.register()
    script.say(ev.Taken, "L", 1, keys[0], "me", "1.2.3.4")
    script.visit(1, key=keys[0])
    script.say(ev.ChildDead, 1, 0)
    assert ev.Disconnect() in script.say(ev.Removed, 1, (), ("/tmp/x",))
    assert script.tick(0.1) == [ev.Connect()]
    script.replay()


def test_visitors_of_a_board_that_is_not_clean_are_turned_away():
    script = Transcript(slots=1)
    script.boot()
    script.visit(1)
    script.visit(2)
    script.say(ev.ChildDead, 1, 0)
    assert script.say(ev.Removed, 1, (), ("/tmp/x",)) == [ev.Refuse(2, "mismatch")]
    assert script.visit(3) == [ev.Refuse(3, "mismatch")]
    script.replay()
