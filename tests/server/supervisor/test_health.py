"""A board's fitness: when it is checked and recovered, what is offered meanwhile, what the tracker is told."""

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
        made[-1].say(ev.LinkUp, ours)
        return made[-1], made[-1].say(ev.Registered)

    yield make
    for transcript in made:
        transcript.replay()


def kinds(actions):
    return [type(action) for action in actions]


def session(scene, key, fault=False):
    """One session with a match key from its grant to its end; what its end leads to."""
    count = scene.count = getattr(scene, "count", 0) + 1
    scene.say(ev.KeyTaken, f"l{count}", count, key, "ann", "10.0.0.5")
    scene.visit(100 + count, key=key)
    (child,) = [number for number, child in scene.state.processes.children.items() if child.state is SERVING]
    if fault:
        actions = scene.bury(child, 1)
    else:
        scene.say(ev.SessionOpened, child)
        scene.say(ev.ChildDone, child, "closed")
        actions = scene.bury(child)
    for spawned in [action for action in scene.out if isinstance(action, do.Spawn)][-1:]:
        actions += scene.say(ev.ChildReady, spawned.child)
    return actions


def test_the_check_decides_before_the_first_offer(begin):
    scene, registered = begin(health_check=True)
    assert scene.out.count(do.RunCommand(CHECK)) == 1
    assert do.Offer not in kinds(registered)
    assert kinds(scene.say(ev.CommandDone, CHECK)) == [do.Offer]


def test_it_is_run_again_after_every_session(begin):
    scene, _ = begin(health_check=True)
    (key,) = scene.offers(scene.say(ev.CommandDone, CHECK))
    ended = session(scene, key)
    assert do.RunCommand(CHECK) in ended
    assert do.Offer not in kinds(ended)
    assert kinds(scene.say(ev.CommandDone, CHECK)) == [do.Offer]


def test_it_is_run_once_a_minute_while_the_board_is_idle(begin):
    scene, _ = begin(health_check=True)
    scene.offers(scene.say(ev.CommandDone, CHECK))
    assert scene.tick(EVERY_S - 1) == []
    assert scene.tick(1.1) == [do.RunCommand(CHECK)]
    assert scene.say(ev.CommandDone, CHECK) == []
    assert scene.tick(EVERY_S) == [do.RunCommand(CHECK)]


def test_a_board_that_is_not_fit_says_so_and_is_looked_at_with_growing_pauses(begin):
    scene, _ = begin(health_check=True)
    assert scene.say(ev.CommandDone, CHECK, "no camera") == [do.ReportHealth("the health check failed: no camera")]
    pauses = []
    for _ in range(10):
        began = scene.now
        while not (ran := scene.tick(0.5)):
            pass
        assert ran == [do.RunCommand(CHECK)]
        pauses.append(scene.now - began)
        assert scene.say(ev.CommandDone, CHECK, "no camera") == []
    assert pauses[:3] == [2, 4, 8]
    assert max(pauses) == PAUSE_S[1]
    assert len([line for line in scene.logged() if "not offered" in line]) == 1
    scene.tick(PAUSE_S[1])
    assert kinds(scene.say(ev.CommandDone, CHECK)) == [do.ReportHealth, do.Offer]


def test_a_recovery_is_tried_before_the_next_check(begin):
    scene, _ = begin(health_check=True, recover=True)
    scene.say(ev.CommandDone, CHECK, "no camera")
    assert scene.tick(PAUSE_S[0]) == [do.RunCommand(RECOVER)]
    assert scene.say(ev.CommandDone, RECOVER, "no switch") == [do.RunCommand(CHECK)]
    assert any("no switch" in line for line in scene.logged())
    assert kinds(scene.say(ev.CommandDone, CHECK)) == [do.ReportHealth, do.Offer]


def test_faults_in_a_row_are_a_reason_to_recover(begin):
    scene, registered = begin(recover=True)
    keys = scene.offers(registered)
    for number in range(FAULTS):
        actions = session(scene, keys[0], fault=True)
        (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
        assert (ended.outcome, ended.fault) == ("crashed", "its process died before the session was open")
        keys = scene.offers(actions) if number < FAULTS - 1 else []
    assert do.RunCommand(RECOVER) in actions
    assert do.Offer not in kinds(actions)
    assert kinds(scene.say(ev.CommandDone, RECOVER)) == [do.Offer]


def test_what_a_session_does_wrong_is_no_fault(begin):
    scene, registered = begin(recover=True)
    keys = scene.offers(registered)
    for _ in range(2 * FAULTS):
        scene.say(ev.KeyTaken, f"l{scene.now}", 1, keys[0], "ann", "10.0.0.5")
        scene.visit(int(scene.now), key=keys[0])
        (child,) = [n for n, child in scene.state.processes.children.items() if child.state is SERVING]
        scene.say(ev.SessionOpened, child)
        actions = scene.bury(child, -11)
        (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
        assert (ended.outcome, ended.fault) == ("crashed", "")
        for spawned in [action for action in scene.out if isinstance(action, do.Spawn)][-1:]:
            actions += scene.say(ev.ChildReady, spawned.child)
        keys = scene.offers(actions)
        scene.now += 1
    assert do.RunCommand(RECOVER) not in scene.out


def test_a_session_that_cannot_start_or_cannot_be_cleaned_is_a_fault(begin):
    scene, registered = begin()
    (key,) = scene.offers(registered)
    scene.say(ev.KeyTaken, "l1", 1, key, "ann", "10.0.0.5")
    scene.visit(1, key=key)
    actions = scene.say(ev.StartFailed, 1, "no space left")
    actions += scene.say(ev.Removed, 1, left=("/tmp/x",))
    (ended,) = [action for action in actions if isinstance(action, do.ReportEnd)]
    assert ended.fault == "it could not be cleaned: /tmp/x is left"
    (told,) = [action for action in scene.out if isinstance(action, do.ReportHealth)]
    assert "/tmp/x" in told.problem


def test_what_is_told_is_told_again_to_a_tracker_that_is_back(begin):
    scene, _ = begin(health_check=True)
    scene.say(ev.CommandDone, CHECK, "x")
    scene.say(ev.LinkDown, "gone")
    scene.tick(1)
    scene.say(ev.LinkUp, True)
    assert do.ReportHealth in kinds(scene.say(ev.Registered))


def test_tvms_tracker_is_told_nothing_and_offered_nothing(begin):
    scene, registered = begin(ours=False, health_check=True)
    assert do.Offer not in kinds(registered)
    scene.offers(scene.say(ev.CommandDone, CHECK))
    scene.tick(EVERY_S)
    assert do.Disconnect in kinds(scene.say(ev.CommandDone, CHECK, "x"))
    assert not any(isinstance(action, do.ReportHealth) for action in scene.out)


def test_a_free_slot_is_checked_while_another_is_in_use(begin):
    scene, _ = begin(health_check=True, slots=2)
    keys = scene.offers(scene.say(ev.CommandDone, CHECK))
    scene.say(ev.KeyTaken, "other", 99, keys[1], "bob", "10.0.0.6")
    scene.visit(50, key=keys[1])
    children = {number for number, child in scene.state.processes.children.items() if child.state is SERVING}
    scene.say(ev.KeyTaken, "l", 1, keys[0], "ann", "10.0.0.5")
    scene.visit(51, key=keys[0])
    (child,) = [
        number
        for number, child in scene.state.processes.children.items()
        if child.state is SERVING and number not in children
    ]
    scene.say(ev.ChildDone, child, "closed")
    assert do.RunCommand(CHECK) in scene.bury(child)
    assert do.Offer in kinds(scene.say(ev.CommandDone, CHECK))


# --- renewal -------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_end_of_a_running_session(begin):
    scene, registered = begin()
    (key,) = scene.offers(registered)
    scene.say(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 10.0)
    scene.visit(1, key=key)
    scene.now += 5
    (told,) = scene.say(ev.LeaseRenewed, "l", 1, 20.0)
    assert (told.until, told.child) == (scene.now + 20, 1)
    assert do.Kill not in kinds(scene.tick(20))
    assert do.Kill in kinds(scene.tick(1))


def test_a_renewal_outlasts_what_the_client_asked_for_at_first(begin):
    """The child tells of it a moment later than the tracker."""
    scene, registered = begin()
    (key,) = scene.offers(registered)
    scene.say(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 2.0)
    scene.visit(1, key=key)
    scene.say(ev.LeaseRenewed, "l", 1, 8.0)
    assert kinds(scene.say(ev.LimitAsked, 1, 2.0)) == [do.Extend]
    assert scene.tick(7) == []
    assert do.Kill in kinds(scene.tick(2))


def test_no_limit_any_more(begin):
    scene, registered = begin()
    (key,) = scene.offers(registered)
    scene.say(ev.KeyTaken, "l", 1, key, "ann", "10.0.0.5", 2.0)
    scene.visit(1, key=key)
    assert scene.say(ev.LeaseRenewed, "l", 1, None) == [do.Extend(1, None)]
    assert scene.tick(1000) == []


def test_a_renewal_before_the_session_and_one_of_another_lease(begin):
    scene, registered = begin()
    (key,) = scene.offers(registered)
    scene.say(ev.KeyTaken, "l", 7, key, "ann", "10.0.0.5", 2.0)
    assert scene.say(ev.LeaseRenewed, "l", 6, 50.0) == []
    assert scene.say(ev.LeaseRenewed, "l", 7, 50.0) == []
    started = [action for action in scene.visit(1, key=key) if isinstance(action, do.Start)]
    assert started[0].limit_s == 50
