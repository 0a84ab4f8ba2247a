"""When a canary runs, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.canary_runs import EVERY_S, IDLE_S, RUN_S, SHARE, SOON_S
from tests.server.transcripts import Transcript, only, taken

LASTED_S = 0.5


class CanaryScript(Transcript):
    """A registered server with a canary and one slot, whose key ``k:1`` is on offer."""

    def __init__(self, **policy):
        super().__init__(tracked=True, canary=True, **policy)
        self.boot()
        self.register()
        self.last = 0

    def begins(self, within):
        """Let time pass until a canary's process is made, at most so long; the seconds, None if none is."""
        begin = self.now
        while self.now < begin + within:
            due = self.state.deadline()
            if due is None or due > begin + within:
                break
            found = only(self.tick(max(due - self.now, 0.0)), do.Spawn)
            if found:
                (spawned,) = found
                assert spawned.kind is ChildKind.CANARY
                self.last = spawned.child
                return self.now - begin
        self.now = begin + within
        return None

    def runs(self, seconds=0.01, disturbed=False, lasted=LASTED_S, **result):
        """Have the canary that begins run to its end; the report."""
        assert self.post(ev.ChildReady, self.last) == [do.RunCanary(self.last)]
        self.post(ev.CanaryDone, self.last, "builtin", seconds, disturbed, after=lasted, **result)
        return only(self.post(ev.ChildDead, self.last, 0), do.ReportCanary)

    def session(self, cleaned=(), conn=9, key="k:1"):
        """A session from its lease to its end, which offers the next key."""
        taken(self, key)
        (start,) = only(self.greet(conn, key), do.Start)
        for spawned in only(self.post(ev.ChildDone, start.child, "closed"), do.Spawn):
            self.post(ev.ChildReady, spawned.child)  # it waits for the next session
        return self.offers(self.child_dies(start.child, 0, cleaned))


@pytest.fixture
def script():
    return CanaryScript()


def test_an_idle_board_runs_it_again_and_again(script):
    assert script.begins(60) == pytest.approx(IDLE_S)
    assert script.runs() == [do.ReportCanary("builtin", 0.01, False, 0.0, "")]
    for _ in range(3):
        assert script.begins(600) == pytest.approx(EVERY_S)
        script.runs()
    assert script.state.canary.counts == {"done": 4}
    assert script.state.canary.seconds == 0.01


@pytest.mark.parametrize("lasted", [0.1, 0.5, 3.0, 10.0, 50.0])
def test_all_runs_together_take_at_most_a_hundredth_of_the_time(lasted):
    script = CanaryScript()
    spent, begin = 0.0, script.now
    for _ in range(20):
        assert script.begins(10_000) is not None
        script.runs(disturbed=True, lasted=lasted)  # which is repeated soon
        spent += lasted
    assert script.begins(10_000) is not None
    assert spent / (script.now - begin) <= SHARE


def test_nothing_changes_for_the_offers_while_it_runs(script):
    assert script.begins(60) is not None
    assert script.post(ev.ChildReady, script.last) == [do.RunCanary(script.last)]
    assert script.state.slots.free == 1
    assert list(script.state.offers.keys) == ["k:1"]


@pytest.mark.parametrize("ready", [False, True])
def test_a_lease_ends_it_at_once(script, ready):
    script.begins(60)
    if ready:
        script.post(ev.ChildReady, script.last)
    assert taken(script) == [do.Kill(script.last)]
    assert only(script.greet(3, "k:1"), do.Start)
    assert not only(script.post(ev.ChildDead, script.last, -9), do.ReportCanary)
    assert script.state.canary.counts == {"stopped": 1}


def test_a_client_of_a_tracker_of_tvms_ends_it_when_it_connects(script):
    script.begins(60)
    assert do.Kill(script.last) in script.post(ev.Accepted, 3, "peer3")


def test_a_stopped_run_is_made_again_when_the_board_is_idle(script):
    script.begins(60)
    (kill,) = taken(script)
    script.post(ev.ChildDead, kill.child, -9)
    script.session(conn=4)
    assert script.begins(600) == pytest.approx(IDLE_S, abs=LASTED_S / SHARE)


def test_a_kill_is_repeated_until_it_is_dead(script):
    script.begins(60)
    script.post(ev.ChildReady, script.last)
    taken(script)
    (start,) = only(script.greet(3, "k:1"), do.Start)
    assert do.Kill(script.last) in script.tick(6)
    assert script.post(ev.CanaryDone, script.last, "builtin", 0.01) == []
    assert not only(script.post(ev.ChildDead, script.last, 0), do.ReportCanary)
    assert start.child != script.last


def test_a_session_that_left_something_is_followed_by_a_run(script):
    script.begins(60)
    script.runs()
    script.tick(60)
    (key,) = script.session()
    assert script.begins(30) is None
    script.session(("a process",), 5, key)
    assert script.begins(30) == pytest.approx(SOON_S)


def test_sessions_that_leave_something_all_the_time_do_not_take_more_than_a_hundredth(script):
    keys, spent, begin = ["k:1"], 0.0, script.now
    for number in range(60):
        keys = script.session(("a process",), 20 + number, keys[0])
        if script.begins(5) is not None:
            script.runs()
            spent += LASTED_S
    assert spent > 0
    assert spent <= SHARE * (script.now - begin) + LASTED_S


def test_a_disturbed_run_is_reported_as_such_and_repeated_soon(script):
    script.begins(60)
    assert script.runs(disturbed=True) == [do.ReportCanary("builtin", 0.01, True, 0.0, "")]
    assert script.begins(600) == pytest.approx(LASTED_S / SHARE)
    assert script.state.canary.seconds == 0.0


def test_a_canary_that_cannot_run_is_reported_with_the_reason(script):
    script.begins(60)
    script.post(ev.ChildReady, script.last)
    script.post(ev.CanaryDone, script.last, why="no such file")
    actions = script.post(ev.ChildDead, script.last, 0)
    assert only(actions, do.ReportCanary)[0].problem == "no such file"
    assert script.logged()[-1] == "the canary could not run: no such file"
    script.begins(600)
    script.post(ev.ChildReady, script.last)
    (report,) = only(script.post(ev.ChildDead, script.last, -11), do.ReportCanary)
    assert report.problem == "its process ended with status -11"
    assert script.state.canary.counts == {"failed": 2}


def test_a_canary_that_hangs_is_ended(script):
    script.begins(60)
    script.post(ev.ChildReady, script.last)
    assert do.Kill(script.last) in script.tick(RUN_S)
    (report,) = only(script.post(ev.ChildDead, script.last, -9), do.ReportCanary)
    assert report.problem == "it was not done after 60 s"


def test_a_pace_that_is_asked_for_is_kept():
    script = CanaryScript(canary_every_s=0.5)
    assert script.begins(60) == pytest.approx(0.5)
    script.runs()
    assert script.begins(60) == pytest.approx(0.5)


def test_no_run_without_a_tracker_that_hears_of_it(script):
    script.begins(60)
    script.runs()
    script.post(ev.LinkDown, "gone")
    assert script.state.canary.deadline() is None
    assert script.begins(3.0) is None


def test_a_dead_zygote_ends_a_run(script):
    script.begins(60)
    script.post(ev.ZygoteDown)
    assert script.state.canary.counts["failed"] == 1
    assert script.state.canary.child is None


def test_a_server_that_stops_ends_it(script):
    script.begins(60)
    script.post(ev.ChildReady, script.last)
    assert do.Kill(script.last) in script.post(ev.StopAsked)


def test_a_transcript_can_be_replayed(script):
    script.begins(60)
    script.runs()
    script.session(("a process",))
    script.begins(60)
    taken(script, "k:2")
    script.replay()
