"""What a tracker remembers beyond its own life: an SQLite file in the state directory.

Rules this file keeps:

- The event loop never waits for the disk: `Store.note` puts records in a box, a thread writes what is in it.
- A batch is one transaction: `present`, by which a tracker begins again, and the history never contradict each other.
- What has to be remembered while the disk cannot be written is bounded: history beyond `MAX_HISTORY` records is
  dropped and counted, and of the present there is only one.

Hundreds of rows go into SQLite with one statement: the interpreter's lock is free while it runs. (Statement by
statement, each would wait for the lock again, and beside a busy loop that is 500 us a row.)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rpcsys.daemon.courier import Courier
from rpcsys.errors import ConfigError
from rpcsys.tracker import schema
from rpcsys.tracker.events import Record
from rpcsys.tracker.present import Fact, Present
from rpcsys.tracker.records import OURS

log = logging.getLogger(__name__)

FILE = "tracker.sqlite"

MAX_HISTORY = 200_000
"""Records that may wait for the disk, about 100 MB: minutes of a very busy lab."""

GATHER_S = 0.5
"""How long records gather before they are written: what a kill takes away is less than a second old."""

RETRY_S = 2.0
"""How long a disk that could not be written is left alone."""

PRUNE_EVERY_S = 600.0
PRUNED = 5_000
"""Rows that are deleted at a time: others' commits wait meanwhile."""

SHRUNK = 2_000
"""Pages given back to the disk at a time, of 4 KiB, while more than a quarter of the file is empty."""

SHARES_S = 10 * 3600.0
MAX_SHARES = 100_000
"""Leases that are over are given back so far, and so many: shares of device time halve every hour."""

_CLOSE_S = 5.0
_ROWS = 500 if sqlite3.sqlite_version_info >= (3, 32) else 50  # older ones take 999 values in all
_HOUR = 3600
_EVENTS = frozenset(
    ("joined", "gone", "set_aside", "trusted", "unhealthy", "healthy", "drained", "enabled", "waited")
)
_MADE_ONCE = ("granted", "waiting")

_LEASES = (
    *("lease", "epoch", "key", "server", "user", "address", "how", "since", "begun", "ended", "held_s"),
    *("limit_s", "waited_s", "priority", "outcome", "reason", "fault", "cleaned"),
)


_NOTHING: Mapping[str, Any] = {}
_ADD_LEASES = f"INSERT INTO leases ({', '.join(_LEASES)}) VALUES"
_ADD_USAGE = f"""
INSERT INTO usage
SELECT CAST(ended AS INTEGER) / {_HOUR} * {_HOUR}, user, key, count(*), total(held_s), total(waited_s), sum(fault != '')
FROM leases WHERE id > ? GROUP BY 1, 2, 3
ON CONFLICT (hour, user, key) DO UPDATE SET leases = leases + excluded.leases, held_s = held_s + excluded.held_s,
    waited_s = waited_s + excluded.waited_s, faults = faults + excluded.faults
"""
_ADD_EVENTS = "INSERT INTO events (at, kind, about, details) VALUES"
_ADD_PRESENT = "INSERT OR REPLACE INTO present (kind, about, number, at, details) VALUES"
_ADD_LEVELS = "INSERT OR REPLACE INTO levels (begin, key, looks, slots, leased, waiting) VALUES"
_END_PRESENT = "DELETE FROM present WHERE (kind, about) IN (VALUES"

Over = tuple[Record, "Record | None", "Record | None", "Record | None"]
"""The ``over`` of a lease, and what was known of it: ``granted``, ``begun``, ``limited``."""


@dataclass
class Batch:
    """What is to be written. ``missed`` counts what there was no room for."""

    overs: list[Over] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    changes: dict[Fact, tuple[int, Record] | None] = field(default_factory=dict)
    levels: dict[tuple[int, str], Sequence[float]] = field(default_factory=dict)
    missed: int = 0

    def __bool__(self) -> bool:
        return bool(self.overs or self.events or self.changes or self.levels)

    @property
    def full(self) -> bool:
        """Whether no more history has room."""
        return len(self.overs) + len(self.events) >= MAX_HISTORY

    def add_over(self, over: Over) -> None:
        """A lease is over."""
        if self.full:
            self.missed += 1
        else:
            self.overs.append(over)

    def add_event(self, record: Record) -> None:
        """Something happened that is history."""
        if self.full:
            self.missed += 1
        else:
            self.events.append(record)

    def extend(self, later: Batch) -> None:
        """Take in what came later."""
        room = MAX_HISTORY - len(self.overs) - len(self.events)
        self.missed += later.missed + max(0, len(later.overs) - room)
        self.overs += later.overs[: max(0, room)]
        room = MAX_HISTORY - len(self.overs) - len(self.events)
        self.missed += max(0, len(later.events) - room)
        self.events += later.events[: max(0, room)]
        self.changes.update(later.changes)
        self.levels.update(later.levels)


class Store:
    """The file, open for writing, in a directory that no other tracker uses meanwhile.

    Raises
    ------
    ConfigError: the directory cannot be used; the message says why.
    """

    def __init__(
        self, directory: str | Path, *, history_days: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(directory) / FILE
        self._history_s = history_days * 86400
        self._clock = clock
        self._lock_file = _lock(Path(directory))
        try:
            self._file = schema.open_file(self.path)
            self._file.text_factory = lambda data: data.decode(errors="replace")
            rows = self._file.execute("SELECT * FROM present ORDER BY number").fetchall()
        except sqlite3.Error as error:
            self._lock_file.close()
            raise _unusable(self.path, error) from None
        except ConfigError:
            self._lock_file.close()
            raise
        self.present = Present(Record(at, kind, json.loads(details)) for kind, _, _, at, details in rows)
        self._number = max((number for _, _, number, _, _ in rows), default=0)
        self._box = Batch()
        self._box_lock = threading.Lock()
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._prune_at = 0.0
        self._courier = Courier("history", self._carry, GATHER_S)

    # On the event loop.

    def restored(self, now: float) -> tuple[Record, ...]:
        """What a tracker that starts now has to know of the last run, in the order in which it was made."""
        found = self._file.execute(
            "SELECT ended, lease, epoch, key, server, user, address, since, held_s, outcome, reason, fault, cleaned"
            " FROM leases WHERE ended > ? ORDER BY id DESC LIMIT ?",
            (now - SHARES_S, MAX_SHARES),
        ).fetchall()
        names = ("lease", "epoch", "key", "server", "user", "address", "since", "held_s")
        overs = [
            Record(
                row[0],
                "over",
                {
                    **dict(zip(names, row[1:9], strict=True)),
                    "outcome": row[9],
                    "reason": row[10],
                    "fault": row[11],
                    "cleaned": json.loads(row[12]),
                },
            )
            for row in reversed(found)
        ]
        return tuple(sorted([*overs, *self.present], key=lambda record: record.at))

    @property
    def failing(self) -> bool:
        """Whether the file cannot be written at the moment."""
        return self._failing_since is not None

    def begin(self, now: float) -> tuple[Record, ...]:
        """What `restored` says, after the end of what nobody will tell the end of."""
        for record in list(self.present):
            if record.kind == "granted" and record.details["how"] != OURS:
                self.note(_unknown_end(record, now))
        return self.restored(now)

    def forget_absent(self, before: float, now: float) -> None:
        """Whoever joined before then and has not joined again since then is gone."""
        for record in list(self.present):
            if record.kind == "joined" and record.at < before:
                reason = "it has not come back after a restart of the tracker"
                self.note(Record(now, "gone", {"server": record.details["server"], "reason": reason}))

    def levels(self, since: float) -> list[tuple[int, str, int, float, float, float]]:
        """What `note_levels` noted since then: begin, key, looks, slots, leased, waiting."""
        return self._file.execute("SELECT * FROM levels WHERE begin >= ?", (since,)).fetchall()

    def note(self, *records: Record) -> None:
        """Remember records, within a second."""
        with self._box_lock:
            for record in records:
                self._fold(record)
        self._courier.wake()

    def _fold(self, record: Record) -> None:
        kind, box = record.kind, self._box
        if kind == "over":
            get, lease = self.present.get, record.details["lease"]
            box.add_over((record, get("granted", lease), get("begun", lease), get("limited", lease)))
        elif kind in _EVENTS and record.details.get("why") != "granted":
            box.add_event(record)
        for fact, holds in self.present.fold(record).items():
            if holds is not None:
                self._number += 1
                box.changes[fact] = (self._number, holds)
            elif fact[0] in _MADE_ONCE and box.changes.get(fact) is not None:
                del box.changes[fact]  # begun and ended within one batch: nobody need ever know
            else:
                box.changes[fact] = None

    def note_levels(self, rows: Iterable[tuple[int, str, int, float, float, float]]) -> None:
        """Remember averages: begin, key, looks, slots, leased, waiting. Noted again, they replace the earlier ones."""
        with self._box_lock:
            for begin, key, *figures in rows:
                self._box.levels[begin, key] = figures
        self._courier.wake()

    def close(self) -> None:
        """Write what is still to be written, for at most 5 s, and let the directory go."""
        if self._courier.close(_CLOSE_S):
            self._file.close()
        self._lock_file.close()

    # In the thread.

    def _carry(self) -> float | None:
        if self._failing_since is not None and time.monotonic() < self._retry_at:
            return self._retry_at - time.monotonic()
        with self._box_lock:
            batch, self._box = self._box, Batch()
        try:
            if batch:
                self._write(batch)
            self._recovered(batch)
            return self._prune()
        except sqlite3.Error as error:
            self._failed(error, batch)
            return RETRY_S

    def _write(self, batch: Batch) -> None:
        with _transaction(self._file) as file:
            (last,) = file.execute("SELECT max(id) FROM leases").fetchone()
            _run(file, _ADD_LEASES, [_lease_row(*over) for over in batch.overs])
            if batch.overs:
                file.execute(_ADD_USAGE, (last or 0,))
            _run(file, _ADD_EVENTS, [_event_row(record) for record in batch.events])
            _run(file, _END_PRESENT, [fact for fact, change in batch.changes.items() if change is None], ")")
            changed = [_present_row(f, *c) for f, c in batch.changes.items() if c is not None]
            _run(file, _ADD_PRESENT, changed)
            _run(file, _ADD_LEVELS, [(*period, *figures) for period, figures in batch.levels.items()])

    def _failed(self, error: sqlite3.Error, batch: Batch) -> None:
        with self._box_lock:
            batch.extend(self._box)
            self._box = batch
        self._retry_at = time.monotonic() + RETRY_S
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            log.warning(
                "history stops: %s cannot be written (%s). Make room there; devices are handed out all the same, "
                "and it is tried again every few seconds",
                self.path,
                error,
            )

    def _recovered(self, batch: Batch) -> None:
        if self._failing_since is not None and batch:
            lasted, self._failing_since = time.monotonic() - self._failing_since, None
            log.warning("history goes on, after %.0f s; %d records of it are missing", lasted, batch.missed)

    def _prune(self) -> float:
        if time.monotonic() < self._prune_at:
            return self._prune_at - time.monotonic()
        before = self._clock() - self._history_s
        deleted = 0
        with _transaction(self._file) as file:
            for table, column in (("leases", "ended"), ("events", "at")):
                old = f"SELECT id FROM {table} WHERE {column} < ? LIMIT {PRUNED}"
                deleted = max(
                    deleted, file.execute(f"DELETE FROM {table} WHERE id IN ({old})", (before,)).rowcount
                )
            file.execute("DELETE FROM usage WHERE hour < ?", (before - _HOUR,))
            file.execute("DELETE FROM levels WHERE begin < ?", (before,))
        more = deleted == PRUNED or self._shrink()
        self._prune_at = time.monotonic() + (0.0 if more else PRUNE_EVERY_S)
        return max(0.0, self._prune_at - time.monotonic())

    def _shrink(self) -> bool:
        """Give a part of a file that is mostly empty back to the disk; whether there is more to give."""
        (free,), (pages,) = (
            self._file.execute(f"PRAGMA {what}_count").fetchone() for what in ("freelist", "page")
        )
        if free <= pages // 4:
            return False
        # `execute` would take the first step of this statement only: one page.
        self._file.executescript(f"PRAGMA incremental_vacuum({SHRUNK})")
        return bool(free > SHRUNK)


@contextlib.contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing; a failure leaves the connection ready for the next one."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield file
        file.execute("COMMIT")
    finally:
        if file.in_transaction:
            file.execute("ROLLBACK")


def _run(file: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]], end: str = "") -> None:
    """Run a statement that goes on with rows of values, for many rows at a time."""
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        places = ", ".join(["(" + ", ".join("?" * len(some[0])) + ")"] * len(some))
        file.execute(f"{statement} {places}{end}", [value for row in some for value in row])


def _lease_row(
    over: Record, granted: Record | None, begun: Record | None, limited: Record | None
) -> list[Any]:
    facts, asked = over.details, _NOTHING if granted is None else granted.details
    return [
        facts["lease"],
        facts["epoch"],
        facts["key"],
        facts["server"],
        facts["user"] or facts["address"],
        facts["address"],
        asked.get("how", ""),
        facts["since"],
        None if begun is None else begun.at,
        over.at,
        facts["held_s"],
        asked.get("limit_s") if limited is None else limited.details["limit_s"],
        asked.get("waited_s", 0.0),
        asked.get("priority", 0.0),
        facts["outcome"],
        facts["reason"],
        facts["fault"],
        json.dumps(facts["cleaned"]) if facts["cleaned"] else "{}",
    ]


def _present_row(fact: Fact, number: int, record: Record) -> tuple[Any, ...]:
    return (*fact, number, record.at, json.dumps(record.details))


def _event_row(record: Record) -> tuple[Any, ...]:
    about = str(record.details.get("server") or record.details.get("ticket") or "")
    return (record.at, record.kind, about, json.dumps(record.details))


def _unknown_end(granted: Record, now: float) -> Record:
    told = {name: granted.details[name] for name in ("lease", "epoch", "key", "server", "user", "address")}
    reason = "the tracker was restarted, and one of TVM's servers does not say what became of its session"
    ended = {"outcome": "unknown", "reason": reason, "fault": "", "cleaned": {}}
    return Record(now, "over", {**told, "since": granted.at, "held_s": 0.0, **ended})


def _lock(directory: Path) -> IO[str]:
    """Take the directory, which is made if it is not there; the kernel gives it back when this process dies."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / "lock", "a+", encoding="utf-8")  # noqa: SIM115 (it stays open)
    except OSError as error:
        raise ConfigError(f"--state-dir {directory} cannot be used: {error.strerror or error}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(32).strip() or "unknown"
        file.close()
        raise ConfigError(
            f"--state-dir {directory} is in use by another tracker (process {owner}): stop that one, or give "
            "this one a directory of its own"
        ) from None
    try:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
    except OSError:
        pass  # on a full disk: the lock holds all the same
    return file


def _unusable(path: Path, error: sqlite3.Error) -> ConfigError:
    return ConfigError(
        f"{path} cannot be used ({error}): make room or give it back to this user, or move the file away to begin "
        "with an empty history"
    )
