"""Tables, spans of time and people, as the queries print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A heading and rows, aligned."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def span(seconds: float) -> str:
    """A span as people read it, such as ``2.5s``, ``3m20s`` or ``1d02h``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 24 else f"{hours // 24}d{hours % 24:02d}h"


def who(user: str, address: str) -> str:
    """A user and where from; who gave no name goes by the address."""
    return user if not address or user == address else f"{user}@{address}"
