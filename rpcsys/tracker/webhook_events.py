"""Which entries of the history a lab is told of through webhooks, and what is said. Decisions only: no socket.

The fields are public (docs/webhooks.md): one may be added, none changes its name or its meaning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote

from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.records import MAX_GONE, Records


class WebhookKind(str, Enum):
    """What happened; the value is the event's ``type``."""

    LEASE_FAILED = "lease.failed"
    BOARD_GONE = "board.gone"
    BOARD_SET_ASIDE = "board.set_aside"
    BOARD_UNHEALTHY = "board.unhealthy"
    BOARD_SLOW = "board.slow"
    BOARD_DRAINED = "board.drained"
    BOARD_BACK = "board.back"


_KILLED = frozenset(("timeout", "memory", "crashed"))  # outcomes of leases that ended against their user's will
_BEGINS = {
    "gone": WebhookKind.BOARD_GONE,
    "set_aside": WebhookKind.BOARD_SET_ASIDE,
    "unhealthy": WebhookKind.BOARD_UNHEALTHY,
    "slow": WebhookKind.BOARD_SLOW,
    "drained": WebhookKind.BOARD_DRAINED,
}
#: Entries that end the state of a board, and the state's own entry.
_ENDS = {"trusted": "set_aside", "healthy": "unhealthy", "well": "slow", "enabled": "drained", "joined": "gone"}


_Found = tuple[WebhookKind, str, Mapping[str, Any]]  # with what it is about, and the fields of its ``data``


class WebhookEvent(NamedTuple):
    """An event as it is sent. ``id``: the same for the same entry of the history, whichever tracker sends it."""

    id: str
    body: bytes


class WebhookEvents:
    """Makes the events of one tracker's entries. ``page``: the address of its page, ``""`` for none."""

    def __init__(self, wanted: tuple[str, ...] = (), page: str = "") -> None:
        """``wanted``: the kinds that are made; empty: all."""
        self._wanted = frozenset(wanted) or frozenset(WebhookKind)
        self._page = page.rstrip("/")
        self._records: Records | None = None
        self._gone: dict[str, None] = {}  # boards whose connections have ended, and that are not back

    def of(self, entry: HistoryEntry, records: Records) -> WebhookEvent | None:
        """The event of an entry that ``records`` have taken in; None for one that nobody is told of."""
        if records is not self._records:  # of another term: other leaders may have told that a board is back
            self._records, self._gone = records, {}
        found = self._lease(entry, records) if entry.kind == "over" else self._board(entry, records)
        if found is None or found[0] not in self._wanted:
            return None
        kind, about, fields = found
        body = {"type": kind.value, "timestamp": _iso(entry.at), "data": fields}
        return WebhookEvent(_id(kind, about, entry.at), json.dumps(body).encode())

    def _lease(self, entry: HistoryEntry, records: Records) -> _Found | None:
        details = entry.details
        outcome, board = details["outcome"], details["server"]
        lost = outcome == "lost" and board not in records.server_names  # else the board says that its client is gone
        if not (details["fault"] or outcome in _KILLED or lost):
            return None
        fields = {
            "board": board,
            "key": details["key"],
            "user": details["user"] or details["address"],
            "lease": details["lease"],
            "outcome": outcome,
            "reason": details["fault"] or details["reason"],
            "held_s": details["held_s"],
            "link": self._link("lease", details["lease"]),
        }
        return WebhookKind.LEASE_FAILED, details["lease"], fields

    def _board(self, entry: HistoryEntry, records: Records) -> _Found | None:
        board = entry.details.get("server", "")
        if entry.kind in _BEGINS:
            kind, ended = _BEGINS[entry.kind], ""
            if entry.kind == "gone":
                self._note_gone(board)
        elif entry.kind in _ENDS:
            kind, ended = WebhookKind.BOARD_BACK, _ENDS[entry.kind]
            if entry.kind == "joined" and board not in self._gone:
                return None  # new here, or the tracker has just started
            self._gone.pop(board, None)
        else:
            return None
        fields = {
            "board": board,
            "key": entry.details.get("key") or _key_of(board, records),
            "user": entry.details.get("by", ""),
            "lease": "",
            "reason": entry.details.get("reason", ""),
            "was": ended,
            "state": _state_of(board, records),
            "link": self._link("board", board),
        }
        return kind, board, fields

    def _note_gone(self, board: str) -> None:
        self._gone[board] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _link(self, what: str, name: str) -> str:
        return f"{self._page}/{what}/{quote(name, safe='')}" if self._page else ""


def _key_of(board: str, records: Records) -> str:
    conn = records.server_names.get(board)
    if conn is not None:
        return ",".join(records.peers[conn].serves)
    gone = records.gone.get(board)
    return "" if gone is None else gone.key


def _state_of(board: str, records: Records) -> str:
    """The state of a board that is shown to people, ``gone`` without a connection."""
    if board not in records.server_names:
        return "gone"
    condition = records.conditions.get(board)
    return "ok" if condition is None else condition.state.value


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _id(kind: WebhookKind, about: str, at: float) -> str:
    return "msg_" + hashlib.sha256(f"{kind.value} {at!r} {about}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
