"""Everybody who wants to know what happens in a tracker: its log, its metrics, its history.

Nothing here decides anything, and nothing here keeps the loop waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rpcsys.daemon.log_handler import BatchLogHandler
from rpcsys.tracker.config import Config
from rpcsys.tracker.events import Record
from rpcsys.tracker.history import History
from rpcsys.tracker.log_text import words
from rpcsys.tracker.records import Records
from rpcsys.tracker.store import Store
from rpcsys.tracker.views.metrics import FrameCounts, Metrics
from rpcsys.tracker.views.utilisation import LOOK_S, STEP_S, STEPS, Utilisation
from rpcsys.wire import control
from rpcsys.wire.control import Answer

LAG_S = 0.5
"""How often the loop's lag is measured."""

PASS_ON_S = 0.01
"""How long records gather before they are passed on: one by one, a lease's would cost more than the lease."""

_LOOKS_NOTED = 12
"""So many looks at the levels are noted at a time: once a minute."""

ABSENT_S = 60.0
"""Servers that have not come back so long after a restart are gone."""

_WARNINGS = frozenset(("set_aside", "unhealthy", "not_named"))


class Observer:
    """Hears what happens, and looks at the records now and then. To be made inside an event loop.

    ``store`` and ``history`` are None for a tracker without a state directory.

    Raises
    ------
    ConfigError: the state directory cannot be used.
    """

    def __init__(self, config: Config, records: Records, now: Callable[[], float], counts: FrameCounts) -> None:
        self._records = records
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._started_at = records.started_at
        self.store: Store | None = None
        self.history: History | None = None
        self.utilisation = Utilisation()
        if config.state_dir is not None:
            self.store = Store(config.state_dir, history_days=config.history_days, clock=now)
            self.history = History(self.store.path, self.store.suspect)
            self.utilisation.add(self.store.levels(self._started_at - STEPS * STEP_S, self._started_at))
        store = self.store
        writable = None if store is None else lambda: not store.failing
        self.metrics = Metrics(records, now, counts, self.pass_on, writable)
        self._log_handler = BatchLogHandler(words)
        self._fresh: list[Record] = []
        self._looks = 0
        self._timers: list[asyncio.Handle] = [
            self._loop.call_later(LAG_S, self._measure_lag, self._loop.time() + LAG_S),
            self._loop.call_soon(self._look),
            self._loop.call_later(ABSENT_S, self._forget_absent),
        ]

    def restored(self) -> tuple[Record, ...]:
        """What the last run left."""
        return () if self.store is None else self.store.begin(self._started_at)

    def note(self, record: Record) -> None:
        """Something happened."""
        if not self._fresh:
            self._loop.call_later(PASS_ON_S, self.pass_on)
        self._fresh.append(record)

    def pass_on(self) -> None:
        """Give what happened to everybody who wants to know."""
        records, self._fresh = self._fresh, []
        self._log_handler.note_all([(record.at, _level(record), record.kind, record.details) for record in records])
        self.metrics.note(*records)
        if self.store is not None:
            self.store.note(*records)

    async def answer(self, question: control.History | control.Usage) -> Answer:
        """The answer to a question about the past."""
        if self.history is None:
            reason = "this tracker keeps no history: start it with --state-dir DIR"
            return Answer(question.id, False, "NoHistory", reason)
        return await self.history.answer(question)

    def close(self) -> None:
        """Write what is still to be written."""
        for timer in self._timers:
            timer.cancel()
        self.pass_on()
        if self.history is not None:
            self.history.close()
        if self.store is not None:
            self.store.note_levels(self.utilisation.rows(self._now()))
            self.store.close()
        self._log_handler.close()

    def _measure_lag(self, due: float) -> None:
        now = self._loop.time()
        self.metrics.lag.observe(max(0.0, now - due))
        self._timers[0] = self._loop.call_later(LAG_S, self._measure_lag, now + LAG_S)

    def _look(self) -> None:
        now = self._now()
        self.utilisation.look(self._records, now)
        self._looks += 1
        if self.store is not None and self._looks % _LOOKS_NOTED == 0:
            self.store.note_levels(self.utilisation.rows(now))
        self._timers[1] = self._loop.call_later(LOOK_S, self._look)

    def _forget_absent(self) -> None:
        if self.store is not None:
            self.store.forget_absent(self._started_at, self._now())


def _level(record: Record) -> int:
    bad = record.kind in _WARNINGS or record.details.get("fault")
    return logging.WARNING if bad else logging.INFO
