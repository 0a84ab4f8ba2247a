"""Who leads: each event in each stage."""

from __future__ import annotations

import pytest

from rpcsys.tracker.replicas.engine import Leader
from rpcsys.tracker.replicas.role import (
    _NEXT,
    CONTACT_S,
    DEAD_EVERY_S,
    BeginCampaign,
    Campaigned,
    CatchUp,
    Deposed,
    EngineSilent,
    Event,
    Follow,
    Kept,
    Lead,
    LeaderRefuses,
    ReplicaRole,
    RoleStage,
    Seen,
    StepDown,
    StopRequested,
)

OTHER = Leader(("lab-2", 9190), 0, "1", "other")
OWN = Leader(("lab-1", 9190), 0, "1", "own")


def leading(term: int = 5) -> ReplicaRole:
    role = ReplicaRole("own", 0.0)
    assert role.handle(Seen(1.0, None, 0, True)) == [BeginCampaign(0)]
    assert role.handle(Campaigned(2.0, term)) == [CatchUp(term)]
    assert role.handle(Seen(3.0, OWN, term, False)) == []
    assert role.handle(Seen(4.0, OWN, term, True)) == [Lead(term)]
    return role


def following(term: int = 5) -> ReplicaRole:
    role = ReplicaRole("own", 0.0)
    assert role.handle(Seen(1.0, OTHER, term, True)) == [Follow(OTHER, term)]
    return role


def test_who_sees_nobody_lead_campaigns_and_leads_once_it_has_the_journal() -> None:
    role = leading()
    assert (role.stage, role.term, role.leads, role.since) == (RoleStage.LEADING, 5, True, 4.0)


def test_who_follows_says_so_once() -> None:
    role = following()
    assert role.handle(Seen(2.0, OTHER, 5, True)) == []
    assert role.handle(Seen(3.0, None, 0, True)) == [Follow(None, 5), BeginCampaign(0)]


@pytest.mark.parametrize("term", [0, 5])
def test_who_loses_a_campaign_looks_again(term: int) -> None:
    role = following()
    role.handle(Seen(2.0, None, 0, True))
    assert role.handle(Campaigned(3.0, term)) == []
    assert role.stage is RoleStage.FOLLOWING
    assert role.handle(Seen(4.0, OTHER, 6, True)) == [Follow(OTHER, 6)]


def test_what_was_read_before_the_role_was_taken_changes_nothing() -> None:
    role = leading()
    assert role.handle(Seen(1.5, None, 0, True)) == []
    assert role.handle(Seen(9.0, OTHER, 4, True)) == []
    assert role.leads


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Seen(9.0, OTHER, 6, True), "another tracker leads"),
        (Seen(9.0, None, 0, True), "its lease is over"),
        (Deposed(9.0, 5), "another tracker leads"),
        (EngineSilent(4.0 + CONTACT_S + 0.1), "has not answered"),
    ],
)
def test_a_leader_steps_down(event: Seen | Deposed | EngineSilent, reason: str) -> None:
    role = leading()
    step_down, follow = role.handle(event)
    assert isinstance(step_down, StepDown)
    assert reason in step_down.reason
    assert (step_down.term, step_down.resign, follow) == (5, False, Follow(None, 5))
    assert role.stage is RoleStage.FOLLOWING


def test_contact_keeps_a_leader() -> None:
    role = leading()
    role.handle(Kept(8.0, 5))
    assert role.handle(EngineSilent(8.0 + CONTACT_S)) == []
    assert role.handle(Kept(12.0, 4)) == []  # of an earlier term
    assert role.handle(Deposed(12.0, 4)) == []
    assert role.handle(EngineSilent(8.1 + CONTACT_S))


def test_silence_changes_nothing_for_a_follower() -> None:
    assert following().handle(EngineSilent(1000.0)) == []


def test_a_leader_that_refuses_is_followed_at_once_and_not_again_soon() -> None:
    role = following()
    assert role.handle(LeaderRefuses(2.0, 4)) == []
    assert role.handle(LeaderRefuses(2.0, 5)) == [BeginCampaign(5)]
    role.handle(Campaigned(2.5, 0))
    assert role.handle(LeaderRefuses(3.0, 5)) == []
    assert role.handle(LeaderRefuses(2.0 + DEAD_EVERY_S, 5)) == [BeginCampaign(5)]


def test_who_cannot_lead_does_not_campaign() -> None:
    role = following()
    role.obstacle = "it cannot read the journal"
    assert role.handle(LeaderRefuses(2.0, 5)) == []
    assert role.handle(Seen(3.0, None, 0, True)) == [Follow(None, 5)]


def test_who_has_a_handicap_leaves_the_place_to_others_first() -> None:
    role = following()
    role.handicap_s = 5.0
    assert role.handle(LeaderRefuses(2.0, 5)) == []
    assert role.handle(Seen(3.0, None, 0, True)) == [Follow(None, 5)]
    assert role.handle(Seen(7.9, None, 0, True)) == []
    assert role.handle(Seen(8.0, None, 0, True)) == [BeginCampaign(0)]


def test_the_handicap_begins_anew_with_each_leader() -> None:
    role = following()
    role.handicap_s = 5.0
    role.handle(Seen(3.0, None, 0, True))
    role.handle(Seen(4.0, OTHER, 6, True))
    assert role.handle(Seen(8.5, None, 0, True)) == [Follow(None, 6)]


def test_a_campaign_of_its_own_whose_answer_was_lost_is_nobodys() -> None:
    role = following()
    role.handle(Seen(2.0, None, 0, True))
    role.handle(Campaigned(3.0, 0))
    assert role.handle(Seen(4.0, OWN, 6, True)) == [Follow(None, 6)]
    assert role.leader is None


def campaigning() -> ReplicaRole:
    role = following()
    role.handle(Seen(2.0, None, 0, True))
    return role


def catching_up() -> ReplicaRole:
    role = ReplicaRole("own", 0.0)
    role.handle(Seen(1.0, None, 0, True))
    role.handle(Campaigned(2.0, 5))
    return role


def stopped() -> ReplicaRole:
    role = following()
    role.handle(StopRequested(2.0))
    return role


FOLLOWING, CAMPAIGNING, CATCHING_UP, LEADING, STOPPED = RoleStage
#: The stage after each event at 20.0, or after one that the engine has refused; all others leave it as it is.
CHANGES = {
    (FOLLOWING, Seen(20.0, None, 0, True)): CAMPAIGNING,
    (FOLLOWING, LeaderRefuses(20.0, 5)): CAMPAIGNING,
    (CAMPAIGNING, Campaigned(20.0, 6)): CATCHING_UP,
    (CAMPAIGNING, Campaigned(20.0, 0)): FOLLOWING,
    (CATCHING_UP, Seen(20.0, OWN, 5, True)): LEADING,
    **{
        (stage, event): FOLLOWING
        for stage in (CATCHING_UP, LEADING)
        for event in (Seen(20.0, None, 0, True), Seen(20.0, OTHER, 6, True), EngineSilent(20.0), Deposed(20.0, 5))
    },
    **{(stage, StopRequested(20.0)): STOPPED for stage in RoleStage},
}
EVENTS = (
    *(Seen(20.0, None, 0, True), Seen(20.0, OTHER, 6, True), Seen(20.0, OWN, 5, True), Seen(20.0, OWN, 5, False)),
    *(EngineSilent(20.0), LeaderRefuses(20.0, 5), LeaderRefuses(20.0, 4), Campaigned(20.0, 6), Campaigned(20.0, 0)),
    *(Kept(20.0, 5), Deposed(20.0, 5), Deposed(20.0, 4), StopRequested(20.0)),
)
MAKERS = {FOLLOWING: following, CAMPAIGNING: campaigning, CATCHING_UP: catching_up, LEADING: leading, STOPPED: stopped}


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("stage", RoleStage)
def test_each_event_in_each_stage(stage: RoleStage, event: Event) -> None:
    role = MAKERS[stage]()
    assert role.stage is stage
    actions = role.handle(event)
    assert role.stage is CHANGES.get((stage, event), stage)
    assert any(isinstance(action, StepDown) for action in actions) == (
        stage in (CATCHING_UP, LEADING) and role.stage in (FOLLOWING, STOPPED)
    )


def test_the_changes_are_those_of_the_table() -> None:
    changes = {(stage, to) for (stage, _), to in CHANGES.items() if stage is not to}
    assert changes == {(stage, to) for stage, tos in _NEXT.items() for to in tos}


def test_only_who_has_the_term_gives_it_back() -> None:
    assert leading().handle(StopRequested(9.0)) == [StepDown(5, "it stops", resign=True)]
    role = following()
    assert role.handle(StopRequested(9.0)) == []
    assert role.handle(Seen(10.0, None, 0, True)) == []
