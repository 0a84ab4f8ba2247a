"""The tables of a tracker's history file, and the checks of their rows; invalid rows are left out.

``user_version`` counts the `STEPS` that a file has taken; opening it takes the rest. A released step never changes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys.errors import ConfigError, ProtocolError
from rpcsys.tracker import board_speed
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.transitions import INFERRED, OURS, SILENT
from rpcsys.wire import checks
from rpcsys.wire.checks import Check

_FIRST = """
-- Leases that are over. `user` is the address if the client sends no name; times are seconds since 1970.
CREATE TABLE leases (
    id INTEGER PRIMARY KEY,
    lease TEXT NOT NULL, epoch INTEGER NOT NULL, key TEXT NOT NULL, server TEXT NOT NULL,
    user TEXT NOT NULL, address TEXT NOT NULL, how TEXT NOT NULL,
    since REAL NOT NULL, begun REAL, ended REAL NOT NULL, held_s REAL NOT NULL, limit_s REAL,
    waited_s REAL NOT NULL, priority REAL NOT NULL,
    outcome TEXT NOT NULL, reason TEXT NOT NULL, fault TEXT NOT NULL, cleaned TEXT NOT NULL
);
CREATE INDEX leases_ended ON leases (ended);
CREATE INDEX leases_key ON leases (key);
CREATE INDEX leases_user ON leases (user);
CREATE INDEX leases_server ON leases (server);
-- Their sums, by the hour in which they ended.
CREATE TABLE usage (
    hour INTEGER NOT NULL, user TEXT NOT NULL, key TEXT NOT NULL,
    leases INTEGER NOT NULL, held_s REAL NOT NULL, waited_s REAL NOT NULL, faults INTEGER NOT NULL,
    PRIMARY KEY (hour, user, key)
) WITHOUT ROWID;
-- Events of servers (joined, gone, set_aside, trusted, ...), and tickets that got no device.
CREATE TABLE events (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, about TEXT NOT NULL, details TEXT NOT NULL
);
CREATE INDEX events_at ON events (at);
CREATE INDEX events_about ON events (about);
-- The current state: running leases, waiting tickets, servers that are registered, set aside or drained.
CREATE TABLE present (
    kind TEXT NOT NULL, about TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, details TEXT NOT NULL,
    PRIMARY KEY (kind, about)
) WITHOUT ROWID;
-- Devices, leased devices and waiting requests: averages of ten minutes each.
CREATE TABLE levels (
    begin INTEGER NOT NULL, key TEXT NOT NULL, looks INTEGER NOT NULL,
    slots REAL NOT NULL, leased REAL NOT NULL, waiting REAL NOT NULL,
    PRIMARY KEY (begin, key)
) WITHOUT ROWID;
"""

_SECOND = """
-- How far a replica has the journal of its lab: its last entry, and the highest numbers in it. At most one row.
CREATE TABLE journal (through INTEGER PRIMARY KEY, at REAL NOT NULL, epoch INTEGER NOT NULL, arrivals INTEGER NOT NULL);
"""

_THIRD = """
-- The journal's ID; and the time from which on the leases that have ended may be missing here, NULL if none is.
ALTER TABLE journal ADD COLUMN journal TEXT NOT NULL DEFAULT '';
ALTER TABLE journal ADD COLUMN lacks REAL;
"""

STEPS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD)  # scripts: from an empty file to version 1, from 1 to 2, and so on
#: Columns of the tables, the most important table first.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "present": ("kind", "about", "number", "at", "details"),
    "leases": (
        *("id", "lease", "epoch", "key", "server", "user", "address", "how", "since", "begun", "ended"),
        *("held_s", "limit_s", "waited_s", "priority", "outcome", "reason", "fault", "cleaned"),
    ),
    "usage": ("hour", "user", "key", "leases", "held_s", "waited_s", "faults"),
    "levels": ("begin", "key", "looks", "slots", "leased", "waiting"),
    "events": ("id", "at", "kind", "about", "details"),
    "journal": ("through", "at", "epoch", "arrivals", "journal", "lacks"),
}
#: How many of a table's first columns are its sort order in the file.
SORTED_BY: Mapping[str, int] = {"present": 2, "leases": 1, "usage": 3, "levels": 2, "events": 1, "journal": 1}
_BUSY_S = 5.0  # how long to wait for a lock: other programs may read the file

#: The age in seconds, and the number, of past leases that are read at a start: shares of device time halve every hour.
SHARES_S, MAX_SHARES = 10 * 3600.0, 100_000
#: Rows of ``present``, and bytes of a row's details: `MAX_LABELS` of 256 characters each, as JSON writes them.
MAX_PRESENT, MAX_DETAILS = 100_000, 256 << 10
MAX_LEVELS = 72_000  # a day of averages of `rpcsys.tracker.views.utilisation.MAX_KEYS` keys
_REPORTING = (OURS, SILENT, INFERRED)
_MAX_TEXT = 4096
_MAX_AT = 10**12
_SLACK_S = 1.0  # tolerance between a lease's end and its start plus its duration


class Position(NamedTuple):
    """How far a replica has its lab's journal."""

    through: int = 0  # its last entry
    at: float = 0.0  # the latest time in it, seconds since 1970
    epoch: int = 0  # the highest in it
    arrivals: int = 0
    journal: str = ""  # its ID
    lacks: float | None = None  # the history may lack leases that ended then or later; None: it lacks none


def text(data: bytes) -> str:
    """A text of the file; invalid bytes are replaced."""
    return data.decode(errors="replace")


def open_file(path: Path, steps: Sequence[str] = STEPS) -> sqlite3.Connection:
    """Open the file for writing; create or upgrade it as needed. The connection is for one thread at a time.

    Raises `ConfigError`: the file is of a later version; `sqlite3.Error`: it cannot be read or written.
    """
    # Statements are not cached: their length depends on the batch, and one of 500 rows takes most of a megabyte.
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=0
    )
    connection.text_factory = text
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(steps):
            problem = f"{path} was written by a later version of rpcsys: start that one, or give another --state-dir"
            raise ConfigError(problem)
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the file has tables
        connection.execute("PRAGMA journal_mode = WAL")
        # A commit survives the end of the process; a power failure may lose the last commits.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        for number in range(version, len(steps)):
            connection.executescript(f"BEGIN IMMEDIATE;\n{steps[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open a second connection, which cannot write. It is for one thread at a time."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, check_same_thread=False)
    connection.text_factory = text
    connection.row_factory = sqlite3.Row
    return connection


# Checks of rows.


def _text(value: Any, name: str) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT or not value.isprintable():
        raise checks.wrong(name, "printable text", value)
    return value


def _at(value: Any, name: str) -> float:
    found = checks.number(value, name)
    if abs(found) > _MAX_AT:
        raise checks.wrong(name, "a time", value)
    return found


def _reporting(value: Any, name: str) -> str:
    if value not in _REPORTING:
        raise checks.wrong(name, "how a lease is known", value)
    return str(value)


def _speed(value: Any, name: str) -> str:
    if type(value) is not str or not board_speed.fits(value):
        raise checks.wrong(name, "what is known of a board's speed", value)
    return value


def _number(value: Any, name: str) -> str:
    if type(value) is not str or not value.isascii() or not value.isdigit() or len(value) > 16:
        raise checks.wrong(name, "a number as text", value)
    return value


_count = checks.integer(0, checks.MAX_ID)
_limit = checks.optional(checks.seconds)
_labels = checks.mapping(_text)

_PRESENT: Mapping[str, Mapping[str, Check]] = {
    "granted": {
        **dict.fromkeys(("lease", "key", "server", "user", "address"), _text),
        "epoch": _count,
        "limit_s": _limit,
        "waited_s": checks.seconds,
        "priority": checks.number,
        "how": _reporting,
    },
    "begun": {"lease": _text},
    "limited": {"lease": _text, "limit_s": _limit},
    "waiting": {**dict.fromkeys(("ticket", "key", "user"), _text), "arrival": _count, "labels": _labels, "since": _at},
    "absent": {"ticket": _text},
    "unheard": {"request": _number, "user": _text},
    "joined": {"server": _text},
    "set_aside": {"server": _text, "reason": _text, "failures": _count, "pause_s": checks.seconds, "until": _at},
    "drained": {"server": _text},
    "canary": {
        **dict.fromkeys(("server", "key", "reason"), _text),
        "test": _speed,
        **dict.fromkeys(("over", "apart"), checks.flag),
    },
}

_LEASE: Mapping[str, Check] = {
    **dict.fromkeys(("lease", "key", "server", "user", "address", "how", "outcome", "reason", "fault"), _text),
    "epoch": _count,
    "since": _at,
    "begun": checks.optional(_at),
    "ended": _at,
    "held_s": checks.seconds,
    "limit_s": _limit,
    "waited_s": checks.seconds,
    "priority": checks.number,
}
#: Fields of a past lease that its ``granted``, ``begun`` and ``limited`` have, and its end itself.
_OF_OTHERS = ("how", "begun", "ended", "limit_s", "waited_s", "priority")
_RECORDS: Mapping[str, Mapping[str, Check]] = {
    **_PRESENT,
    "over": {
        **{name: check for name, check in _LEASE.items() if name not in _OF_OTHERS},
        "cleaned": checks.mapping(lambda value, name: value),
    },
    **{kind: {"ticket": _text} for kind in ("waited", "back")},
    "heard": {"request": _number},
    **{kind: {"server": _text} for kind in ("gone", "trusted", "enabled", "forgotten", "unlearnt", "slow", "well")},
}
#: The fields of a past lease that a start needs, beside its end.
_OVER: Mapping[str, Check] = {name: _LEASE[name] for name in ("key", "user", "since", "held_s", "outcome")}


def lease(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of ``leases`` with ``cleaned`` as an object; None if it is invalid."""
    try:
        kept = {name: check(row[name], name) for name, check in _LEASE.items()}
        kept["cleaned"] = _object(row["cleaned"])
    except (ProtocolError, ValueError):
        return None
    return kept


def event(row: Mapping[str, Any]) -> HistoryEntry | None:
    """The entry in a row of ``events``; None if it is invalid."""
    try:
        return HistoryEntry(_at(row["at"], "at"), _text(row["kind"], "kind"), _object(row["details"]))
    except (ProtocolError, ValueError):
        return None


def present(kind: Any, about: Any, at: Any, details: Any) -> HistoryEntry | None:
    """The record in a row of ``present``; None if it is invalid."""
    try:
        plain = _object(details)
        record = HistoryEntry(_at(at, "at"), kind, plain)
        # The first field is the lease, ticket or server.
        return record if is_record(record) and plain[next(iter(_PRESENT[kind]))] == about else None
    except (ProtocolError, ValueError, KeyError, TypeError):
        return None


def is_record(record: HistoryEntry) -> bool:
    """Whether a record from outside has all that its kind needs. Those of kinds that change nothing need nothing."""
    kind, details = record.kind, record.details
    try:
        for name, check in _RECORDS.get(kind, {}).items():
            check(details[name], name)
        for name in ("identity", "by"):
            _text(details.get(name, ""), name)
        for name in ("epoch", "arrival"):
            _count(details.get(name, 0), name)
        if kind == "waiting":
            wants_of(details["key"], details["labels"])
            if details.get("tvm"):
                _text(details["address"], "address")
                checks.number(details["priority"], "priority")
        _at(record.at, "at")
    except (ProtocolError, ValueError, KeyError, TypeError):
        return False
    return True


def is_plain(value: Any) -> bool:
    """Whether a value is a number or a text within the limits."""
    if type(value) is str:
        return len(value) <= MAX_DETAILS
    return type(value) in (int, float) and abs(value) <= checks.MAX_ID


def _object(text: Any) -> dict[str, Any]:
    """Parse a JSON object within the limits. Raises ValueError."""
    if type(text) is not str or len(text) > MAX_DETAILS:
        raise ValueError
    try:
        found = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError from None
    if type(found) is not dict:
        raise ValueError
    return found


def _no_number(word: str) -> float:
    raise ValueError(word)


def all_present(file: sqlite3.Connection) -> Iterator[HistoryEntry | None]:
    """The records of ``present``, in the order in which they were made; None for each row that is left out."""
    found = file.execute(
        "SELECT kind, about, at, details FROM present WHERE length(details) <= ? ORDER BY number LIMIT ?",
        (MAX_DETAILS, MAX_PRESENT),
    )
    for row in found:
        yield present(*row)
    (skipped,) = file.execute(
        "SELECT count(*) FROM present WHERE ifnull(length(details), ?) > ?", (MAX_DETAILS + 1, MAX_DETAILS)
    ).fetchone()
    for _ in range(min(skipped, MAX_PRESENT)):
        yield None


def position(file: sqlite3.Connection) -> Position:
    """How far the file has a journal; its beginning, if it has none, or if the row is invalid."""
    row = file.execute(f"SELECT {', '.join(COLUMNS['journal'])} FROM journal LIMIT 1").fetchone() or Position()
    try:
        through, at, epoch, arrivals, journal, lacks = row
        return Position(
            _count(through, ""), _at(at, ""), _count(epoch, ""), _count(arrivals, ""), _text(journal, ""),
            checks.optional(_at)(lacks, ""),
        )  # fmt: skip
    except ProtocolError:
        return Position()


def overs(file: sqlite3.Connection, now: float) -> list[HistoryEntry]:
    """Recent past leases in the order of writing, without those that a wrong clock dated after ``now``."""
    found = file.execute(
        f"SELECT ended, {', '.join(_OVER)} FROM leases WHERE ended > ? AND ended <= ? ORDER BY id DESC LIMIT ?",
        (now - SHARES_S, now, MAX_SHARES),
    )
    records = [record for row in found if (record := _over(*row)) is not None]
    records.reverse()
    return records


def _over(*row: Any) -> HistoryEntry | None:
    try:
        ended, *values = row
        details = {name: check(value, name) for (name, check), value in zip(_OVER.items(), values, strict=True)}
    except ProtocolError:
        return None
    ends = details["since"] + details["held_s"]
    return HistoryEntry(ended, "over", details) if ends <= ended + _SLACK_S else None


def levels(file: sqlite3.Connection, since: float, now: float) -> list[tuple[int, str, int, float, float, float]]:
    """Averages from ``since`` on: begin, key, looks (samples), slots, leased, waiting."""
    found = file.execute(
        "SELECT begin, key, looks, slots, leased, waiting FROM levels WHERE begin >= ? AND begin <= ?"
        " ORDER BY begin DESC LIMIT ?",
        (since, now, MAX_LEVELS),
    )
    return [row for row in found if _is_level(*row)]


def _is_level(begin: Any, key: Any, looks: Any, *averages: Any) -> bool:
    try:
        _count(begin, "begin")
        _text(key, "key")
        checks.integer(1, checks.MAX_ID)(looks, "looks")
        return all(checks.seconds(average, "average") == average for average in averages)
    except ProtocolError:
        return False
