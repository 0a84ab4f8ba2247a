"""The records that still hold, and batches of rows for the tracker's file, with one statement for hundreds of rows: the
interpreter's lock is free while a statement runs, and to take it again for each row would cost 500 us each.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.tables import COLUMNS, Position

#: The most records that wait for the disk, and about how much memory they take: minutes of a very busy lab.
MAX_HISTORY = 200_000
MAX_BYTES = 100 << 20
MAX_LEVELS = 72_000  # averages that wait for the disk: a day of all keys (`rpcsys.tracker.views.utilisation`)
HOUR = 3600
RECORD = 1000  # bytes of a record without its texts
_ROWS = 500 if sqlite3.sqlite_version_info >= (3, 32) else 50  # older versions take 999 values in a statement

Fact = tuple[str, str]  # a kind of record, and the lease, ticket or server that it is about

#: Entries that hold until another entry ends them, and the field with the lease, ticket or server.
_BEGINS: Mapping[str, str] = {
    **dict.fromkeys(("granted", "begun", "limited"), "lease"),
    **dict.fromkeys(("waiting", "absent"), "ticket"),
    "unheard": "request",
    **dict.fromkeys(("joined", "set_aside", "drained", "canary"), "server"),
}
#: Entries that end others, with the same field and the kinds that they end.
_ENDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "over": ("lease", ("granted", "begun", "limited")),
    "waited": ("ticket", ("waiting", "absent")),
    "back": ("ticket", ("absent",)),
    "heard": ("request", ("unheard",)),
    "gone": ("server", ("joined",)),
    "trusted": ("server", ("set_aside",)),
    "enabled": ("server", ("drained", "set_aside")),
    "forgotten": ("server", ("drained", "set_aside", "canary")),
    "unlearnt": ("server", ("canary",)),
}

LEASES = COLUMNS["leases"][1:]  # without ``id``, which SQLite sets
_NOTHING: Mapping[str, Any] = {}
_ADD_LEASES = f"INSERT INTO leases ({', '.join(LEASES)}) VALUES"
#: The same for a replica, which may be told of what it has: a lease has its end and number for itself.
_ADD_NEW_LEASES = f"INSERT INTO leases ({', '.join(LEASES)}) SELECT * FROM (VALUES"
_ENDED, _EPOCH = LEASES.index("ended"), LEASES.index("epoch")
_LEASES_NEW = (
    f") AS told WHERE NOT EXISTS (SELECT 1 FROM leases WHERE ended = told.column{_ENDED + 1}"
    f" AND epoch = told.column{_EPOCH + 1})"
)
_SORT_LEASES = f"""
INSERT INTO leases ({", ".join(LEASES)})
SELECT {", ".join(LEASES)} FROM leases WHERE ended >= ? AND id <= ? ORDER BY ended, epoch
"""
_ADD_USAGE = f"""
INSERT INTO usage
SELECT CAST(ended AS INTEGER) / {HOUR} * {HOUR}, user, key, count(*), total(held_s), total(waited_s), sum(fault != '')
FROM leases WHERE id > ? GROUP BY 1, 2, 3
ON CONFLICT (hour, user, key) DO UPDATE SET leases = leases + excluded.leases, held_s = held_s + excluded.held_s,
    waited_s = waited_s + excluded.waited_s, faults = faults + excluded.faults
"""
_ADD_EVENTS = "INSERT INTO events (at, kind, about, details) VALUES"
_ADD_NEW_EVENTS = "INSERT INTO events (at, kind, about, details) SELECT * FROM (VALUES"
_EVENTS_NEW = """) AS told WHERE NOT EXISTS (SELECT 1 FROM events WHERE
at = told.column1 AND kind = told.column2 AND about = told.column3 AND details = told.column4)
"""
_ADD_PRESENT = "INSERT OR REPLACE INTO present (kind, about, number, at, details) VALUES"
_ADD_LEVELS = "INSERT OR REPLACE INTO levels (begin, key, looks, slots, leased, waiting) VALUES"
_ADD_POSITION = f"INSERT INTO journal ({', '.join(COLUMNS['journal'])}) VALUES"
_END_PRESENT = "DELETE FROM present WHERE (kind, about) IN (VALUES"
#: The entry ``over`` of a lease, and its entries ``granted``, ``begun`` and ``limited``.
Over = tuple[HistoryEntry, "HistoryEntry | None", "HistoryEntry | None", "HistoryEntry | None"]


class LiveState(dict[Fact, HistoryEntry]):
    """The records that still hold, by kind and lease, ticket or server, in the order in which they were made."""

    def __init__(self, records: Iterable[HistoryEntry] = ()) -> None:
        super().__init__()
        for record in records:
            self.fold(record)

    def fold(self, record: HistoryEntry) -> dict[Fact, HistoryEntry | None]:
        """Apply a record; the facts that it changes, with None for those that it ends."""
        field = _BEGINS.get(record.kind)
        if field is not None:
            fact = (record.kind, str(record.details[field]))
            if field == "lease" and record.kind != "granted" and ("granted", fact[1]) not in self:
                return {}  # about a lease that is over
            self.pop(fact, None)  # so that the new record is the last
            self[fact] = record
            return {fact: record}
        if record.kind not in _ENDS:
            return {}
        field, kinds = _ENDS[record.kind]
        about = str(record.details[field])
        return {(kind, about): None for kind in kinds if self.pop((kind, about), None) is not None}


def bytes_of(record: HistoryEntry) -> int:
    """About how much memory a record takes; its texts may be of any length."""
    size = RECORD
    for value in record.details.values():
        if type(value) is str:
            size += getsizeof(value)
        elif type(value) is dict:
            size += len(repr(value))
    return size


@dataclass
class Batch:
    """Rows that wait for the disk."""

    overs: list[Over] = field(default_factory=list)
    events: list[HistoryEntry] = field(default_factory=list)
    changes: dict[Fact, tuple[int, HistoryEntry] | None] = field(default_factory=dict)
    levels: dict[tuple[int, str], Sequence[float]] = field(default_factory=dict)
    missed: int = 0  # records that were dropped, as the batch was full
    bytes: int = 0  # about what the records take
    whole: bool = False  # whether ``changes`` replace the file's whole table ``present``
    position: Position | None = None  # in the journal of a replica, after these rows; of those, it may have some
    sorted_from: float | None = None  # leases that ended then or later are to be in order; None: they are

    def __bool__(self) -> bool:
        return bool(self.overs or self.events or self.changes or self.levels or self.whole or self.position)

    def _room(self, size: int) -> bool:
        if len(self.overs) + len(self.events) >= MAX_HISTORY or self.bytes + size > MAX_BYTES:
            self.missed += 1
            return False
        self.bytes += size
        return True

    def add_over(self, over: Over) -> None:
        """Add a lease that is over."""
        more = sum(record is not None for record in over[1:])  # they share the texts
        if self._room(bytes_of(over[0]) + more * RECORD):
            self.overs.append(over)

    def add_event(self, record: HistoryEntry) -> None:
        """Add an event."""
        if self._room(bytes_of(record)):
            self.events.append(record)

    def add_level(self, begin: int, key: str, figures: Sequence[float]) -> None:
        """Add averages; the oldest beyond `MAX_LEVELS` are dropped."""
        self.levels[begin, key] = figures
        if len(self.levels) > MAX_LEVELS:
            del self.levels[next(iter(self.levels))]

    def extend(self, later: Batch) -> None:
        """Add the rows of a later batch."""
        self.missed += later.missed
        for over in later.overs:
            self.add_over(over)
        for record in later.events:
            self.add_event(record)
        if later.whole:
            self.changes.clear()
        self.changes.update(later.changes)
        for (begin, key), figures in later.levels.items():
            self.add_level(begin, key, figures)
        self.whole = self.whole or later.whole
        self.position = later.position or self.position
        self.sorted_from = self.sorted_from if later.sorted_from is None else later.sorted_from

    def write(self, connection: sqlite3.Connection) -> None:
        """Write all rows in one transaction. Raises `sqlite3.Error`: nothing is written."""
        with transaction(connection) as file:
            self._write_history(file)
            if self.whole:
                file.execute("DELETE FROM present")
            _run(file, _END_PRESENT, [fact for fact, change in self.changes.items() if change is None], ")")
            changed = [(fact, *change) for fact, change in self.changes.items() if change is not None]
            present = [(*fact, number, record.at, json.dumps(record.details)) for fact, number, record in changed]
            _run(file, _ADD_PRESENT, present)
            _run(file, _ADD_LEVELS, [(*period, *figures) for period, figures in self.levels.items()])
            if self.position is not None:
                file.execute("DELETE FROM journal")
                _run(file, _ADD_POSITION, [self.position])

    def _write_history(self, file: sqlite3.Connection) -> None:
        last = _last_lease(file)
        leases = [_lease_row(*over) for over in self.overs]
        events = [(record.at, record.kind, _about(record), json.dumps(record.details)) for record in self.events]
        if self.position is None:
            _run(file, _ADD_LEASES, leases)
            _run(file, _ADD_EVENTS, events)
        else:
            told = {(row[_ENDED], row[_EPOCH]): row for row in leases}
            _run(file, _ADD_NEW_LEASES, [*told.values()], _LEASES_NEW)
            _run(file, _ADD_NEW_EVENTS, [*dict.fromkeys(events)], _EVENTS_NEW)
        if self.overs:
            file.execute(_ADD_USAGE, (last,))
        if self.sorted_from is not None:
            unsorted = self.sorted_from, _last_lease(file)
            file.execute(_SORT_LEASES, unsorted)
            file.execute("DELETE FROM leases WHERE ended >= ? AND id <= ?", unsorted)


def _last_lease(file: sqlite3.Connection) -> int:
    (last,) = file.execute("SELECT max(id) FROM leases").fetchone()
    return int(last or 0)


@contextlib.contextmanager
def transaction(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction, which is rolled back if the block fails."""
    file.execute("BEGIN IMMEDIATE")
    try:
        yield file
        file.execute("COMMIT")
    finally:
        if file.in_transaction:
            file.execute("ROLLBACK")


def _run(file: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]], end: str = "") -> None:
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        places = ", ".join(["(" + ", ".join("?" * len(some[0])) + ")"] * len(some))
        file.execute(f"{statement} {places}{end}", [value for row in some for value in row])


def _lease_row(
    over: HistoryEntry, granted: HistoryEntry | None, begun: HistoryEntry | None, limited: HistoryEntry | None
) -> list[Any]:
    facts, grant = over.details, _NOTHING if granted is None else granted.details
    row = {
        **facts,
        "user": facts["user"] or facts["address"],
        "how": grant.get("how", ""),
        "begun": None if begun is None else begun.at,
        "ended": over.at,
        "limit_s": grant.get("limit_s") if limited is None else limited.details["limit_s"],
        "waited_s": grant.get("waited_s", 0.0),
        "priority": grant.get("priority", 0.0),
        "cleaned": json.dumps(facts["cleaned"] or {}),
    }
    return [row[name] for name in LEASES]


def over_of(lease: Mapping[str, Any]) -> Over:
    """The entries of a past lease that another tracker tells of, as `tables.lease` returns it."""
    begun = None if lease["begun"] is None else HistoryEntry(lease["begun"], "begun", {})
    return (
        HistoryEntry(lease["ended"], "over", {**lease}),
        HistoryEntry(lease["since"], "granted", {**lease}),
        begun,
        None,
    )


def _about(record: HistoryEntry) -> str:
    return str(record.details.get("server") or record.details.get("ticket") or "")
