"""History entries as a tracker's state makes them, for tests of the history."""

from __future__ import annotations

from typing import Any

from rpcsys.tracker.events import HistoryEntry


def _record(kind: str, at: float, details: dict[str, Any], changed: dict[str, Any]) -> HistoryEntry:
    return HistoryEntry(at, kind, {**details, **changed})


def granted(lease: str, at: float, **changed: Any) -> HistoryEntry:
    details = {
        "lease": lease,
        "epoch": 1,
        "key": "rpi4",
        "server": "board",
        "user": "ann",
        "address": "10.0.0.5",
        "limit_s": None,
        "waited_s": 0.0,
        "priority": 1.0,
        "arrival": 1,
        "how": "ours",
    }
    return _record("granted", at, details, changed)


def begun(lease: str, at: float) -> HistoryEntry:
    return HistoryEntry(at, "begun", {"lease": lease, "peer": "10.0.0.5:40000"})


def limited(lease: str, limit_s: float | None, at: float) -> HistoryEntry:
    return HistoryEntry(at, "limited", {"lease": lease, "limit_s": limit_s})


def over(lease: str, at: float, **changed: Any) -> HistoryEntry:
    details = {
        "lease": lease,
        "epoch": 1,
        "key": "rpi4",
        "server": "board",
        "user": "ann",
        "address": "10.0.0.5",
        "since": at - 3.0,
        "held_s": 3.0,
        "outcome": "closed",
        "reason": "its client closed it",
        "fault": "",
        "cleaned": {"processes": 1},
    }
    return _record("over", at, details, changed)


def waiting(ticket: str, at: float, **changed: Any) -> HistoryEntry:
    details = {
        "ticket": ticket,
        "arrival": 1,
        "key": "rpi4",
        "labels": {},
        "count": 1,
        "priority": 1.0,
        "user": "ann",
        "address": "10.0.0.5",
        "since": at,
    }
    return _record("waiting", at, details, changed)


def waited(ticket: str, why: str, at: float) -> HistoryEntry:
    return HistoryEntry(at, "waited", {"ticket": ticket, "waited_s": 1.0, "why": why})


def joined(server: str, at: float, **changed: Any) -> HistoryEntry:
    details = {
        "server": server,
        "key": "rpi4",
        "address": "10.0.0.8",
        "port": 9090,
        "slots": 1,
        "labels": {},
        "how": "ours",
    }
    return _record("joined", at, details, changed)


def gone(server: str, at: float) -> HistoryEntry:
    return HistoryEntry(at, "gone", {"server": server, "reason": "its connection ended"})


def set_aside(server: str, at: float, **changed: Any) -> HistoryEntry:
    details = {"server": server, "reason": "it crashed at the start", "failures": 3, "pause_s": 60.0, "until": at + 60}
    return _record("set_aside", at, details, changed)


def drained(server: str, at: float) -> HistoryEntry:
    return HistoryEntry(at, "drained", {"server": server, "by": "ann"})
