"""What a replica asks of the engine, and when. The simulation tests what it says."""

from __future__ import annotations

import math

import pytest

from rpcsys.tracker.replicas import journal, replica
from rpcsys.tracker.replicas.engine import Leader, Look, Snapshot
from rpcsys.tracker.replicas.journal import Fold
from rpcsys.tracker.replicas.replica import (
    AGAIN_S,
    LOOK_S,
    SNAPSHOT_PAUSES_S,
    TAIL_S,
    Append,
    Apply,
    BeginAnew,
    BeginTerm,
    Campaign,
    EngineCall,
    JournalUnreadable,
    ReadJournal,
    ReadSnapshot,
    RenewLease,
    ReplicaState,
    Restart,
    Say,
    WriteSnapshot,
)
from rpcsys.tracker.replicas.role import Lead, StepDown
from tests.tracker.replicas.simulation import granted

ME = Leader(("lab-1", 9190), 0, "1", "me")
OTHER = Leader(("lab-2", 9190), 0, "1", "other")


def entry(*numbers: int) -> bytes:
    return journal.pack([granted(1.0, number, number) for number in numbers])[0]


def look(leader: Leader | None = OTHER, term: int = 5, *, more: bool = False, **found: object) -> Look:
    return Look(leader, term, **{"entries": [], "snapshot": None, "config": None, "more": more, **found})


def asked(actions: list[replica.Action], kind: type) -> EngineCall:
    (call,) = [action for action in actions if isinstance(action, EngineCall) and isinstance(action.request, kind)]
    return call


def leading(now: float = 10.0) -> ReplicaState[str]:
    return leads(ReplicaState(ME, Fold(), now), now)


def leads(made: ReplicaState[str], now: float) -> ReplicaState[str]:
    actions = made.answered(asked(made.tick(now), ReadJournal), look(None, 0), now)
    made.answered(asked(actions, Campaign), 6, now)
    actions = made.tick(now)
    made.answered(asked(actions, RenewLease), 1.0, now)
    actions = made.answered(asked(actions, ReadJournal), look(ME, 6), now)
    assert made.answered(asked(actions, BeginTerm), True, now) == [Lead(6)]
    return made


def test_one_that_has_stopped_has_nothing_to_do() -> None:
    made = leading()
    made.stop(11.0)
    assert made.deadline() == math.inf
    assert made.tick(1000.0) == []


def test_a_follower_reads_on_where_it_is_and_applies() -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(through=3), 10.0)
    call = asked(made.tick(10.0), ReadJournal)
    assert call.request == ReadJournal(2)  # with the last that it has
    assert made.tick(10.05) == []
    actions = made.answered(call, look(entries=[(3, entry(9)), (4, entry(1)), (5, entry(2, 3))]), 10.1)
    applied = [(action.through, len(action.records)) for action in actions if isinstance(action, Apply)]
    assert applied == [(4, 1), (5, 2)]
    assert (made.fold.through, made.fold.epoch) == (5, 3)
    assert made.deadline() == pytest.approx(10.1 + TAIL_S)
    assert asked(made.tick(10.5), ReadJournal).request == ReadJournal(5)


def test_a_look_that_is_lost_is_made_again() -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    call = asked(made.tick(10.0), ReadJournal)
    assert made.deadline() == math.inf
    assert made.lost(call, 13.0) == []
    assert made.deadline() == 13.0 + AGAIN_S
    assert asked(made.tick(13.0 + AGAIN_S), ReadJournal).request == call.request


@pytest.mark.parametrize(
    "found", [{}, {"entries": [(2, b"")]}, {"snapshot": Snapshot(2, 1, 1, 1, 1.0)}], ids=["new", "shorter", "older"]
)
def test_a_journal_that_lacks_what_the_replica_has_is_read_from_its_beginning(found: dict[str, object]) -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(through=3, epoch=7), 10.0)
    assert made.answered(asked(made.tick(10.0), ReadJournal), look(None, 0, **found), 10.1) == [BeginAnew(3)]
    assert made.fold == Fold()
    assert asked(made.tick(10.1), ReadJournal).request == ReadJournal(0)


@pytest.mark.parametrize("read", [False, True], ids=["at the start", "later"])
def test_a_journal_with_another_id_is_read_from_its_beginning(read: bool) -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(through=3, journal="one"), 10.0)
    found = [(number, entry(number)) for number in (3, 4)]
    if read:
        made.answered(asked(made.tick(10.0), ReadJournal), look(entries=found, config={"journal": "one"}), 10.1)
    at = made.fold.through
    actions = made.answered(asked(made.tick(11.0), ReadJournal), look(entries=found, config={"journal": "two"}), 11.1)
    assert actions == [BeginAnew(at)]
    assert made.fold == Fold(journal="two")


def begun(made: ReplicaState[str], config: dict[str, str] | None) -> str:
    """The ID of the journal with which a replica leads that has found no leader there."""
    actions = made.answered(asked(made.tick(11.0), ReadJournal), look(None, 0, config=config), 11.0)
    made.answered(asked(actions, Campaign), 6, 11.0)
    actions = made.answered(asked(made.tick(11.0), ReadJournal), look(ME, 6, config=config), 11.0)
    call = asked(actions, BeginTerm)
    assert isinstance(call.request, BeginTerm)
    assert made.answered(call, True, 11.0) == [Lead(6)]
    assert made.fold.journal == call.request.journal
    return made.fold.journal


def test_a_journal_keeps_its_id_and_a_new_one_gets_one() -> None:
    assert begun(ReplicaState(ME, Fold(), 10.0), {"journal": "one"}) == "one"
    assert begun(ReplicaState(ME, Fold(), 10.0), None) == "me-6"


def test_a_journal_that_was_restored_gets_a_new_id_as_others_may_have_more_of_it() -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(through=3, journal="one"), 10.0)
    seen = look(None, 0, config={"journal": "one"}, entries=[(2, entry(2))])
    assert made.answered(asked(made.tick(10.0), ReadJournal), seen, 10.1) == [BeginAnew(3)]
    assert begun(made, {"journal": "one"}) == "me-6"


@pytest.mark.parametrize("through", [3, 9])
def test_what_is_in_the_snapshot_is_in_the_journal(through: int) -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(through=3), 10.0)
    actions = made.answered(asked(made.tick(10.0), ReadJournal), look(snapshot=Snapshot(through, 1, 1, 1, 1.0)), 10.1)
    assert not [action for action in actions if isinstance(action, BeginAnew)]
    assert made.fold.through == 3


def test_a_follower_that_is_behind_reads_on_at_once() -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    made.answered(asked(made.tick(10.0), ReadJournal), look(entries=[(1, entry(1))], more=True), 10.1)
    assert made.deadline() == 10.1


def test_what_is_trimmed_is_read_from_the_snapshot() -> None:
    fold = Fold()
    fold.fold([granted(1.0, 9, 9)], 20)
    snapshot, pieces = fold.snapshot()
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    actions = made.answered(asked(made.tick(10.0), ReadJournal), look(snapshot=snapshot), 10.1)
    call = asked(actions, ReadSnapshot)
    assert made.answered(call, None, 10.2) == []  # another has replaced it
    actions = made.answered(asked(made.tick(10.2), ReadJournal), look(snapshot=snapshot), 10.3)
    (restart,) = made.answered(asked(actions, ReadSnapshot), pieces, 10.4)
    assert restart == Restart(fold)
    assert made.fold.through == 20


@pytest.mark.parametrize("found", [{"entries": [(1, b"nothing")]}, {"snapshot": Snapshot(9, 1, 1, 1, 1.0)}])
def test_a_journal_that_cannot_be_read_is_said_and_keeps_from_leading(found: dict[str, object]) -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    actions = made.answered(asked(made.tick(10.0), ReadJournal), look(**found), 10.1)
    if "snapshot" in found:
        actions = made.answered(asked(actions, ReadSnapshot), [b"nothing"], 10.1)
    assert any(isinstance(action, JournalUnreadable) and "damaged" in action.reason for action in actions)
    actions = made.tick(11.0)
    actions = made.answered(asked(actions, ReadJournal), look(**found), 11.1)
    if "snapshot" in found:
        actions = made.answered(asked(actions, ReadSnapshot), [b"nothing"], 11.1)
    assert actions == []  # it is said once
    actions = made.answered(asked(made.tick(12.0), ReadJournal), look(None, 0), 12.1)
    assert not [action for action in actions if isinstance(action, EngineCall)]


def test_a_leader_renews_at_a_third_and_looks_around() -> None:
    made = leading()
    assert made.deadline() == pytest.approx(10.0 + 1 / 3)
    call = asked(made.tick(10.4), RenewLease)
    assert made.lost(call, 10.5) == []
    call = asked(made.tick(10.5 + AGAIN_S), RenewLease)
    assert isinstance(made.answered(call, 0.0, 10.7)[0], StepDown)
    assert made.deadline() == pytest.approx(10.0 + LOOK_S)


def test_a_turn_is_written_and_then_said() -> None:
    made = leading()
    assert made.ledger is not None
    made.note(granted(1.0, 1, 1))
    assert made.ledger.hold("granted", 10.1)
    call = asked(made.turn_over(10.1), Append)
    assert isinstance(call.request, Append)
    assert (call.request.number, call.request.term, journal.unpack(call.request.data)) == (1, 6, [granted(1.0, 1, 1)])
    assert made.lost(call, 10.2) == []
    again = asked(made.tick(10.2 + AGAIN_S), Append)
    assert again.request == call.request
    apply, say = made.answered(again, True, 10.35)
    assert (apply, say) == (Apply([granted(1.0, 1, 1)], 1), Say(["granted"]))


def test_a_refused_entry_deposes() -> None:
    made = leading()
    made.note(granted(1.0, 1, 1))
    call = asked(made.turn_over(10.1), Append)
    assert isinstance(made.answered(call, False, 10.2)[0], StepDown)
    assert made.ledger is None
    assert made.answered(call, True, 10.3) == []  # of a term that is over


def test_a_cut_that_is_lost_is_made_again_before_anything_is_led() -> None:
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    actions = made.answered(asked(made.tick(10.0), ReadJournal), look(None, 0), 10.0)
    made.answered(asked(actions, Campaign), 5, 10.0)
    actions = made.answered(asked(made.tick(10.0), ReadJournal), look(ME, 5), 10.0)
    cut = asked(actions, BeginTerm)
    made.lost(cut, 10.1)
    assert made.ledger is None
    again = asked(made.tick(10.1 + AGAIN_S), BeginTerm)
    assert made.answered(again, True, 10.3) == [Lead(5)]


def test_a_snapshot_is_written_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_ENTRIES", 3)
    made = leading()
    snapshots = []
    for number in range(1, 8):
        made.note(granted(1.0, number, number))
        actions = made.answered(asked(made.turn_over(10.1), Append), True, 10.1)
        snapshots += [action for action in actions if isinstance(action, EngineCall)]
    (first,) = snapshots
    assert isinstance(first.request, WriteSnapshot)
    assert (first.request.term, first.request.through) == (6, 3)
    assert made.answered(first, True, 10.2) == []
    made.note(granted(1.0, 9, 9))
    actions = made.answered(asked(made.turn_over(10.3), Append), True, 10.3)
    assert asked(actions, WriteSnapshot)
    assert isinstance(made.answered(asked(actions, WriteSnapshot), False, 10.4)[0], StepDown)


def test_a_snapshot_that_fails_is_written_again_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_ENTRIES", 1)
    made = leading()
    made.note(granted(1.0, 1, 1))
    call = asked(made.answered(asked(made.turn_over(10.1), Append), True, 10.1), WriteSnapshot)
    now, first_s = 10.1, SNAPSHOT_PAUSES_S[0]
    for pause_s in (first_s, 2 * first_s):
        made.lost(call, now)
        made.role.contact_at = now + pause_s  # the engine answers all else
        assert not [each for each in made.tick(now + pause_s - 0.1) if is_snapshot(each)]
        now += pause_s
        call = asked(made.tick(now), WriteSnapshot)
    size = made.bytes_since
    assert size
    made.note(granted(1.0, 2, 2))
    made.answered(asked(made.turn_over(now), Append), True, now)
    assert made.answered(call, True, now + 0.1) == []
    assert 0 < made.bytes_since < 2 * size  # of the entry that is not in it
    assert asked(made.tick(now + 0.2), WriteSnapshot)  # the pauses are over


def is_snapshot(action: replica.Action) -> bool:
    return isinstance(action, EngineCall) and isinstance(action.request, WriteSnapshot)


def test_what_earlier_leaders_wrote_counts_for_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_ENTRIES", 4)
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    found = [(number, entry(number)) for number in range(1, 4)]
    made.answered(asked(made.tick(10.0), ReadJournal), look(entries=found), 10.0)
    made = leads(made, 11.0)
    made.note(granted(1.0, 4, 4))
    assert asked(made.answered(asked(made.turn_over(11.1), Append), True, 11.1), WriteSnapshot)


def test_bytes_that_earlier_leaders_wrote_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = entry(1), entry(2)
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", len(first) + len(second))
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    made.answered(asked(made.tick(10.0), ReadJournal), look(entries=[(1, first)]), 10.0)
    made = leads(made, 11.0)
    made.note(granted(1.0, 2, 2))
    assert asked(made.answered(asked(made.turn_over(11.1), Append), True, 11.1), WriteSnapshot)


@pytest.mark.parametrize(("through", "due"), [(3, False), (1, True)])
def test_entries_count_from_the_engines_snapshot(through: int, due: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_ENTRIES", 3)
    made: ReplicaState[str] = ReplicaState(ME, Fold(), 10.0)
    snapshot = Snapshot(through, 1, 1, 1, 1.0)
    found = [(number, entry(number)) for number in range(1, 4)]
    made.answered(asked(made.tick(10.0), ReadJournal), look(entries=found, snapshot=snapshot), 10.0)
    made = leads(made, 11.0)
    made.note(granted(1.0, 4, 4))
    actions = made.answered(asked(made.turn_over(11.1), Append), True, 11.1)
    assert bool([action for action in actions if isinstance(action, EngineCall)]) is due


def test_large_entries_bring_a_snapshot_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SNAPSHOT_BYTES", 1)
    made = leading()
    made.note(granted(1.0, 1, 1))
    assert asked(made.answered(asked(made.turn_over(10.1), Append), True, 10.1), WriteSnapshot)
