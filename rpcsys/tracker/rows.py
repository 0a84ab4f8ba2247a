"""What a tracker's file holds, row by row: one that is not as this code writes it is left out, and costs no other.

A disk returns other bits than it was given, and people edit files. A text of the right length, a number of the right
size: more need not be so for a tracker to begin.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.tracker.events import Record
from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.lease_states import Reporting
from rpcsys.wire import checks
from rpcsys.wire.checks import Check

SHARES_S = 10 * 3600.0
MAX_SHARES = 100_000
"""Leases that are over are given back so far, and so many: shares of device time halve every hour."""

MAX_PRESENT = 100_000
MAX_DETAILS = 256 << 10
"""Rows of the present, and bytes of the details of one: 32 labels of 256 characters each, as JSON writes them."""

MAX_LEVELS = 72_000
"""A day of averages of as many keys as are followed."""

_REPORTING = tuple(known.value for known in Reporting)
_MAX_TEXT = 4096
_MAX_AT = 10**12
_SLACK_S = 1.0  # by which two clocks' readings and their difference may differ


def _text(value: Any, name: str) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT or not value.isprintable():
        raise checks.wrong(name, "printable text", value)
    return value


def _at(value: Any, name: str) -> float:
    found = checks.number(value, name)
    if abs(found) > _MAX_AT:
        raise checks.wrong(name, "a time", value)
    return found


def _reporting(value: Any, name: str) -> str:
    if value not in _REPORTING:
        raise checks.wrong(name, "how a lease is known", value)
    return str(value)


_count = checks.integer(0, checks.MAX_ID)
_limit = checks.optional(checks.seconds)
_labels = checks.mapping(_text)

_PRESENT: Mapping[str, Mapping[str, Check]] = {
    "granted": {
        **dict.fromkeys(("lease", "key", "server", "user", "address"), _text),
        "epoch": _count,
        "limit_s": _limit,
        "waited_s": checks.seconds,
        "priority": checks.number,
        "how": _reporting,
    },
    "begun": {"lease": _text},
    "limited": {"lease": _text, "limit_s": _limit},
    "waiting": {**dict.fromkeys(("ticket", "key", "user"), _text), "arrival": _count, "labels": _labels, "since": _at},
    "joined": {"server": _text},
    "set_aside": {"server": _text, "reason": _text, "failures": _count, "pause_s": checks.seconds, "until": _at},
    "drained": {"server": _text},
}

_LEASE: Mapping[str, Check] = {
    **dict.fromkeys(("lease", "key", "server", "user", "address", "how", "outcome", "reason", "fault"), _text),
    "epoch": _count,
    "since": _at,
    "begun": checks.optional(_at),
    "ended": _at,
    "held_s": checks.seconds,
    "limit_s": _limit,
    "waited_s": checks.seconds,
    "priority": checks.number,
}


def lease(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of ``leases``, ``cleaned`` as the object that it is; None for one that is none."""
    try:
        kept = {name: check(row[name], name) for name, check in _LEASE.items()}
        kept["cleaned"] = _object(row["cleaned"])
    except (ProtocolError, ValueError):
        return None
    return kept


def present(kind: Any, about: Any, at: Any, details: Any) -> Record | None:
    """The record in a row of ``present``; None for one that holds none."""
    try:
        plain = _object(details)
        fields = _PRESENT[kind]
        for name, check in fields.items():
            check(plain[name], name)
        _text(plain.get("identity", ""), "identity")
        if plain[next(iter(fields))] != about:  # the first says what it is about
            return None
        if kind == "waiting":
            wants_of(plain["key"], plain["labels"])
        return Record(_at(at, "at"), kind, plain)
    except (ProtocolError, ValueError, KeyError, TypeError):
        return None


def is_plain(value: Any) -> bool:
    """Whether a column holds a number or a text that is not too long."""
    if type(value) is str:
        return len(value) <= MAX_DETAILS
    return type(value) in (int, float) and abs(value) <= checks.MAX_ID


def _object(text: Any) -> dict[str, Any]:
    """A JSON object that is not too long. ValueError, which a wrong encoding is too, for any other."""
    if type(text) is not str or len(text) > MAX_DETAILS:
        raise ValueError
    try:
        found = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError from None
    if type(found) is not dict:
        raise ValueError
    return found


def _no_number(word: str) -> float:
    raise ValueError(word)


def all_present(file: sqlite3.Connection) -> Iterator[Record | None]:
    """What the table ``present`` holds, in the order in which it was made; None for each row that is left out."""
    found = file.execute(
        "SELECT kind, about, at, details FROM present WHERE length(details) <= ? ORDER BY number LIMIT ?",
        (MAX_DETAILS, MAX_PRESENT),
    )
    for row in found:
        yield present(*row)
    (skipped,) = file.execute(
        "SELECT count(*) FROM present WHERE ifnull(length(details), ?) > ?", (MAX_DETAILS + 1, MAX_DETAILS)
    ).fetchone()
    for _ in range(min(skipped, MAX_PRESENT)):
        yield None


def overs(file: sqlite3.Connection, now: float) -> list[Record]:
    """Leases that ended lately, the last to be written last, with what device time and the usual lengths come from.

    What ended after ``now`` was written by a clock that was wrong then, if this one is right: it counts for nobody.
    """
    found = file.execute(
        "SELECT ended, key, user, since, held_s, outcome FROM leases WHERE ended > ? AND ended <= ?"
        " ORDER BY id DESC LIMIT ?",
        (now - SHARES_S, now, MAX_SHARES),
    )
    records = [record for row in found if (record := _over(*row)) is not None]
    records.reverse()
    return records


def _over(ended: Any, key: Any, user: Any, since: Any, held_s: Any, outcome: Any) -> Record | None:
    try:
        details = {
            "key": _text(key, "key"),
            "user": _text(user, "user"),
            "since": _at(since, "since"),
            "held_s": checks.seconds(held_s, "held_s"),
            "outcome": _text(outcome, "outcome"),
        }
    except ProtocolError:
        return None
    return Record(ended, "over", details) if since + held_s <= ended + _SLACK_S else None


def levels(file: sqlite3.Connection, since: float, now: float) -> list[tuple[int, str, int, float, float, float]]:
    """Averages from then on: begin, key, looks, slots, leased, waiting."""
    found = file.execute(
        "SELECT begin, key, looks, slots, leased, waiting FROM levels WHERE begin >= ? AND begin <= ?"
        " ORDER BY begin DESC LIMIT ?",
        (since, now, MAX_LEVELS),
    )
    return [row for row in found if _is_level(*row)]


def _is_level(begin: Any, key: Any, looks: Any, *averages: Any) -> bool:
    try:
        _count(begin, "begin")
        _text(key, "key")
        checks.integer(1, checks.MAX_ID)(looks, "looks")
        return all(checks.seconds(average, "average") == average for average in averages)
    except ProtocolError:
        return False
