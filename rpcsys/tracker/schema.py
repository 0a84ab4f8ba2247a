"""The tables of a tracker's memory, as they are and as they became so.

A file says in ``user_version`` how many of `STEPS` it has taken; opening it takes the rest, each in one
transaction. A step that has been released is never changed: what has to change gets a new one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from rpcsys.errors import ConfigError

_FIRST = """
-- Leases that are over. `user` is the address where there is no name; times are seconds since 1970.
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
-- What they add up to, by the hour in which they ended.
CREATE TABLE usage (
    hour INTEGER NOT NULL, user TEXT NOT NULL, key TEXT NOT NULL,
    leases INTEGER NOT NULL, held_s REAL NOT NULL, waited_s REAL NOT NULL, faults INTEGER NOT NULL,
    PRIMARY KEY (hour, user, key)
) WITHOUT ROWID;
-- What happened to servers (joined, gone, set_aside, trusted, ...), and tickets that got no device.
CREATE TABLE events (id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, about TEXT NOT NULL, details TEXT NOT NULL);
CREATE INDEX events_at ON events (at);
CREATE INDEX events_about ON events (about);
-- What is so now: leases that are out, tickets that wait, servers that are there or out of use.
CREATE TABLE present (
    kind TEXT NOT NULL, about TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, details TEXT NOT NULL,
    PRIMARY KEY (kind, about)
) WITHOUT ROWID;
-- Devices there and leased, and requests waiting: the averages of ten minutes each.
CREATE TABLE levels (
    begin INTEGER NOT NULL, key TEXT NOT NULL, looks INTEGER NOT NULL, slots REAL NOT NULL, leased REAL NOT NULL, waiting REAL NOT NULL,
    PRIMARY KEY (begin, key)
) WITHOUT ROWID;
"""

STEPS: tuple[str, ...] = (_FIRST,)
"""What makes an empty file version 1, that version 2, and so on."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "present": ("kind", "about", "number", "at", "details"),
    "leases": (
        *("id", "lease", "epoch", "key", "server", "user", "address", "how", "since", "begun", "ended"),
        *("held_s", "limit_s", "waited_s", "priority", "outcome", "reason", "fault", "cleaned"),
    ),
    "usage": ("hour", "user", "key", "leases", "held_s", "waited_s", "faults"),
    "levels": ("begin", "key", "looks", "slots", "leased", "waiting"),
    "events": ("id", "at", "kind", "about", "details"),
}
"""Columns of the tables, the table that a tracker needs most first."""

ORDER: Mapping[str, tuple[str, ...]] = {
    "present": ("kind", "about"),
    "leases": ("id",),
    "usage": ("hour", "user", "key"),
    "levels": ("begin", "key"),
    "events": ("id",),
}
"""The columns by which the rows of a table lie in the file."""

_BUSY_S = 5.0  # somebody may look with the sqlite3 command


def text(data: bytes) -> str:
    """A text of the file, whatever its bytes are."""
    return data.decode(errors="replace")


def open_file(path: Path, steps: Sequence[str] = STEPS) -> sqlite3.Connection:
    """Open the file for writing, made or brought up to date as needed. May be used by one thread at a time.

    Raises
    ------
    ConfigError: it is no such file, or is a later version's.
    sqlite3.Error: it cannot be read or written.
    """
    # Statements are not kept: each is as long as its batch has rows, and one of 500 rows takes most of a megabyte.
    connection = sqlite3.connect(
        path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=0
    )
    connection.text_factory = text
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(steps):
            raise ConfigError(
                f"{path} was written by a later version of rpcsys: start that one, or give another --state-dir"
            )
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # which a file can only take on before it has tables
        connection.execute("PRAGMA journal_mode = WAL")
        # A commit survives the death of the process; when the machine's power fails, the last ones may be gone.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        for number in range(version, len(steps)):
            connection.executescript(f"BEGIN IMMEDIATE;\n{steps[number]}\nPRAGMA user_version = {number + 1};\nCOMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """A second connection, which cannot write. May be used by one thread at a time."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S, check_same_thread=False
    )
    connection.text_factory = text
    connection.row_factory = sqlite3.Row
    return connection
