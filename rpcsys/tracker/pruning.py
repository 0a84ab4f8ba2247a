"""Deletes old history: rows older than ``--history-days``, and beyond `MAX_BYTES` those that were written first.

A clock that reads far later than the last rows is doubted for `DOUBT_S`: no row is deleted by its age meanwhile.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

from rpcsys.tracker.batch import HOUR, transaction

MARGIN_S = 86400.0  # the longest time between the last rows and the clock for which the clock is trusted at once
DOUBT_S = 86400.0  # how long a clock that reads later than that is doubted
MAX_BYTES = 1 << 30  # bytes of the file in use: some three million leases
PRUNE_EVERY_S = 600.0
PRUNED = 5_000  # rows that are deleted at a time: commits wait meanwhile
SHRUNK = 2_000  # pages that are freed on the disk at a time, while more than a quarter of the file is empty
_TABLES = (("leases", "ended"), ("events", "at"))


class HistoryPruner:
    """Deletes rows older than ``history_s`` by ``clock``, seconds since 1970."""

    def __init__(self, history_s: float, clock: Callable[[], float]) -> None:
        self._history_s = history_s
        self._clock = clock
        self._doubted_until = 0.0
        self._due = 0.0

    @property
    def before(self) -> float | None:
        """Rows from before this time are deleted; None while the clock is doubted."""
        return None if time.monotonic() < self._doubted_until else self._clock() - self._history_s

    def opened(self, file: sqlite3.Connection) -> None:
        """Compare the clock with a file's last rows, and note the beginning of this run there for the next one."""
        last = [
            row[0]
            for table, column in _TABLES
            for row in file.execute(f"SELECT {column} FROM {table} ORDER BY id DESC LIMIT 1")
            if isinstance(row[0], (int, float))
        ]
        if last and self._clock() > min(last) + MARGIN_S:
            self._doubted_until = time.monotonic() + DOUBT_S
        self._due = 0.0
        file.execute("INSERT INTO events (at, kind, about, details) VALUES (?, 'began', '', '{}')", (self._clock(),))

    def prune(self, file: sqlite3.Connection) -> float:
        """Delete some rows if that is due; return the seconds until the next call. Raises `sqlite3.Error`."""
        full = _used(file) > MAX_BYTES
        if not full and time.monotonic() < self._due:
            return self._due - time.monotonic()
        before = self.before
        with transaction(file):
            deleted = 0 if before is None else _older(file, before)
            if full:
                deleted = max(deleted, _first(file))
        more = deleted >= PRUNED or (full and deleted > 0) or _shrink(file)
        self._due = time.monotonic() + (0.0 if more else PRUNE_EVERY_S)
        return max(0.0, self._due - time.monotonic())


def _older(file: sqlite3.Connection, before: float) -> int:
    deleted = 0
    for table, column in _TABLES:
        old = f"SELECT id FROM {table} WHERE {column} < ? LIMIT {PRUNED}"
        deleted = max(deleted, file.execute(f"DELETE FROM {table} WHERE id IN ({old})", (before,)).rowcount)
    file.execute("DELETE FROM usage WHERE hour < ?", (before - HOUR,))
    file.execute("DELETE FROM levels WHERE begin < ?", (before,))
    return deleted


def _first(file: sqlite3.Connection) -> int:
    spans = {}
    for table, _ in _TABLES:
        first, last = file.execute(f"SELECT min(id), max(id) FROM {table}").fetchone()
        spans[table] = (first or 0, (last or 0) - (first or 0) + 1 if last is not None else 0)
    rows = sum(span for _, span in spans.values())
    deleted = 0
    for table, (first, span) in spans.items():
        upto = first + -(-PRUNED * span // max(1, rows))
        deleted += file.execute(f"DELETE FROM {table} WHERE id < ?", (upto,)).rowcount
    (oldest,) = file.execute("SELECT min(ended) FROM leases").fetchone()
    if oldest is not None:
        file.execute("DELETE FROM usage WHERE hour < ?", (oldest - HOUR,))
        file.execute("DELETE FROM levels WHERE begin < ?", (oldest - HOUR,))
    return deleted


def _used(file: sqlite3.Connection) -> int:
    free, pages, size = (_pragma(file, what) for what in ("freelist_count", "page_count", "page_size"))
    return (pages - free) * size


def _pragma(file: sqlite3.Connection, what: str) -> int:
    (value,) = file.execute(f"PRAGMA {what}").fetchone()
    return int(value)


def _shrink(file: sqlite3.Connection) -> bool:
    free = _pragma(file, "freelist_count")
    if free <= _pragma(file, "page_count") // 4:
        return False
    # `execute` would take the first step of this statement only: one page.
    file.executescript(f"PRAGMA incremental_vacuum({SHRUNK})")
    return free > SHRUNK
