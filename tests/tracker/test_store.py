"""The history's file, in a directory of the test's own."""

import sqlite3
import time

import pytest

from rpcsys.errors import ConfigError
from rpcsys.tracker import batch, store, tables
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from rpcsys.wire import control
from tests.live.daemons import wait_until
from tests.tracker import entries
from tests.tracker.stores import NOW, ask


def rows(path, query):
    with sqlite3.connect(path) as file:
        return file.execute(query).fetchall()


# --- what comes back ---------------------------------------------------------------------------


def needed(over):
    """The part of a past lease that a start needs."""
    names = ("key", "user", "since", "held_s", "outcome")
    return HistoryEntry(over.at, "over", {name: over.details[name] for name in names})


def test_live_records_come_back_in_order_without_those_that_ended(opened):
    first = opened()
    kept = [
        entries.joined("board", at=NOW),
        entries.granted("a-1", at=NOW + 1),
        entries.begun("a-1", at=NOW + 2),
        entries.limited("a-1", 60.0, at=NOW + 3),
        entries.waiting("t2", at=NOW + 4),
        entries.set_aside("board", at=NOW + 5),
        entries.drained("board", at=NOW + 6),
    ]
    gone = [
        entries.granted("a-2", at=NOW),
        entries.limited("a-2", 5.0, at=NOW + 1),
        entries.over("a-2", at=NOW + 2.2),
        entries.waiting("t1", at=NOW),
        entries.waited("t1", "granted", at=NOW + 1),
        entries.joined("other", at=NOW),
        entries.gone("other", at=NOW + 1),
        entries.limited("a-1", 30.0, at=NOW + 2.5),
    ]
    for record in sorted(kept + gone, key=lambda record: record.at):
        first.note(record)
    first.close()
    again = opened()
    over = entries.over("a-2", at=NOW + 2.2)
    wanted = sorted([*kept, needed(over)], key=lambda record: record.at)
    assert list(again.restored(NOW + 10)) == wanted
    # The same after another restart, without the records that end now.
    again.note(entries.over("a-1", at=NOW + 20))
    again.note(HistoryEntry(NOW + 20, "enabled", {"server": "board"}))
    again.close()
    kinds = [record.kind for record in opened().restored(NOW + 21)]
    assert kinds == ["joined", "over", "waiting", "over"]


def test_old_leases_are_not_restored(opened):
    first = opened()
    first.note(entries.over("x-1", at=NOW - 11 * 3600, user="old"))
    first.note(entries.over("x-2", at=NOW - 9 * 3600, user="new"))
    first.note(entries.over("x-3", at=NOW + 400 * 86400, user="ahead"))
    first.close()
    assert [record.details["user"] for record in opened().restored(NOW)] == ["new"]


def test_a_record_that_ends_within_a_batch_is_not_written_to_present(opened, tmp_path):
    first = opened()
    for number in range(50):
        first.note(entries.granted(f"x-{number}", at=NOW))
        first.note(entries.over(f"x-{number}", at=NOW + 1))
    first.close()
    assert rows(first.path, "SELECT count(*) FROM present") == [(0,)]
    assert rows(first.path, "SELECT count(*) FROM leases") == [(50,)]


def test_a_record_is_in_the_file_within_a_second(opened):
    first = opened()
    before = time.monotonic()
    first.note(entries.over("a-1", at=NOW))
    wait_until(lambda: rows(first.path, "SELECT lease FROM leases") == [("a-1",)], 30, "it is there")
    assert time.monotonic() - before < 5  # a second, on a machine that does nothing else


def test_leases_of_tvm_servers_end_with_a_restart(opened):
    first = opened()
    first.note(entries.granted("ours", at=NOW))
    first.note(entries.granted("silent", at=NOW, how="silent"))
    first.note(entries.granted("inferred", at=NOW, how="inferred"))
    first.close()
    again = opened()
    begun = [(r.kind, r.details["lease"]) for r in again.begin(NOW + 5)]
    assert begun[:2] == [("granted", "silent"), ("granted", "inferred")]  # of which their clients may not have heard
    assert ("granted", "ours") in begun
    assert [fact for fact in again.live_state if fact[0] == "granted"] == [("granted", "ours")]
    again.close()
    found = ask(again.path, control.History(1)).fields["leases"]
    assert [(lease["lease"], lease["outcome"], lease["held_s"]) for lease in found] == [
        ("inferred", "unknown", 0.0),
        ("silent", "unknown", 0.0),
    ]


def test_absent_servers_are_awaited_after_one_restart_only(opened):
    first = opened()
    for name in ("back", "lost"):
        first.note(entries.joined(name, at=NOW))
    first.close()
    again = opened()
    again.note(entries.joined("back", at=NOW + 10))
    again.note(*again.absent(NOW + 5, NOW + 60))
    again.close()
    assert [record.details["server"] for record in opened().restored(NOW + 70)] == ["back"]
    assert rows(first.path, "SELECT about FROM events WHERE kind = 'gone'") == [("lost",)]


# --- the journal of replicas -------------------------------------------------------------------


def test_a_position_is_written_with_the_records_that_reach_it(opened):
    first = opened()
    assert first.position == Position()
    first.note(entries.joined("board", at=NOW), position=Position(7, NOW, 3, 4))
    first.note(entries.joined("other", at=NOW))
    assert first.position == Position(7, NOW, 3, 4)
    first.close()
    again = opened()
    assert again.position == Position(7, NOW, 3, 4)
    again.note(position=Position(8, NOW, 3, 4))
    again.close()
    assert rows(first.path, "SELECT through, at, epoch, arrivals, journal, lacks FROM journal") == [
        (8, NOW, 3, 4, "", None)
    ]


def test_a_snapshot_replaces_what_holds_and_leaves_the_history(opened):
    first = opened()
    first.note(entries.joined("written", at=NOW), entries.over("a-1", at=NOW))
    first.close()
    second = opened()
    second.note(entries.joined("pending", at=NOW))
    kept = [entries.joined("board", at=NOW + 1), entries.granted("a-2", at=NOW + 2)]
    second.replace(kept, Position(9, NOW, 3, 4))
    assert [*second.live_state.values()] == kept
    second.note(entries.gone("board", at=NOW + 3))
    second.close()
    third = opened()
    assert third.position == Position(9, NOW, 3, 4)
    assert [*third.live_state.values()] == kept[1:]
    assert rows(first.path, "SELECT lease FROM leases") == [("a-1",)]
    assert ("joined", "pending") in rows(first.path, "SELECT kind, about FROM events")


def test_a_position_outlasts_a_full_disk_and_a_damaged_file(opened, monkeypatch):
    monkeypatch.setattr(store, "RETRY_S", 0.1)
    first = opened()
    wait_until(lambda: rows(first.path, "SELECT count(*) FROM leases"), 10, "the file is there")
    first._file.execute("PRAGMA max_page_count = 1")
    first.note(entries.joined("board", at=NOW, labels={"a": "x" * 100_000}), position=Position(7, NOW, 3, 4))
    wait_until(lambda: first.failing, 30, "the disk is full")
    first._file.execute("PRAGMA max_page_count = 1000000")
    first.suspect(sqlite3.DatabaseError("database disk image is malformed"))
    first.close()
    again = opened()
    assert again.position == Position(7, NOW, 3, 4)
    assert [*again.live_state] == [("joined", "board")]


# --- deleted rows ------------------------------------------------------------------------------


def test_old_history_is_deleted(opened):
    first = opened(clock=lambda: NOW)
    for number in range(100):
        first.note(entries.over(f"x-{number}", at=NOW + number * 86400, key=f"k{number}"))
        first.note(entries.joined(f"s{number}", at=NOW + number * 86400))
    first.note_levels([(int(NOW), "rpi4", 1, 1.0, 0.0, 0.0)])
    first.close()
    opened(clock=lambda: NOW + 99.5 * 86400).close()
    assert rows(first.path, "SELECT count(*), min(ended) FROM leases") == [(90, NOW + 10 * 86400)]
    assert rows(first.path, "SELECT kind, count(*) FROM events GROUP BY kind") == [("began", 1), ("joined", 90)]
    assert rows(first.path, "SELECT count(*) FROM usage") == [(90,)]
    assert rows(first.path, "SELECT count(*) FROM levels") == [(0,)]
    assert rows(first.path, "SELECT count(*) FROM present") == [(100,)]  # that is no history


def test_a_file_shrinks_when_history_is_deleted(opened):
    first = opened()
    for number in range(6000):
        first.note(entries.over(f"x-{number}", at=NOW, reason="x" * 2000))
    first.note(entries.over("later", at=NOW + 90.5 * 86400))
    first.note(entries.joined("later", at=NOW + 90.5 * 86400))
    first.close()
    before = first.path.stat().st_size
    assert before > 12_000_000
    again = opened(clock=lambda: NOW + 91 * 86400)
    wait_until(lambda: rows(again.path, "PRAGMA page_count")[0][0] < before // 4096 // 4, 30, "it has shrunk")
    again.close()
    assert rows(again.path, "SELECT lease FROM leases") == [("later",)]
    assert again.path.stat().st_size < before // 4
    assert rows(again.path, "PRAGMA integrity_check") == [("ok",)]


# --- disks, versions, neighbours ---------------------------------------------------------------


def test_a_directory_serves_one_tracker(opened, tmp_path):
    first = opened()
    with pytest.raises(ConfigError, match="in use by another tracker") as caught:
        HistoryStore(tmp_path, history_days=90)
    assert "\n" not in str(caught.value)
    first.close()
    HistoryStore(tmp_path, history_days=90).close()


def test_an_invalid_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        HistoryStore(tmp_path / "file", history_days=90)


def test_a_file_of_a_later_version_is_not_changed(opened, tmp_path):
    opened().close()
    with sqlite3.connect(tmp_path / store.FILE) as file:
        file.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="later version"):
        HistoryStore(tmp_path, history_days=90)


def test_a_file_of_an_earlier_version_is_upgraded_or_not_changed(tmp_path):
    path = tmp_path / "file"
    one = ("CREATE TABLE t (a); INSERT INTO t VALUES (1);",)
    two = (*one, "ALTER TABLE t ADD COLUMN b DEFAULT 2;")
    tables.open_file(path, one).close()
    with pytest.raises(sqlite3.Error):
        tables.open_file(path, (*two, "ALTER TABLE t ADD COLUMN c; nonsense;")).close()
    file = tables.open_file(path, two)
    assert file.execute("SELECT * FROM t").fetchall() == [(1, 2)]
    assert file.execute("PRAGMA user_version").fetchone() == (2,)
    assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.close()


def test_a_full_disk_is_logged_once_and_history_goes_on_after_it(opened, caplog, monkeypatch):
    monkeypatch.setattr(store, "RETRY_S", 0.3)
    monkeypatch.setattr(batch, "MAX_HISTORY", 20)
    first = opened()
    wait_until(lambda: rows(first.path, "SELECT count(*) FROM leases"), 10, "the file is there")
    file = first._file
    file.execute("PRAGMA max_page_count = 1")  # which SQLite takes for the pages there are
    for number in range(100):
        first.note(entries.granted(f"lost-{number}", at=NOW))
        first.note(entries.over(f"lost-{number}", at=NOW, reason="x" * 2000))
    first.note(entries.granted("out", at=NOW))
    wait_until(lambda: "history stops" in caplog.text, 10, "it says so")
    time.sleep(1)
    assert caplog.text.count("history stops") == 1
    file.execute("PRAGMA max_page_count = 1000000")
    first.note(entries.over("kept", at=NOW + 1))
    wait_until(lambda: "history goes on" in caplog.text, 10, "it says so")
    assert "records of it are missing" in caplog.text
    first.close()
    kept = rows(first.path, "SELECT count(*) FROM leases")[0][0]
    assert 20 <= kept < 100
    assert rows(first.path, "SELECT kind, about FROM present") == [("granted", "out")]
    assert rows(first.path, "PRAGMA integrity_check") == [("ok",)]
