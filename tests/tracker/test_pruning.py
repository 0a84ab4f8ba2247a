"""Which rows of the history are deleted, and by whose clock."""

from __future__ import annotations

import json
import sqlite3

import pytest

from rpcsys.tracker import pruning
from rpcsys.tracker.store import HistoryStore
from tests.live.daemons import wait_until
from tests.tracker import entries

NOW = 1_700_000_000.0
DAY = 86400.0


@pytest.fixture
def run(tmp_path):
    """Runs a tracker's store at a given time with some records; returns the leases that are left."""

    def at(now, *leases, **options):
        lab = HistoryStore(tmp_path / "state", history_days=90, clock=lambda: now, **options)
        lab.note(*[entries.over(lease, at=now) for lease in leases])
        lab.close()
        with sqlite3.connect(lab.path) as file:
            return [row[0] for row in file.execute("SELECT lease FROM leases ORDER BY id")]

    return at


def test_a_clock_that_is_ahead_deletes_nothing(run) -> None:
    assert run(NOW, "a") == ["a"]
    assert run(NOW + 91 * DAY, "ahead") == ["a", "ahead"]
    assert run(NOW + 0.1 * DAY, "b") == ["a", "ahead", "b"]
    assert run(NOW + 91.5 * DAY) == ["a", "ahead", "b"]  # what it wrote itself is no evidence
    assert run(NOW + 0.2 * DAY, "c") == ["a", "ahead", "b", "c"]
    assert run(NOW + 60 * DAY) == ["a", "ahead", "b", "c"]


def test_a_clock_that_is_behind_deletes_nothing(run) -> None:
    assert run(NOW, "a") == ["a"]
    assert run(0.0, "1970") == ["a", "1970"]
    assert run(NOW + 1, "b") == ["a", "1970", "b"]
    assert run(NOW + 2) == ["a", "b"]  # which looks old, and the clock is as it was


def test_a_tracker_that_runs_on_deletes_old_rows(run) -> None:
    for day in range(0, 100, 1):
        kept = run(NOW + day * DAY, f"d{day}")
    assert kept == [f"d{day}" for day in range(9, 100)]


def test_a_clock_that_stays_ahead_is_trusted_after_a_day(run, monkeypatch) -> None:
    run(NOW, "a")
    monkeypatch.setattr(pruning, "DOUBT_S", -1.0)
    assert run(NOW + 91 * DAY, "b") == ["b"]


def newest(path) -> str | None:
    """The lease that was written last."""
    with sqlite3.connect(path) as file:
        found = file.execute("SELECT lease FROM leases ORDER BY id DESC LIMIT 1").fetchone()
    return found and found[0]


@pytest.mark.slow
def test_history_is_bounded_in_bytes_and_the_first_rows_are_deleted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pruning, "MAX_BYTES", 8 << 20)
    lab = HistoryStore(tmp_path, history_days=90, clock=lambda: NOW)
    for turn in range(8):
        for number in range(2000):
            name = f"{turn}-{number}"
            lab.note(entries.over(name, at=NOW - 9000 + 1000 * turn, reason="x" * 1000, user=name))
            lab.note(entries.gone(f"s-{name}", at=NOW))
        wait_until(lambda last=name: newest(lab.path) == last, 60, "it is written: more have no room to wait")
    lab.note_levels([(int(NOW), "rpi4", 1, 1.0, 0.0, 0.0)])

    def used():
        with sqlite3.connect(lab.path) as file:
            pages, free = (file.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "freelist_count"))
        return (pages - free) * 4096

    wait_until(lambda: used() <= 8 << 20, 60, "it is within its bytes")
    lab.close()
    with sqlite3.connect(lab.path) as file:
        kept = [row[0] for row in file.execute("SELECT lease FROM leases ORDER BY id")]
        assert 500 < len(kept) < 10_000
        assert kept[-1] == "7-1999"
        (oldest,) = file.execute("SELECT min(ended) FROM leases").fetchone()
        assert file.execute("SELECT min(hour) FROM usage").fetchone()[0] >= oldest - 2 * 3600
        assert 100 < file.execute("SELECT count(*) FROM events").fetchone()[0] < 16_000
        assert file.execute("SELECT count(*) FROM levels").fetchone() == (1,)
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_drain_of_a_server_that_has_left_is_dropped_with_the_history(tmp_path) -> None:
    lab = HistoryStore(tmp_path, history_days=90, clock=lambda: NOW)
    for name in ("gone", "here"):
        lab.note(entries.drained(name, at=NOW), entries.set_aside(name, at=NOW))
    lab.note(entries.joined("here", at=NOW))
    lab.close()
    for days in (60, 60.5, 91):  # so that each run trusts its clock
        lab = HistoryStore(tmp_path, history_days=90, clock=lambda days=days: NOW + days * DAY)
        found = lab.begin(NOW + days * DAY)
        lab.note(entries.over("x", at=NOW + days * DAY))
        lab.close()
        if days < 90:
            assert {r.details["server"] for r in found if r.kind == "drained"} == {"gone", "here"}
    lab = HistoryStore(tmp_path, history_days=90, clock=lambda: NOW + 91.1 * DAY)
    found = lab.begin(NOW + 91.1 * DAY)
    lab.close()
    assert {r.details["server"] for r in found if r.kind in ("drained", "set_aside")} == {"here"}
    with sqlite3.connect(lab.path) as file:
        assert file.execute("SELECT count(*) FROM present WHERE about = 'gone'").fetchone() == (0,)
        told = file.execute("SELECT details FROM events WHERE kind = 'forgotten'").fetchall()
    assert [json.loads(details) for (details,) in told] == [{"server": "gone"}]
