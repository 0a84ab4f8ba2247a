"""The tracker's history and live state: an SQLite file in the state directory, which a thread writes in batches.

A batch is one transaction, so the table ``present``, which restores a tracker, always agrees with the history.
A tracker starts with any file: without history if the disk is full, with a new file if it is damaged (`salvage`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from rpcsys.daemon.batch_writer import BatchWriter
from rpcsys.errors import ConfigError
from rpcsys.tracker import salvage, tables
from rpcsys.tracker.batch import Batch, Fact, LiveState, over_of
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.pruning import HistoryPruner
from rpcsys.tracker.tables import Position
from rpcsys.tracker.transitions import OURS
from rpcsys.tracker.views.utilisation import Row

log = logging.getLogger(__name__)
FILE = "tracker.sqlite"
GATHER_S = 0.5  # how long records gather before they are written: a kill loses less than a second
RETRY_S = 2.0  # seconds between attempts to write
#: The shortest time between two replacements of a damaged file: the disk or the machine may be faulty.
REPLACE_EVERY_S = 3600.0
_CLOSE_S = 5.0
_EVENTS = frozenset(
    (
        *("joined", "gone", "set_aside", "trusted", "unhealthy", "healthy", "slow", "well"),
        *("drained", "enabled", "waited", "forgotten"),
    )
)
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
_PROBE = 4096


class HistoryStore:
    """The file, in a directory of this tracker alone. Raises `ConfigError`: it cannot be used; the reason is given."""

    def __init__(self, directory: str | Path, *, history_days: float, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(directory) / FILE
        self._history_s = history_days * 86400
        self._pruner = HistoryPruner(self._history_s, clock)
        self._lock_file: IO[str] | None = None
        self._file: sqlite3.Connection | None = None
        self._pending = Batch()
        self._writing = Batch()
        self._written: set[Fact] = set()  # facts in the file, which are deleted there when they end
        self._lock = threading.Lock()
        self._failing_since: float | None = None
        self._retry_at = 0.0
        self._replace_at = 0.0
        self._suspected: sqlite3.Error | None = None
        self._closing = False
        self._number = 0
        self.live_state = LiveState()
        self.position = Position()  # of a replica
        try:
            self._open()
            self._restore()
        except (sqlite3.Error, OSError) as error:
            self._begin_without(error)
        except ConfigError:
            self._let_go()
            raise
        self._writer = BatchWriter("history", self._write_pending, GATHER_S)

    def _open(self) -> None:
        if self._lock_file is None:
            self._lock_file = _lock(self.path.parent)
        file = salvage.open_whole(self.path)
        try:
            self._pruner.opened(file)
        except sqlite3.Error:
            file.close()
            raise
        self._file = file

    def _restore(self) -> None:
        assert self._file is not None
        self.position = tables.position(self._file)
        found = list(tables.all_present(self._file))
        self.live_state = LiveState(record for record in found if record is not None)
        skipped = len(found) - len(list(filter(None, found)))
        if skipped:
            log.warning("%d rows of %s are invalid and are left out", skipped, self.path)
            self._pending = self._all_present()
        self._written = set(self.live_state)
        self._number += len(found)

    def _begin_without(self, error: Exception) -> None:
        """Start without a history while the file cannot be written, with its live state if that can be read."""
        is_damage = isinstance(error, sqlite3.Error) and salvage.is_damage(error)
        if not is_damage and not _is_without_room(self.path.parent, error):
            self._let_go()
            remedy = "make room or give it back to this user, or move the file away to begin with an empty history"
            raise ConfigError(f"{self.path} cannot be used ({error}): {remedy}") from None
        self.live_state = LiveState(salvage.present_alone(self.path))
        self._failed(error, Batch())

    def _let_go(self) -> None:
        for each in (self._file, self._lock_file):
            if each is not None:
                each.close()
        self._file = self._lock_file = None

    # On the event loop.

    def restored(self, now: float, ended: Iterable[HistoryEntry] = ()) -> tuple[HistoryEntry, ...]:
        """The last run's entries for a tracker that starts now, in the order in which they were made.

        ``ended``: of `ended`, whether they are noted already or not.
        """
        overs = self._read(tables.overs, now)
        live = LiveState([*self.live_state.values(), *ended])
        return tuple(sorted([*overs, *live.values()], key=lambda record: record.at))

    def _read(self, query: Callable[..., list[Any]], *arguments: float) -> list[Any]:
        try:
            return [] if self._file is None else query(self._file, *arguments)
        except sqlite3.Error as error:
            self.suspect(error)
            return []

    @property
    def failing(self) -> bool:
        """Whether the file cannot be written at the moment."""
        return self._failing_since is not None

    def begin(self, now: float, note: Callable[..., object] | None = None) -> tuple[HistoryEntry, ...]:
        """The entries of `restored`, after ``note``, by default the store's own, has got those of `ended`.

        Before them, the grants of leases that end so: their clients may not have heard of them.
        """
        ended = self.ended(now)
        granted = [self.live_state["granted", end.details["lease"]] for end in ended if end.kind == "over"]
        (note or self.note)(*ended)
        return (*granted, *self.restored(now, ended))

    def ended(self, now: float) -> list[HistoryEntry]:
        """What ends with a restart: TVM servers' leases, and old conditions of servers that are not there."""
        forgotten = self._pruner.before
        ends: list[HistoryEntry] = []
        left: dict[str, None] = {}
        for record in self.live_state.values():
            if record.kind == "granted" and record.details["how"] != OURS:
                ends.append(_unknown_end(record, now))
            elif record.kind in ("drained", "set_aside", "canary") and forgotten is not None and record.at < forgotten:
                left[record.details["server"]] = None
        there = (name for name in left if ("joined", name) not in self.live_state)
        return [*ends, *(HistoryEntry(now, "forgotten", {"server": name}) for name in there)]

    def absent(self, before: float, now: float) -> list[HistoryEntry]:
        """The ends of the ``joined`` entries of servers that have not registered since ``before``."""
        reason = "it has not come back after a restart of the tracker"
        return [
            HistoryEntry(now, "gone", {"server": record.details["server"], "reason": reason})
            for record in self.live_state.values()
            if record.kind == "joined" and record.at < before
        ]

    def levels(self, since: float, now: float) -> list[Row]:
        """The averages from ``since`` on that `note_levels` has written."""
        return self._read(tables.levels, since, now)

    def note(self, *records: HistoryEntry, position: Position | None = None) -> None:
        """Queue records, which are written within a second; with the ``position`` in the journal that they reach."""
        with self._lock:
            for record in records:
                self._fold(record)
            if position is not None:
                self.position = self._pending.position = position
        self._writer.wake()

    def replace(self, records: Iterable[HistoryEntry], position: Position) -> None:
        """Replace all records that hold, by those of a journal's snapshot. The history stays."""
        with self._lock:
            self.live_state = LiveState(records)
            self.position = position
            self._pending.extend(self._all_present())
        self._writer.wake()

    @property
    def queued(self) -> int:
        """How many rows of the history wait for the disk."""
        return sum(len(batch.overs) + len(batch.events) for batch in (self._pending, self._writing))

    def add_past(self, leases: Iterable[Mapping[str, Any]]) -> None:
        """Queue past leases that another replica tells of, as `tables.lease` returns them; it may have some of them."""
        with self._lock:
            for lease in leases:
                self._pending.add_over(over_of(lease))
            self._pending.position = self.position
        self._writer.wake()

    def past_is_whole(self) -> None:
        """Note that the history lacks nothing any more."""
        with self._lock:
            self._pending.sorted_from = self.position.lacks
            self.position = self._pending.position = self.position._replace(lacks=None)
        self._writer.wake()

    def _fold(self, record: HistoryEntry) -> None:
        kind, pending = record.kind, self._pending
        if kind == "over":
            get, lease = self.live_state.get, record.details["lease"]
            pending.add_over((record, get(("granted", lease)), get(("begun", lease)), get(("limited", lease))))
        elif kind in _EVENTS and record.details.get("why") != "granted":
            pending.add_event(record)
        for fact, holds in self.live_state.fold(record).items():
            if holds is not None:
                self._number += 1
                pending.changes[fact] = (self._number, holds)
            elif fact in self._written or fact in self._writing.changes:
                pending.changes[fact] = None
            else:
                pending.changes.pop(fact, None)  # it ended before it was written

    def note_levels(self, levels: Iterable[Row]) -> None:
        """Queue averages, which replace earlier ones of the same time and key."""
        with self._lock:
            for begin, key, *figures in levels:
                self._pending.add_level(begin, key, figures)
        self._writer.wake()

    def suspect(self, error: sqlite3.Error) -> None:
        """Replace the file if this error of a reader means that it is damaged. Any thread may call this."""
        if salvage.is_damage(error):
            self._suspected = error
            self._writer.wake()

    def close(self) -> None:
        """Write what is pending, for at most 5 s, and release the directory."""
        self._closing = True
        if self._writer.close(_CLOSE_S):
            self._let_go()
        elif self._lock_file is not None:
            self._lock_file.close()

    # In the thread.

    def _write_pending(self) -> float | None:
        if self._failing_since is not None and time.monotonic() < self._retry_at and not self._closing:
            return self._retry_at - time.monotonic()
        suspected, self._suspected = self._suspected, None
        if suspected is not None:
            self._replace(suspected)
        if self._file is None:
            try:
                self._open()
            except (sqlite3.Error, OSError, ConfigError) as error:
                self._failed(error, Batch())
                return RETRY_S
            with self._lock:
                self._pending.extend(self._all_present())
        with self._lock:
            batch, self._pending = self._pending, Batch()
            self._writing = batch
        assert self._file is not None
        try:
            if batch:
                batch.write(self._file)
            self._wrote(batch)
            return self._pruner.prune(self._file)
        except sqlite3.Error as error:
            self._failed(error, batch if self._writing is batch else Batch())
            self._replace(error)
            return RETRY_S

    def _all_present(self) -> Batch:
        numbered = enumerate(self.live_state.items(), self._number + 1)
        batch = Batch(changes={fact: (number, record) for number, (fact, record) in numbered}, whole=True)
        batch.position = self.position if self.position.through else None
        self._number += len(batch.changes)
        return batch

    def _wrote(self, batch: Batch) -> None:
        with self._lock:
            self._writing = Batch()
            if batch.whole:
                self._written.clear()
            for fact, change in batch.changes.items():
                if change is None:
                    self._written.discard(fact)
                else:
                    self._written.add(fact)
        if self._failing_since is not None and batch:
            lasted, self._failing_since = time.monotonic() - self._failing_since, None
            log.warning("history goes on, after %.0f s; %d records of it are missing", lasted, batch.missed)

    def _failed(self, error: Exception, batch: Batch) -> None:
        with self._lock:
            batch.extend(self._pending)
            for fact in [fact for fact, change in batch.changes.items() if change is None]:
                if fact not in self._written:
                    del batch.changes[fact]
            self._pending, self._writing = batch, Batch()
        self._retry_at = time.monotonic() + RETRY_S
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            advice = "Make room there; devices are handed out all the same, and it is tried again every few seconds"
            log.warning("history stops: %s cannot be written (%s). %s", self.path, error, advice)

    def _replace(self, error: sqlite3.Error) -> None:
        if self._file is None or not salvage.is_damage(error) or time.monotonic() < self._replace_at:
            return
        self._replace_at = time.monotonic() + REPLACE_EVERY_S
        self._file.close()
        self._file = None
        try:
            self._file = salvage.replace(self.path, str(error))
        except (sqlite3.Error, OSError):
            return  # the next attempt opens the file anew
        with self._lock:
            self._pending.extend(self._all_present())


def _unknown_end(granted: HistoryEntry, now: float) -> HistoryEntry:
    known = {name: granted.details[name] for name in ("lease", "epoch", "key", "server", "user", "address")}
    reason = "the tracker was restarted, and one of TVM's servers does not report how its session ended"
    ended = {"outcome": "unknown", "reason": reason, "fault": "", "cleaned": {}}
    return HistoryEntry(now, "over", {**known, "since": granted.at, "held_s": 0.0, **ended})


def _lock(directory: Path) -> IO[str]:
    """Lock the directory; the kernel unlocks it when this process ends. Raises `ConfigError`, `OSError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / "lock", "a+", encoding="utf-8")  # noqa: SIM115 (it stays open)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        how = "give a folder in which this user may write"
        raise ConfigError(f"--state-dir {directory} cannot be used: {error.strerror or error}; {how}") from None
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


def _is_without_room(directory: Path, error: Exception) -> bool:
    """Whether the error passes: the disk is full or the file locked. If SQLite's text leaves it open, write a probe."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    if any(words in str(error) for words in ("disk is full", "disk I/O error", "is locked")):
        return True
    try:
        probe = directory / f"{FILE}.probe"
        with open(probe, "wb") as file:
            file.write(bytes(_PROBE))
    except OSError as problem:
        return problem.errno in _NO_ROOM
    finally:
        probe.unlink(missing_ok=True)
    return False
