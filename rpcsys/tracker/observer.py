"""The tracker's log, metrics, history and webhooks. Nothing here decides anything, and nothing blocks the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from rpcsys import logs
from rpcsys.daemon.log_handler import BatchLogHandler
from rpcsys.logs import pairs
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.history import HistoryReader
from rpcsys.tracker.leading import Leading
from rpcsys.tracker.records import Records
from rpcsys.tracker.store import HistoryStore
from rpcsys.tracker.tables import Position
from rpcsys.tracker.views.metrics import FrameCounts, Metrics
from rpcsys.tracker.views.utilisation import SAMPLE_S, STEP_S, STEPS, Utilisation
from rpcsys.wire import control
from rpcsys.wire.control import Answer

if TYPE_CHECKING:
    from rpcsys.tracker.webhooks import Webhooks

LAG_S = 0.5  # how often the loop's lag is measured
PASS_ON_S = 0.01  # how long entries gather: one by one, they would cost more than the lease
_SAMPLES_NOTED = 12  # the history gets the utilisation after so many samples: once a minute
ABSENT_S = 60.0  # servers of the last run that have not come back after this time are gone
_WARNINGS = frozenset(("set_aside", "unhealthy", "not_named", "slow"))
_UNLOGGED = frozenset(("canary", "unheard", "heard"))  # kinds of entries that are for the next run alone
QUIET = frozenset(("epoch", "arrival", "since"))  # fields that are of no use to people

_GRANTED = ("key", "server", "user", "address", "limit_s", "priority", "how")
_OVER = ("key", "server", "user", "address", "outcome", "reason", "fault")
#: Entries about leases: the field with their seconds, and the fields whose values repeat from lease to lease.
_OF_LEASE = {"granted": ("waited_s", _GRANTED, itemgetter(*_GRANTED)), "over": ("held_s", _OVER, itemgetter(*_OVER))}


def log_words(kind: str, fields: Mapping[str, Any]) -> str:
    """The text of an entry's log line, see `rpcsys.logs`. Fast for the two lines of each lease."""
    if kind not in _OF_LEASE:
        return pairs(fields, QUIET)
    seconds, names, take = _OF_LEASE[kind]
    lease, repeated = fields["lease"], _pairs_of(names, take(fields))
    plain = lease.replace("-", "").isalnum()  # as ours are; a server may report a lease with any other name
    name = f"lease={lease}" if plain else pairs({"lease": lease})
    text = f"{name} {repeated} {seconds}={logs.number(fields[seconds])}"
    cleaned = fields.get("cleaned")
    return f"{text} {pairs({'cleaned': cleaned})}" if cleaned else text


@lru_cache(4096)
def _pairs_of(names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return pairs(dict(zip(names, values, strict=True)))


class Observer:
    """Passes history entries on and samples the records. Made inside an event loop.

    ``leading``: of a leader of replicas, which has the history, and writes it once their journal has it. Raises
    `ConfigError`: the state directory cannot be used.
    """

    def __init__(
        self, config: TrackerConfig, records: Records, now: Callable[[], float], counts: FrameCounts,
        leading: Leading | None = None, webhooks: Webhooks | None = None,
    ) -> None:  # fmt: skip
        self._records = records
        self._webhooks = webhooks
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._started_at = records.started_at
        self.store: HistoryStore | None = None  # None without a state directory
        self.history: HistoryReader | None = None
        self.utilisation = Utilisation()
        self._leading = leading
        if leading is not None:
            self.store = leading.store
        elif config.state_dir is not None:
            self.store = HistoryStore(config.state_dir, history_days=config.history_days, clock=now)
            if self.store.position.through:
                self.store.note(position=Position())  # a replica's, whose journal lacks what follows
        if self.store is not None:
            self.history = HistoryReader(self.store.path, self.store.suspect)
            self.utilisation.add(self.store.levels(self._started_at - STEPS * STEP_S, self._started_at))
        store = self.store
        writable = None if store is None else lambda: not store.failing
        self.metrics = Metrics(records, now, counts, self.pass_on, writable)
        self._log_handler = BatchLogHandler(log_words)
        self._fresh: list[HistoryEntry] = []
        self._samples = 0
        self._timers: list[asyncio.Handle] = [
            self._loop.call_later(LAG_S, self._measure_lag, self._loop.time() + LAG_S),
            self._loop.call_soon(self._sample),
            self._loop.call_later(ABSENT_S, self._forget_absent),
        ]

    def restored(self) -> tuple[HistoryEntry, ...]:
        """The entries that the last run left."""
        return () if self.store is None else self.store.begin(self._started_at, self._record)

    def _record(self, *entries: HistoryEntry) -> None:
        """Give entries that the state has not made to the history, without log and metrics."""
        if self._leading is not None:
            self._leading.note(*entries)
        elif self.store is not None:
            self.store.note(*entries)

    def note(self, entry: HistoryEntry) -> None:
        """Take an entry, which `pass_on` handles soon."""
        if not self._fresh:
            self._loop.call_later(PASS_ON_S, self.pass_on)
        self._fresh.append(entry)

    def pass_on(self) -> None:
        """Give the gathered entries to the log, the metrics, the webhooks and the history."""
        entries, self._fresh = self._fresh, []
        self._log_handler.note_all(
            [(entry.at, _level(entry), entry.kind, entry.details) for entry in entries if entry.kind not in _UNLOGGED]
        )
        self.metrics.note(*entries)
        if self._webhooks is not None:
            self._webhooks.note(entries, self._records)
        if self.store is not None and self._leading is None:
            self.store.note(*entries)

    async def answer(self, question: control.History | control.Usage) -> Answer:
        """Answer a question about the history."""
        if self.history is None:
            reason = "this tracker keeps no history: start it with --state-dir DIR"
            return Answer(question.id, False, "NoHistory", reason)
        return await self.history.answer(question)

    def close(self) -> None:
        """Pass on what has gathered, and close the history and the log."""
        for timer in self._timers:
            timer.cancel()
        self.pass_on()
        if self.history is not None:
            self.history.close()
        if self.store is not None:
            self.store.note_levels(self.utilisation.rows(self._now()))
            if self._leading is None:
                self.store.close()
        self._log_handler.close()

    def _measure_lag(self, due: float) -> None:
        now = self._loop.time()
        self.metrics.lag.observe(max(0.0, now - due))
        self._timers[0] = self._loop.call_later(LAG_S, self._measure_lag, now + LAG_S)

    def _sample(self) -> None:
        now = self._now()
        self.utilisation.sample(self._records, now)
        self._samples += 1
        if self.store is not None and self._samples % _SAMPLES_NOTED == 0:
            self.store.note_levels(self.utilisation.rows(now))
        self._timers[1] = self._loop.call_later(SAMPLE_S, self._sample)

    def _forget_absent(self) -> None:
        if self.store is not None:
            self._record(*self.store.absent(self._started_at, self._now()))


def _level(entry: HistoryEntry) -> int:
    bad = entry.kind in _WARNINGS or entry.details.get("fault")
    return logging.WARNING if bad else logging.INFO
