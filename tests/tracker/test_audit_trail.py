"""What a tracker gathers for its audit log between two writes."""

from __future__ import annotations

from rpcsys.tracker import audit_trail
from rpcsys.tracker.audit import AuditEntry
from rpcsys.tracker.audit_trail import AuditTrail
from rpcsys.tracker.events import HistoryEntry, Refused


def test_what_is_done_is_kept_one_by_one_and_equal_refusals_are_counted() -> None:
    trail = AuditTrail()
    for at in (1.0, 2.0):
        trail.note(AuditEntry(at, "ann", "10.0.0.5", "login"))
    for at in (1.5, 1.6, 1.7):
        trail.note_asked(Refused(at, "ann", "10.0.0.5", "drain", "board", "ann may not do this"))
    trail.note_asked(Refused(1.8, "bo", "10.0.0.6", "drain", "board", "bo may not do this"))
    assert trail.take() == [
        AuditEntry(1.0, "ann", "10.0.0.5", "login"),
        AuditEntry(1.5, "ann", "10.0.0.5", "drain", "board", "ann may not do this (3 times)"),
        AuditEntry(1.8, "bo", "10.0.0.6", "drain", "board", "bo may not do this"),
        AuditEntry(2.0, "ann", "10.0.0.5", "login"),
    ]
    assert trail.take() == []


def test_leases_and_drains_of_the_history_are_recorded_and_nothing_else() -> None:
    trail = AuditTrail()
    lease = {"lease": "run-1", "key": "rpi4", "server": "board", "user": "ann", "address": "10.0.0.5"}
    trail.note_history(HistoryEntry(1.0, "granted", lease))
    trail.note_history(HistoryEntry(2.0, "over", {**lease, "outcome": "closed"}))
    trail.note_history(HistoryEntry(3.0, "drained", {"server": "board", "by": "mo"}))
    trail.note_history(HistoryEntry(4.0, "waiting", {}))
    assert [entry[1:] for entry in trail.take()] == [
        ("ann", "10.0.0.5", "lease", "run-1: rpi4 at board", ""),
        ("ann", "10.0.0.5", "lease over", "run-1: closed", ""),
        ("mo", "", "drain", "board", ""),
    ]


def test_a_flood_is_bounded_and_what_is_lost_is_counted(monkeypatch) -> None:
    monkeypatch.setattr(audit_trail, "MAX_ENTRIES", 3)
    trail = AuditTrail()
    for number in range(10):
        trail.note_asked(Refused(float(number), "ann", "", "drain", f"board-{number}", "no"))
    *kept, lost = trail.take()
    assert [entry.on for entry in kept] == ["board-0", "board-1", "board-2"]
    assert (lost.did, lost.on) == ("lost", "7 entries")
