"""A tracker starts with any file, and keeps the readable rows."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import sqlite3

import pytest

from rpcsys.errors import ConfigError
from rpcsys.tracker import store
from rpcsys.tracker.events import Connected, Received, Restored, TrackerStarted
from rpcsys.tracker.history import HistoryReader
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.store import HistoryStore
from rpcsys.wire import control
from tests.combinations import usual
from tests.tracker import damage, entries

NOW = 1_700_000_000.0
LEASES = 4000
HERE = 40


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """The directory of a tracker that was killed: a file, and a journal with the last rows."""
    place = tmp_path_factory.mktemp("lived") / "state"
    lab = HistoryStore(place, history_days=90, clock=lambda: NOW)
    for number in range(LEASES):
        about = {"user": f"user-{number % 7}", "key": f"key-{number % 5}", "server": f"board-{number % 40}"}
        lab.note(entries.over(f"x-{number}", at=NOW - LEASES + number, **about))
        if number == LEASES // 2:
            lab.close()
            lab = HistoryStore(place, history_days=90, clock=lambda: NOW)
    for number in range(HERE):
        lab.note(entries.granted(f"y-{number}", at=NOW - 9), entries.begun(f"y-{number}", at=NOW - 8))
        lab.note(entries.waiting(f"t-{number}", at=NOW - 7), entries.joined(f"board-{number}", at=NOW - 10))
        lab.note(entries.set_aside(f"board-{number}", at=NOW - 6), entries.drained(f"off-{number}", at=NOW - 6))
        lab.note(entries.limited(f"y-{number}", 900.0, at=NOW - 5))
    lab.note_levels([(int(NOW) // 600 * 600, f"key-{number}", 3, 1.0, 0.5, 0.0) for number in range(5)])
    copy = place.with_name("copy")
    lab._writer.close(30)  # written, and not put in order
    shutil.copytree(place, copy)
    lab._let_go()
    assert (copy / f"{store.FILE}-wal").stat().st_size > 0
    return copy


def serves(place):
    """Start in a directory and answer as a tracker does; the numbers of live and of past records found."""
    lab = HistoryStore(place, history_days=90, clock=lambda: NOW)
    state = TrackerState(TrackerStarted(NOW, "new"))
    try:
        restored = lab.begin(NOW)
        state.apply(Restored(NOW, restored))
        state.apply(Connected(NOW, 1, "10.0.0.1", "10.0.0.2"))
        for ask in (
            control.Request(1, key="key-1"),
            control.Why(2, key="key-1"),
            control.Summary(3),
            control.Register(4, key="key-1", name="new", port=9090),
        ):
            for action in state.apply(Received(NOW + 1, 1, ask)):
                json.dumps(getattr(action, "message", None), allow_nan=False)
        lab.levels(NOW - 86400, NOW)
        lab.note(entries.over("new", at=NOW), entries.joined("new", at=NOW))
        assert lab._writer.close(60)
        assert not lab.failing
        history = HistoryReader(lab.path)
        answers = [
            asyncio.run(history.answer(ask))
            for ask in (control.History(1, limit=4096), control.Usage(2), control.History(3, since=NOW - 100))
        ]
        history.close()
        for answer in answers:
            assert answer.ok, answer
            json.dumps(answer.to_json(), allow_nan=False)
        assert "new" in [lease["lease"] for lease in answers[0].fields["leases"]]
        return len(lab.live_state), len(answers[0].fields["leases"])
    finally:
        lab._let_go()


@pytest.mark.slow
@pytest.mark.parametrize("kind", damage.ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seeds", usual([range(3), range(3, 12)], range(3).__eq__), ids=["few", "many"])
def test_a_tracker_starts_and_serves_with_any_damage(lived, tmp_path, caplog, kind, seeds) -> None:
    for seed in seeds:
        place = tmp_path / str(seed)
        shutil.copytree(lived, place)
        chance = random.Random(f"{kind.__name__} {seed}")
        kind(place / store.FILE, chance)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            serves(place)
        assert len(caplog.records) <= 2, caplog.text  # moved aside, rows left out
        assert "Traceback" not in caplog.text
        serves(place)  # and again, without a log line
        shutil.rmtree(place)


def test_readable_rows_are_kept_and_one_line_is_logged(lived, tmp_path, caplog) -> None:
    place = tmp_path / "state"
    shutil.copytree(lived, place)
    path = place / store.FILE
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with sqlite3.connect(path) as file:
        (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'").fetchone()
    with path.open("r+b") as raw:
        raw.seek((root - 1) * damage.PAGE)
        raw.write(b"\xff" * damage.PAGE)
    present, leases = serves(place)
    assert present >= 7 * HERE
    assert leases > 2000
    (line,) = [record.getMessage() for record in caplog.records]
    assert "was damaged" in line
    assert "tracker.sqlite.damaged-1" in line
    assert (place / "tracker.sqlite.damaged-1").exists()
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert file.execute("SELECT count(*) FROM leases").fetchone()[0] >= LEASES


def test_damaged_files_do_not_pile_up(tmp_path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    for _ in range(6):
        damage.no_database(place / store.FILE, random.Random(1))
        serves(place)
    assert len(list(place.glob("*.damaged-*"))) == 3


def test_damage_that_is_found_during_a_write_is_repaired(lived, tmp_path, caplog) -> None:
    place = tmp_path / "state"
    shutil.copytree(lived, place)
    lab = HistoryStore(place, history_days=90, clock=lambda: NOW)
    lab.begin(NOW)
    with (place / store.FILE).open("r+b") as raw:
        raw.write(b"\xff" * (place / store.FILE).stat().st_size)
    (place / f"{store.FILE}-wal").write_bytes(b"")
    lab.note(entries.over("new", at=NOW))
    lab.close()
    if lab.failing:  # SQLite may have had all it needed in its memory
        assert "Traceback" not in caplog.text
    serves(place)


@pytest.mark.parametrize("what", ["directory", "pipe to nowhere"])
def test_a_path_that_is_no_file_is_refused_in_one_line(tmp_path, what) -> None:
    path = tmp_path / store.FILE
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        HistoryStore(tmp_path, history_days=90)
    assert "\n" not in str(caught.value)


def test_a_symbolic_link_to_a_file_works(lived, tmp_path) -> None:
    shutil.copytree(lived, tmp_path / "elsewhere")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / store.FILE).symlink_to(tmp_path / "elsewhere" / store.FILE)
    assert serves(tmp_path / "state")[0] >= 7 * HERE
