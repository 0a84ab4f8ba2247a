"""``query_tracker history`` and ``query_tracker usage``: what became of leases, and who used what."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from rpcsys.client import Tracker
from rpcsys.query.table import print_json, print_table, span, who

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def when(text: str) -> float:
    """A time as people write it, as seconds since 1970: ``90m``, ``2h``, ``7d`` ago, or ``2026-11-20 [12:00]``.

    Raises
    ------
    click.BadParameter: it is none.
    """
    span = _SPAN.fullmatch(text)
    if span is not None:
        return time.time() - float(span[1]) * _UNITS[span[2]]
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: write 90m, 2h or 7d (ago), or 2026-11-20 or '2026-11-20 12:00'"
        ) from None


def print_history(tracker: Tracker, as_json: bool, **wanted: Any) -> None:
    """Print leases that are over, the last to end first: a table, or a line of JSON for each."""
    leases = tracker.history(**wanted)
    if as_json:
        for lease in leases:
            print_json(lease)
        return
    head = ("ended", "held", "waited", "key", "server", "user", "outcome", "lease")
    print_table(head, [_lease_row(lease) for lease in leases])


def print_usage(tracker: Tracker, as_json: bool, **wanted: Any) -> None:
    """Print usage by user and key, the most device time first: a table, or one line of JSON."""
    rows = tracker.usage(**wanted)
    if as_json:
        print_json(rows)
        return
    head = ("user", "key", "leases", "held", "waited", "faults")
    print_table(head, [_usage_row(row) for row in rows])


def _lease_row(lease: dict[str, Any]) -> Sequence[str]:
    outcome, reason = lease["outcome"], lease["reason"]
    return (
        dt.datetime.fromtimestamp(lease["ended"]).strftime("%Y-%m-%d %H:%M:%S"),  # noqa: DTZ006 (local time)
        span(lease["held_s"]),
        span(lease["waited_s"]),
        lease["key"],
        lease["server"],
        who(lease["user"], lease["address"]),
        f"{outcome} ({reason})" if reason and outcome != "closed" else outcome,
        lease["lease"],
    )


def _usage_row(row: dict[str, Any]) -> Sequence[str]:
    held, waited = span(row["held_s"]), span(row["waited_s"])
    return (row["user"], row["key"], str(row["leases"]), held, waited, str(row["faults"]))
