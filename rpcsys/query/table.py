"""Tables, spans of time, people and JSON, as the queries print them: nothing that a terminal would take for a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from rpcsys.errors import ProtocolError, printable

MAX_WIDTH = 256
"""Of a column, which a longer cell exceeds: one long name must not make every row as long."""


def say(text: str, *, err: bool = False) -> None:
    """Print lines of which parts come from others."""
    click.echo(printable(text, "\n"), err=err)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A heading and rows, aligned."""
    table = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [min(MAX_WIDTH, max(len(row[column]) for row in table)) for column in range(len(head))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(value: Any) -> None:
    """Print a line of JSON. Raises `ProtocolError` for what has no form there, such as a number beyond all bounds."""
    try:
        click.echo(json.dumps(value, allow_nan=False))
    except ValueError as error:
        raise ProtocolError(f"the tracker's answer has no form in JSON: {error}") from None


def escape_what_the_terminal_lacks() -> None:
    """Have characters that the terminal's encoding does not know written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


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
