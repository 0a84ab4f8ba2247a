"""``query_tracker history`` and ``query_tracker usage``: what became of leases, and who used what."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from rpcsys.client import Tracker

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
            click.echo(json.dumps(lease))
        return
    head = ("ended", "held", "waited", "key", "server", "user", "outcome", "lease")
    _print_table(head, [_lease_row(lease) for lease in leases])


def print_usage(tracker: Tracker, as_json: bool, **wanted: Any) -> None:
    """Print usage by user and key, the most device time first: a table, or one line of JSON."""
    rows = tracker.usage(**wanted)
    if as_json:
        click.echo(json.dumps(rows))
        return
    head = ("user", "key", "leases", "held", "waited", "faults")
    _print_table(head, [_usage_row(row) for row in rows])


def _lease_row(lease: dict[str, Any]) -> Sequence[str]:
    outcome, reason = lease["outcome"], lease["reason"]
    return (
        dt.datetime.fromtimestamp(lease["ended"]).strftime("%Y-%m-%d %H:%M:%S"),  # noqa: DTZ006 (local time)
        _span(lease["held_s"]),
        _span(lease["waited_s"]),
        lease["key"],
        lease["server"],
        lease["user"] if lease["user"] == lease["address"] else f"{lease['user']}@{lease['address']}",
        f"{outcome} ({reason})" if reason and outcome != "closed" else outcome,
        lease["lease"],
    )


def _usage_row(row: dict[str, Any]) -> Sequence[str]:
    held, waited = _span(row["held_s"]), _span(row["waited_s"])
    return (row["user"], row["key"], str(row["leases"]), held, waited, str(row["faults"]))


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _span(seconds: float) -> str:
    """A span as people read it, such as ``2.5s``, ``3m20s`` or ``1d02h``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"
