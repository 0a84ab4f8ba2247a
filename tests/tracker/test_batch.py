"""Rows that wait for the disk are bounded."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker import batch, store, tables
from rpcsys.tracker.batch import Batch, LiveState
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from tests.live.daemons import rss_mb, wait_until
from tests.tracker import entries

NOW = 1_700_000_000.0


def test_records_are_bounded_in_bytes(monkeypatch) -> None:
    monkeypatch.setattr(batch, "MAX_BYTES", 1 << 20)
    box = Batch()
    for number in range(1000):
        details = {"server": f"{number}", "labels": {"a": "x" * 10_000}, "reason": "y" * 10_000}
        box.add_event(HistoryEntry(NOW, "joined", details))
    assert 30 < len(box.events) < 60
    later = Batch(events=list(box.events), missed=5)
    missed = box.missed
    box.extend(later)
    assert len(box.events) + box.missed - missed - 5 == 2 * len(later.events)
    assert box.bytes <= 1 << 20


def change(number: int) -> tuple[int, HistoryEntry]:
    return number, entries.joined(f"server {number}", at=NOW)


def test_a_whole_later_batch_replaces_what_waits(tmp_path) -> None:
    box = Batch(changes={("joined", "a"): change(1), ("joined", "b"): None}, position=Position(3))
    box.add_event(entries.joined("a", at=NOW))
    box.extend(Batch(changes={("joined", "c"): change(2)}, whole=True))
    assert box.whole
    assert box.changes == {("joined", "c"): change(2)}
    assert (len(box.events), box.position) == (1, Position(3))
    box.extend(Batch(changes={("joined", "d"): change(3)}, position=Position()))
    assert box.whole
    assert [*box.changes] == [("joined", "c"), ("joined", "d")]
    assert box.position == Position()


def test_a_position_alone_is_something_to_write(tmp_path) -> None:
    assert not Batch()
    assert Batch(position=Position())


def test_a_full_disk_takes_bounded_memory(tmp_path, monkeypatch) -> None:
    """Ended leases, requests and servers leave only as many records as the limit allows."""
    monkeypatch.setattr(batch, "MAX_HISTORY", 10)
    monkeypatch.setattr(batch, "MAX_LEVELS", 100)
    monkeypatch.setattr(store, "RETRY_S", 0.01)
    monkeypatch.setattr(store, "GATHER_S", 0.01)
    lab = HistoryStore(tmp_path, history_days=90, clock=lambda: NOW)
    time.sleep(0.2)
    assert lab._file is not None
    lab._file.execute("PRAGMA max_page_count = 1")
    lab.note(entries.joined("fills", at=NOW, labels={"a": "x" * 100_000}))

    def live(turns):
        for number in range(turns):
            lease = f"x-{number}"
            lab.note(entries.granted(lease, at=NOW), entries.begun(lease, at=NOW), entries.limited(lease, 9.0, at=NOW))
            lab.note(entries.waiting(lease, at=NOW), entries.joined(lease, at=NOW))
            lab.note(entries.drained(lease, at=NOW), entries.set_aside(lease, at=NOW))
            lab.note_levels([(number, "key", 1, 1.0, 1.0, 1.0)])
            lab.note(entries.over(lease, at=NOW), entries.waited(lease, "left", at=NOW), entries.gone(lease, at=NOW))
            lab.note(HistoryEntry(NOW, "enabled", {"server": lease}))

    live(300)
    wait_until(lambda: lab.failing, 30, "the disk is full")
    tracemalloc.start()
    live(1500)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 1 << 20
    lab._file.execute("PRAGMA max_page_count = 1000000")
    lab.note(entries.granted("out", at=NOW))
    lab.close()
    again = HistoryStore(tmp_path, history_days=90, clock=lambda: NOW)
    assert sorted((r.kind, r.details.get("lease")) for r in again.live_state.values()) == [
        ("granted", "out"),
        ("joined", None),
    ]
    again.close()


def test_written_batches_leave_no_memory(tmp_path) -> None:
    """Batches of any size: a statement is as long as its batch, and SQLite does not cache it."""
    file, number = tables.open_file(tmp_path / "file"), 0

    def write(sizes) -> float:
        nonlocal number
        for size in sizes:
            box = Batch()
            for _ in range(size):
                number += 1
                box.add_over((entries.over(f"x-{number}", at=NOW), None, None, None))
            box.write(file)
        return rss_mb([os.getpid()])

    before = write([500] * 20)  # SQLite's share of the file's pages is full by now
    assert write(range(250, 500, 5)) - before < 6
    file.close()


# What still holds.

names = st.sampled_from("ab")
kinds = {
    **dict.fromkeys(("granted", "begun", "limited", "over"), "lease"),
    **dict.fromkeys(("waiting", "waited", "absent", "back"), "ticket"),
    **dict.fromkeys(("unheard", "heard"), "request"),
    **dict.fromkeys(("joined", "gone", "set_aside", "trusted", "drained", "enabled", "healthy"), "server"),
}
record = st.builds(
    lambda kind, name, at: HistoryEntry(at, kind, {kinds[kind]: name}),
    st.sampled_from(sorted(kinds)),
    names,
    st.integers(0, 99),
)


def sane(records) -> Iterator[HistoryEntry]:
    """A lease begins once before it is over."""
    out = set()
    for one in records:
        if one.kind == "granted":
            if one.details["lease"] in out:
                continue
            out.add(one.details["lease"])
        elif one.kind == "over":
            out.discard(one.details["lease"])
        yield one


histories = st.lists(record, max_size=12).map(lambda records: list(sane(records)))


def holding(records) -> list[HistoryEntry]:
    """`LiveState` in plain form: each record, unless a later one ends or replaces it."""
    ended_by = {
        "granted": ("over",),
        "begun": ("over",),
        "limited": ("over",),
        "waiting": ("waited",),
        "absent": ("waited", "back"),
        "unheard": ("heard",),
        "joined": ("gone",),
        "set_aside": ("trusted", "enabled"),
        "drained": ("enabled",),
    }
    found = []
    for index, one in enumerate(records):
        about = one.details[kinds[one.kind]]
        later = [r.kind for r in records[index + 1 :] if r.details.get(kinds[one.kind]) == about]
        granted = any(
            r.kind == "granted"
            and r.details["lease"] == about
            and not any(o.kind == "over" and o.details["lease"] == about for o in records[i:index])
            for i, r in enumerate(records[:index])
            if kinds[r.kind] == "lease"
        )
        if one.kind not in ended_by or {one.kind, *ended_by[one.kind]} & set(later):
            continue
        if one.kind in ("begun", "limited") and not granted:
            continue
        found.append(one)
    return found


@given(histories)
def test_live_records_are_those_that_no_later_record_ends(records) -> None:
    live = LiveState()
    mirrored = {}
    for one in records:
        for fact, holds in live.fold(one).items():
            if holds is None:
                del mirrored[fact]
            else:
                mirrored[fact] = holds
    assert list(live.values()) == holding(records)
    assert mirrored == live


@given(histories)
def test_live_records_suffice_to_go_on(records) -> None:
    live = LiveState(records)
    assert list(LiveState(live.values()).items()) == list(live.items())
