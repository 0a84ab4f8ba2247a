"""The tables of the file, and the checks of their rows."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.tracker import tables
from rpcsys.tracker.tables import Position
from tests.tracker.stores import NOW

ANY = st.none() | st.integers() | st.floats() | st.text() | st.binary()


def test_columns_equal_those_of_the_steps(tmp_path):
    file = tables.open_file(tmp_path / "file")
    for table, columns in tables.COLUMNS.items():
        found = file.execute(f"PRAGMA table_info({table})").fetchall()
        assert tuple(name for _, name, *_ in found) == columns
        keys = tuple(name for _, name, *_, key in sorted(found, key=lambda row: row[-1]) if key)
        assert keys == columns[: tables.SORTED_BY[table]]
    file.close()


def test_a_file_of_a_later_version_is_refused(tmp_path):
    tables.open_file(tmp_path / "file", ("CREATE TABLE t (a);", "CREATE TABLE u (a);")).close()
    with pytest.raises(ConfigError, match="later version"):
        tables.open_file(tmp_path / "file", ("CREATE TABLE t (a);",))


def test_a_reader_cannot_write(tmp_path):
    tables.open_file(tmp_path / "file").close()
    file = tables.open_for_reading(tmp_path / "file")
    with pytest.raises(sqlite3.OperationalError):
        file.execute("DELETE FROM leases")
    file.close()


def journal_row(file, *row):
    file.execute("DELETE FROM journal")
    file.execute("INSERT INTO journal (through, at, epoch, arrivals, journal, lacks) VALUES (?, ?, ?, ?, ?, ?)", row)
    return tables.position(file)


def test_the_position_of_a_replica(tmp_path):
    file = tables.open_file(tmp_path / "file")
    assert tables.position(file) == Position()
    assert journal_row(file, 7, NOW, 3, 4, "one", None) == Position(7, NOW, 3, 4, "one")
    assert journal_row(file, 7, NOW, 3, 4, "one", 5.0) == Position(7, NOW, 3, 4, "one", 5.0)
    for row in ((-1, NOW, 3, 4), (7, "x", 3, 4), (7, 1e300, 3, 4), (7, NOW, b"x", 4), (7, NOW, 3, 0.5)):
        assert journal_row(file, *row, "one", None) == Position()
    for more in ((b"x\0", None), ("one", "x"), ("one", 1e300)):
        assert journal_row(file, 7, NOW, 3, 4, *more) == Position()
    file.close()


@given(st.sampled_from(["granted", "waiting", "drained", "nothing"]) | ANY, ANY, ANY, ANY)
def test_any_row_of_present_is_an_entry_or_left_out(kind, about, at, details):
    try:
        hash(kind)
    except TypeError:
        return
    entry = tables.present(kind, about, at, details)
    assert entry is None or entry.kind == kind


def test_a_row_must_be_about_its_own_details():
    assert tables.present("drained", "board", NOW, '{"server": "board", "by": "ann"}') is not None
    assert tables.present("drained", "board", NOW, '{"server": "board", "by": 7}') is None
    assert tables.present("drained", "other", NOW, '{"server": "board", "by": "ann"}') is None
    assert tables.present("drained", "board", NOW, '{"server": NaN}') is None
    assert tables.present("drained", "board", NOW, "[" * 100_000) is None
    assert tables.present("unheard", "7", NOW, '{"request": "7", "user": "ann"}') is not None
    for request in ("seven", "\u0667", "", "7" * 17):
        assert tables.present("unheard", request, NOW, json.dumps({"request": request, "user": "ann"})) is None


@given(st.fixed_dictionaries(dict.fromkeys(tables.COLUMNS["leases"], ANY)))
def test_any_row_of_leases_is_valid_or_left_out(row):
    kept = tables.lease(row)
    assert kept is None or isinstance(kept["cleaned"], dict)


@given(ANY)
def test_plain_values_are_those_of_json(value):
    assert not tables.is_plain(value) or type(value) in (str, int, float)
