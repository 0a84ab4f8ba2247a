"""A damaged file is renamed, and its readable rows go into a new file.

The rows of a table are read from its end and from its beginning, up to the first error; the rows between are lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rpcsys.tracker import tables
from rpcsys.tracker.batch import transaction
from rpcsys.tracker.events import HistoryEntry

log = logging.getLogger(__name__)
KEPT = 3  # damaged files that are kept, so that they do not fill a faulty disk
#: How long a start may read a damaged file; the other rows stay in the renamed file only.
SALVAGE_S = 10.0
#: Bytes of the largest file that a start checks as a whole, in half a second; of a larger one, it reads what it needs.
CHECKED = 32 << 20
_BATCH = 1000


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged, by SQLite's text: Python has SQLite's codes from 3.11 on only."""
    if not isinstance(error, sqlite3.OperationalError):
        return isinstance(error, sqlite3.DatabaseError)
    words = str(error)
    return words.startswith(("no such ", "malformed ")) or " already exists" in words or " has no column" in words


def open_whole(path: Path) -> sqlite3.Connection:
    """Open a tracker's file, or a new one with its readable rows if it is damaged.

    Raises `ConfigError`: as `tables.open_file`; `sqlite3.Error`, `OSError`: it cannot be read, renamed or written.
    """
    try:
        file = tables.open_file(path)
        try:
            _check(path, file)
        except BaseException:
            file.close()
            raise
        return file
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        return replace(path, str(error))


def replace(path: Path, reason: str) -> sqlite3.Connection:
    """Rename a damaged file and copy its readable rows into a new one. Raises as `open_whole`."""
    aside = _move_aside(path)
    file = tables.open_file(path)
    kept = 0
    with contextlib.suppress(sqlite3.Error):
        kept = _copy(aside, file)
    text = "%s was damaged (%s): it is kept as %s, and %d rows of it could be read and go on here"
    log.warning(text, path, reason, aside.name, kept)
    return file


def present_alone(path: Path) -> list[HistoryEntry]:
    """The live state in a file that cannot be opened on a full disk; empty unless the last run ended in order."""
    journal = path.with_name(f"{path.name}-wal")
    with contextlib.suppress(sqlite3.Error, OSError):
        if path.is_file() and not (journal.exists() and journal.stat().st_size):
            uri = f"{path.absolute().as_uri()}?immutable=1"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as file:
                file.text_factory = tables.text
                return [record for record in tables.all_present(file) if record is not None]
    return []


def _check(path: Path, file: sqlite3.Connection) -> None:
    """Check that the tables exist and their rows can be read: all of a small file, else what a start needs."""
    for table, columns in tables.COLUMNS.items():
        file.execute(f"SELECT {', '.join(columns)} FROM {table} LIMIT 0")
    if path.stat().st_size <= CHECKED:
        (found,) = file.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(" ".join(str(found).split()))
        return
    for query in (
        "SELECT total(length(details)) FROM present",
        "SELECT total(looks) FROM levels",
        "SELECT * FROM leases ORDER BY id DESC LIMIT 1000",
        "SELECT * FROM leases ORDER BY ended DESC LIMIT 1000",
        "SELECT * FROM events ORDER BY id DESC LIMIT 1000",
    ):
        for _ in file.execute(query):
            pass


def _move_aside(path: Path) -> Path:
    """Rename the file and its journal; of more than `KEPT` renamed files, the oldest is removed."""
    names = [path.with_name(f"{path.name}.damaged-{number}") for number in range(1, KEPT + 1)]
    free = [name for name in names if not name.exists()]
    aside = free[0] if free else min(names, key=lambda name: name.stat().st_mtime)
    for ending in ("-wal", "-shm", ""):
        if free == []:
            with contextlib.suppress(OSError):
                os.unlink(f"{aside}{ending}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    with contextlib.suppress(OSError):
        os.utime(aside)
    return aside


def _copy(aside: Path, file: sqlite3.Connection) -> int:
    end, kept = time.monotonic() + SALVAGE_S, 0
    uri = aside.absolute().as_uri()
    for way in ("?mode=ro", "?immutable=1"):  # with its journal; then without, as that may be damaged, too
        with contextlib.closing(sqlite3.connect(uri + way, uri=True, timeout=1.0)) as old:
            old.text_factory = tables.text
            old.set_progress_handler(lambda: time.monotonic() > end, 20_000)
            for table, columns in tables.COLUMNS.items():
                kept += _copy_table(old, file, table, columns)
        if kept:
            break
    return kept


def _copy_table(old: sqlite3.Connection, file: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> int:
    names = ", ".join(columns)
    add = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"
    order = columns[: tables.SORTED_BY[table]]
    before = file.total_changes
    for way in ("DESC", "ASC"):
        by = ", ".join(f"{column} {way}" for column in order)
        with contextlib.suppress(sqlite3.Error):
            found = old.execute(f"SELECT {names} FROM {table} ORDER BY {by}")
            for some in _sound(found, table, columns):
                with transaction(file):
                    file.executemany(add, some)
            break  # all of it
    return file.total_changes - before


def _sound(found: sqlite3.Cursor, table: str, columns: tuple[str, ...]) -> Iterator[list[Any]]:
    read, problem = _BATCH, None
    while read == _BATCH and problem is None:
        read, some = 0, []
        try:
            for row in islice(found, _BATCH):
                read += 1
                if _is_sound(table, dict(zip(columns, row, strict=True))):
                    some.append(row)
        except sqlite3.Error as error:
            problem = error
        yield some
    if problem is not None:
        raise problem


def _is_sound(table: str, row: Mapping[str, Any]) -> bool:
    if table == "leases":
        return tables.lease(row) is not None
    if table == "present":
        return tables.present(row["kind"], row["about"], row["at"], row["details"]) is not None
    return all(value is None or tables.is_plain(value) for value in row.values())
