"""Answers questions about the history: past leases, and usage by user and key.

A thread reads, in bounded time, and opens a connection for each question, as the file may have been replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rpcsys.tracker import tables
from rpcsys.wire import control
from rpcsys.wire.control import Answer

MAX_BYTES = 768 << 10  # JSON of the leases in one answer: a frame holds 1 MiB.
MAX_USAGE = 4000  # rows of usage in one answer, the largest ones
MAX_WAITING = 64  # questions that wait for the thread; further ones are refused with "try again"
MAX_S = 5.0  # the longest time for one question
_HOUR = 3600
#: Reads the file: the fields of an answer.
Ask = Callable[[sqlite3.Connection], dict[str, Any]]
_STEPS = 20_000  # SQLite's instructions between two checks of the clock: a few milliseconds


class HistoryReader:
    """Reads the file of a `HistoryStore`. ``on_error`` is called with each error, in the reading thread."""

    def __init__(self, path: Path, on_error: Callable[[sqlite3.Error], object] = lambda error: None) -> None:
        self._path = path
        self._on_error = on_error
        self._thread = ThreadPoolExecutor(1, "history-reader")
        self._waiting = 0

    async def answer(self, question: control.History | control.Usage) -> Answer:
        """Answer a client's question. Called on the event loop."""
        if isinstance(question, control.History):
            return await self.read(question.id, partial(self._leases, question=question))
        return await self.read(question.id, partial(self._usage, question=question))

    async def read(self, number: int, ask: Ask) -> Answer:
        """Answer the question ``number`` with the fields that ``ask`` finds in the file. Called on the event loop."""
        if self._waiting >= MAX_WAITING:
            return Answer(number, False, "Busy", "too many other questions about the history wait: try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._asked, number, ask)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop the thread; questions that wait are cancelled."""
        self._thread.shutdown(cancel_futures=True)

    def _asked(self, number: int, ask: Ask) -> Answer:
        end = time.monotonic() + MAX_S
        try:
            with contextlib.closing(tables.open_for_reading(self._path)) as file:
                file.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
                return Answer(number, True, fields=ask(file))
        except sqlite3.Error as error:
            if time.monotonic() > end:
                return Answer(number, False, "TooLong", f"not found within {MAX_S:g} s: ask for less, with `since`")
            self._on_error(error)
            return Answer(number, False, "HistoryUnreadable", f"the tracker cannot read its history: {error}")

    def _leases(self, file: sqlite3.Connection, question: control.History) -> dict[str, Any]:
        where, values = _where(
            {
                "key = ?": question.key,
                "user = ?": question.user,
                "server = ?": question.server,
                "id < ?": question.before,
                "ended < ?": question.until,
                "ended >= ?": question.since,
                "id >= ?": None if question.since is None else first_since(file, question.since),
            }
        )
        found = file.execute(f"SELECT * FROM leases {where} ORDER BY id DESC LIMIT ?", (*values, question.limit + 1))
        rows, more = _fitting(found, question.limit)
        kept = [lease for row in rows if (lease := tables.lease(row)) is not None]
        return {"leases": kept, "before": rows[-1]["id"] if more and rows else None}

    def _usage(self, file: sqlite3.Connection, question: control.Usage) -> dict[str, Any]:
        since = (question.since or 0) // _HOUR * _HOUR
        where, values = _where({"key = ?": question.key, "user = ?": question.user, "hour >= ?": since})
        found = file.execute(
            "SELECT user, key, total(leases) AS leases, total(held_s) AS held_s, total(waited_s) AS waited_s,"
            f" total(faults) AS faults, min(hour) AS since FROM usage {where}"
            " GROUP BY user, key ORDER BY held_s DESC LIMIT ?",
            (*values, MAX_USAGE + 1),
        )
        rows, more = _fitting(found, MAX_USAGE)
        usage = [row for row in rows if all(map(tables.is_plain, row.values()))]
        for row in usage:  # `total` gives floats, which cannot overflow
            row["leases"], row["faults"] = int(row["leases"]), int(row["faults"])
        first = min([row.pop("since") for row in usage], default=None)
        return {"usage": usage, "since": first, "more": more}


def _where(conditions: Mapping[str, Any]) -> tuple[str, list[Any]]:
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return "WHERE " + " AND ".join(given) if given else "", list(given.values())


def _fitting(found: Iterable[sqlite3.Row], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The first rows, up to ``limit`` and a frame's size, and whether there are more."""
    rows: list[dict[str, Any]] = []
    size = 0
    for row in found:
        plain = dict(row)
        size += len(json.dumps(plain, default=repr))  # a damaged file may hold bytes
        if len(rows) == limit or (rows and size > MAX_BYTES):
            return rows, True
        rows.append(plain)
    return rows, False


def first_since(file: sqlite3.Connection, since: float) -> int:
    """The lowest id of a lease that ended at ``since`` or later, from the index: clocks that jump mix the order."""
    (first,) = file.execute("SELECT min(+id) FROM leases INDEXED BY leases_ended WHERE ended >= ?", (since,)).fetchone()
    return 1 << 62 if first is None else int(first)
