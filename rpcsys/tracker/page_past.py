"""Reads the history for the page: of a board, of a key, of a lease. In the history's own thread, in bounded time."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any

from rpcsys.tracker import tables
from rpcsys.tracker.history import HistoryReader, first_since
from rpcsys.tracker.records import EPOCHS_AHEAD
from rpcsys.tracker.views.past import Past
from rpcsys.wire import control
from rpcsys.wire.control import Answer

LEASES, EVENTS, USERS = 100, 100, 20  # read at most
USAGE_S = 7 * 86400.0
#: Past leases among which one is looked for, from a day before it began on: up to 0.1 s. There is no index of names.
LOOKED_AT = 100_000
NO_HISTORY = "this tracker keeps no history: start it with --state-dir DIR"


class PagePast:
    """The history of a tracker, or of one that keeps none."""

    def __init__(self, history: HistoryReader | None) -> None:
        self._history = history

    async def of_board(self, name: str) -> Past:
        """The last leases and events of a board."""
        if self._history is None:
            return Past(problem=NO_HISTORY)
        leases = await self._history.answer(control.History(0, server=name, limit=LEASES))
        events = await self._history.read(0, partial(_events, name=name))
        return Past(leases.fields.get("leases", ()), events.fields.get("events", ()), problem=_problem(leases, events))

    async def of_key(self, key: str, at: float) -> Past:
        """The usage of a key in the week before ``at``."""
        if self._history is None:
            return Past(problem=NO_HISTORY)
        answer = await self._history.answer(control.Usage(0, key=key, since=max(0.0, at - USAGE_S)))
        return Past(usage=answer.fields.get("usage", ())[:USERS], problem=_problem(answer))

    async def of_lease(self, name: str) -> Past:
        """A lease that is over."""
        if self._history is None:
            return Past(problem=NO_HISTORY)
        _, _, epoch = name.rpartition("-")
        if not (epoch.isascii() and epoch.isdigit() and len(epoch) < 16):
            return Past()  # no tracker has named a lease so
        since = (int(epoch) - EPOCHS_AHEAD) / 1000
        answer = await self._history.read(0, partial(_lease, name=name, since=since))
        return Past(answer.fields.get("leases", ()), problem=_problem(answer))


def _problem(*answers: Answer) -> str:
    return next((answer.message for answer in answers if not answer.ok), "")


def _events(file: sqlite3.Connection, name: str) -> dict[str, Any]:
    found = file.execute(
        "SELECT at, kind, details FROM events WHERE about = ? AND kind != 'waited' ORDER BY id DESC LIMIT ?",
        (name, EVENTS),
    )
    return {"events": [entry for row in found if (entry := tables.event(row)) is not None]}


def _lease(file: sqlite3.Connection, name: str, since: float) -> dict[str, Any]:
    first = first_since(file, since)
    found = file.execute(
        "SELECT * FROM leases WHERE id >= ? AND id < ? AND lease = ? LIMIT 1", (first, first + LOOKED_AT, name)
    )
    return {"leases": [kept for row in found if (kept := tables.lease(row)) is not None]}
