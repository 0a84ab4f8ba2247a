"""A board's health: when it is checked and recovered, the offers meanwhile, and the reports to the tracker."""

import pytest

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.health import CHECK, EVERY_S, FAULTS, PAUSE_S, RECOVER
from rpcsys.server.supervisor.process_table import SERVING
from tests.server.transcripts import Transcript


@pytest.fixture
def begin():
    made = []

    def make(ours=True, **policy):
        made.append(Transcript(tracked=True, **policy))
        made[-1].boot()
        made[-1].post(ev.LinkUp, ours)
        return made[-1], made[-1].post(ev.Registered)

    yield make
    for transcript in made:
        transcript.replay()


def kinds(actions):
    return [type(action) for action in actions]


def session(board, key, fault=False):
    """Run one session with a match key from its grant to its end; the actions at its end."""
    count = board.count = getattr(board, "count", 0) + 1
    board.post(ev.KeyTaken, f"l{count}", count, key, "ann", "10.0.0.5")
    board.greet(100 + count, key=key)
    (child,) = [number for number, child in board.state.processes.children.items() if child.state is SERVING]
    if fault:
        actions = board.child_dies(child, 1)
    else:
        board.post(ev.SessionOpened, child)
        board.post(ev.ChildDone, child, "closed")
        actions = board.child_dies(child)
    for spawned in [action for action in board.out if isinstance(action, do.Spawn)][-1:]:
        actions += board.post(ev.ChildReady, spawned.child)
    return actions


def test_the_check_decides_before_the_first_offer(begin):
    board, registered = begin(health_check=True)
    assert board.out.count(do.RunCommand(CHECK)) == 1
    assert do.Offer not in kinds(registered)
    assert kinds(board.post(ev.CommandDone, CHECK)) == [do.Offer]


def test_the_check_runs_after_every_session(begin):
    board, _ = begin(health_check=True)
    (key,) = board.offers(board.post(ev.CommandDone, CHECK))
    ended = session(board, key)
    assert do.RunCommand(CHECK) in ended
    assert do.Offer not in kinds(ended)
    assert kinds(board.post(ev.CommandDone, CHECK)) == [do.Offer]


def test_the_check_runs_once_a_minute_on_an_idle_board(begin):
    board, _ = begin(health_check=True)
    board.offers(board.post(ev.CommandDone, CHECK))
    assert board.tick(EVERY_S - 1) == []
    assert board.tick(1.1) == [do.RunCommand(CHECK)]
    assert board.post(ev.CommandDone, CHECK) == []
    assert board.tick(EVERY_S) == [do.RunCommand(CHECK)]


def test_an_unfit_board_is_reported_and_checked_with_growing_pauses(begin):
    board, _ = begin(health_check=True)
    assert board.post(ev.CommandDone, CHECK, "no camera") == [do.ReportHealth("the health check failed: no camera")]
    pauses = []
    for _ in range(10):
        began = board.now
        while not (ran := board.tick(0.5)):
            pass
        assert ran == [do.RunCommand(CHECK)]
        pauses.append(board.now - began)
        assert board.post(ev.CommandDone, CHECK, "no camera") == []
    assert pauses[:3] == [2, 4, 8]
    assert max(pauses) == PAUSE_S[1]
    assert len([line for line in board.logged() if "not offered" in line]) == 1
    board.tick(PAUSE_S[1])
    assert kinds(board.post(ev.CommandDone, CHECK)) == [do.ReportHealth, do.Offer]


def test_recovery_runs_before_the_next_check(begin):
    board, _ = begin(health_check=True, recover=True)
    board.post(ev.CommandDone, CHECK, "no camera")
    assert board.tick(PAUSE_S[0]) == [do.RunCommand(RECOVER)]
    assert board.post(ev.CommandDone, RECOVER, "no switch") == [do.RunCommand(CHECK)]
    assert any("no switch" in line for line in board.logged())
    assert kinds(board.post(ev.CommandDone, CHECK)) == [do.ReportHealth, do.Offer]


def test_faults_in_a_row_start_a_recovery(begin):
    board, registered = begin(recover=True)
    keys = board.offers(registered)
    for number in range(FAULTS):
        actions = session(board, keys[0], fault=True)
        (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
        assert (ended.outcome, ended.fault) == ("crashed", "its process died before the session was open")
        keys = board.offers(actions) if number < FAULTS - 1 else []
    assert do.RunCommand(RECOVER) in actions
    assert do.Offer not in kinds(actions)
    assert kinds(board.post(ev.CommandDone, RECOVER)) == [do.Offer]


def test_an_open_sessions_failure_is_no_fault(begin):
    board, registered = begin(recover=True)
    keys = board.offers(registered)
    for _ in range(2 * FAULTS):
        board.post(ev.KeyTaken, f"l{board.now}", 1, keys[0], "ann", "10.0.0.5")
        board.greet(int(board.now), key=keys[0])
        (child,) = [n for n, child in board.state.processes.children.items() if child.state is SERVING]
        board.post(ev.SessionOpened, child)
        actions = board.child_dies(child, -11)
        (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
        assert (ended.outcome, ended.fault) == ("crashed", "")
        for spawned in [action for action in board.out if isinstance(action, do.Spawn)][-1:]:
            actions += board.post(ev.ChildReady, spawned.child)
        keys = board.offers(actions)
        board.now += 1
    assert do.RunCommand(RECOVER) not in board.out


def test_a_session_that_cannot_start_or_cannot_be_cleaned_is_a_fault(begin):
    board, registered = begin()
    (key,) = board.offers(registered)
    board.post(ev.KeyTaken, "l1", 1, key, "ann", "10.0.0.5")
    board.greet(1, key=key)
    actions = board.post(ev.StartFailed, 1, "no space left")
    actions += board.post(ev.Removed, 1, left=("/tmp/x",))
    (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
    assert ended.fault == "it could not be cleaned: /tmp/x is left"
    (report,) = [action for action in board.out if isinstance(action, do.ReportHealth)]
    assert "/tmp/x" in report.problem


def test_the_problem_is_reported_again_after_a_reconnect(begin):
    board, _ = begin(health_check=True)
    board.post(ev.CommandDone, CHECK, "x")
    board.post(ev.LinkDown, "gone")
    board.tick(1)
    board.post(ev.LinkUp, True)
    assert do.ReportHealth in kinds(board.post(ev.Registered))


def test_tvms_tracker_gets_no_report_and_no_offer(begin):
    board, registered = begin(ours=False, health_check=True)
    assert do.Offer not in kinds(registered)
    board.offers(board.post(ev.CommandDone, CHECK))
    board.tick(EVERY_S)
    assert do.Disconnect in kinds(board.post(ev.CommandDone, CHECK, "x"))
    assert not any(isinstance(action, do.ReportHealth) for action in board.out)


def test_a_free_slot_is_checked_while_another_is_in_use(begin):
    board, _ = begin(health_check=True, slots=2)
    keys = board.offers(board.post(ev.CommandDone, CHECK))
    board.post(ev.KeyTaken, "other", 99, keys[1], "bob", "10.0.0.6")
    board.greet(50, key=keys[1])
    children = {number for number, child in board.state.processes.children.items() if child.state is SERVING}
    board.post(ev.KeyTaken, "l", 1, keys[0], "ann", "10.0.0.5")
    board.greet(51, key=keys[0])
    (child,) = [
        number
        for number, child in board.state.processes.children.items()
        if child.state is SERVING and number not in children
    ]
    board.post(ev.ChildDone, child, "closed")
    assert do.RunCommand(CHECK) in board.child_dies(child)
    assert do.Offer in kinds(board.post(ev.CommandDone, CHECK))


# --- renewal -------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_end_of_a_running_session(begin):
    board, registered = begin()
    (key,) = board.offers(registered)
    board.post(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 10.0)
    board.greet(1, key=key)
    board.now += 5
    (extend,) = board.post(ev.LeaseRenewed, "l", 1, 20.0)
    assert (extend.until, extend.child) == (board.now + 20, 1)
    assert do.Kill not in kinds(board.tick(20))
    assert do.Kill in kinds(board.tick(1))


def test_a_renewal_overrides_the_clients_own_limit(begin):
    """The child's message about its limit arrives after the tracker's renewal."""
    board, registered = begin()
    (key,) = board.offers(registered)
    board.post(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 2.0)
    board.greet(1, key=key)
    board.post(ev.LeaseRenewed, "l", 1, 8.0)
    assert kinds(board.post(ev.LimitAsked, 1, 2.0)) == [do.Extend]
    assert board.tick(7) == []
    assert do.Kill in kinds(board.tick(2))


def test_a_renewal_can_remove_the_limit(begin):
    board, registered = begin()
    (key,) = board.offers(registered)
    board.post(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 2.0)
    board.greet(1, key=key)
    assert board.post(ev.LeaseRenewed, "l", 1, None) == [do.Extend(1, None)]
    assert board.tick(1000) == []


def test_a_renewal_before_the_session_sets_its_limit(begin):
    board, registered = begin()
    (key,) = board.offers(registered)
    board.post(ev.KeyTaken, "l", 7, key, "ann", "10.0.0.5", 2.0)
    assert board.post(ev.LeaseRenewed, "l", 6, 50.0) == []
    assert board.post(ev.LeaseRenewed, "l", 7, 50.0) == []
    started = [action for action in board.greet(1, key=key) if isinstance(action, do.Start)]
    assert started[0].limit_s == 50
