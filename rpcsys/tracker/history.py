"""What is asked of a tracker's memory: leases that are over, and usage by user and key.

Reading has a connection and a thread of its own, and bounded time: neither the loop nor the writing waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rpcsys.tracker import schema
from rpcsys.wire import control
from rpcsys.wire.control import Answer

MAX_BYTES = 768 << 10
"""JSON of the leases in one answer: a frame holds 1 MiB."""

MAX_USAGE = 4000
"""Rows of usage in one answer, the largest ones."""

MAX_WAITING = 64
"""Questions that may wait for the thread; whoever comes then is told to come again."""

MAX_S = 5.0
"""How long one question may take."""

_HOUR = 3600
_STEPS = 20_000  # SQLite's own, between two looks at the clock: a few milliseconds


class History:
    """The file of a `rpcsys.tracker.store.Store`, open for reading."""

    def __init__(self, path: Path) -> None:
        self._file = schema.open_for_reading(path)
        self._file.text_factory = lambda data: data.decode(errors="replace")
        self._thread = ThreadPoolExecutor(1, "history-reader")
        self._waiting = 0

    async def answer(self, question: control.History | control.Usage) -> Answer:
        """The answer to a client's question. To be asked on the event loop."""
        if self._waiting >= MAX_WAITING:
            return _refusal(question, "Busy", "too many others ask for history just now: try again")
        self._waiting += 1
        try:
            ask = self._leases if isinstance(question, control.History) else self._usage
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._asked, ask, question)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Answer nothing more."""
        self._thread.shutdown(cancel_futures=True)
        self._file.close()

    def _asked(self, ask: Any, question: Any) -> Answer:
        end = time.monotonic() + MAX_S
        self._file.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            return Answer(question.id, True, fields=ask(question))
        except sqlite3.Error as error:
            if time.monotonic() > end:
                return _refusal(
                    question, "TooLong", f"not found within {MAX_S:g} s: ask for less, with `since`"
                )
            return _refusal(question, "HistoryUnreadable", f"the tracker cannot read its history: {error}")

    def _leases(self, question: control.History) -> dict[str, Any]:
        where = _Where()
        where.equal(key=question.key, user=question.user, server=question.server)
        where.add("id < ?", question.before)
        where.add("ended < ?", question.until)
        if question.since is not None:
            where.add("ended >= ?", question.since)
            where.add("id >= ?", self._first_since(question.since))
        found = self._file.execute(
            f"SELECT * FROM leases {where} ORDER BY id DESC LIMIT ?", (*where.values, question.limit + 1)
        )
        rows, more = _fitting(found, question.limit)
        numbers = [row.pop("id") for row in rows]
        for row in rows:
            row["cleaned"] = json.loads(row["cleaned"])
        return {"leases": rows, "before": numbers[-1] if more else None}

    def _first_since(self, since: float) -> int:
        """The first row that ended then or later: they are written in about that order, so earlier ones need no look."""
        found = self._file.execute(
            "SELECT id FROM leases WHERE ended >= ? ORDER BY ended LIMIT 1", (since,)
        ).fetchone()
        return found["id"] - _DISORDER if found is not None else 1 << 62

    def _usage(self, question: control.Usage) -> dict[str, Any]:
        where = _Where()
        where.equal(key=question.key, user=question.user)
        where.add("hour >= ?", (question.since or 0) // _HOUR * _HOUR)
        found = self._file.execute(
            "SELECT user, key, sum(leases) AS leases, sum(held_s) AS held_s, sum(waited_s) AS waited_s,"
            f" sum(faults) AS faults, min(hour) AS since FROM usage {where}"
            " GROUP BY user, key ORDER BY held_s DESC LIMIT ?",
            (*where.values, MAX_USAGE + 1),
        )
        rows, more = _fitting(found, MAX_USAGE)
        first = min([row.pop("since") for row in rows], default=None)
        return {"usage": rows, "since": first, "more": more}


class _Where:
    """Conditions of a query; one without a value is left out."""

    def __init__(self) -> None:
        self._conditions: list[str] = []
        self.values: list[Any] = []

    def __str__(self) -> str:
        return "WHERE " + " AND ".join(self._conditions) if self._conditions else ""

    def add(self, condition: str, value: Any) -> None:
        if value is not None:
            self._conditions.append(condition)
            self.values.append(value)

    def equal(self, **columns: Any) -> None:
        for column, value in columns.items():
            self.add(f"{column} = ?", value)


def _fitting(found: Iterable[sqlite3.Row], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first rows, at most ``limit`` and what a frame holds, and whether there are more."""
    rows: list[dict[str, Any]] = []
    size = 0
    for row in found:
        plain = dict(row)
        size += len(json.dumps(plain))
        if len(rows) == limit or (rows and size > MAX_BYTES):
            return rows, True
        rows.append(plain)
    return rows, False


_DISORDER = 10_000
"""Rows by which the order of writing and of ending may differ: leases that end in one turn are written together."""


def _refusal(question: control.Ask, error: str, message: str) -> Answer:
    return Answer(question.id, False, error, message)
