"""Tables as text; sizes and times in them."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "kB", "MB", "GB", "TB")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their headings, a line for each row."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    return "\n".join(lines) + "\n"


def size_text(count: int | None) -> str:
    """``16.0 kB``; ``?`` for what is not known before it runs."""
    if count is None:
        return "?"
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def ms_text(seconds: float) -> str:
    """``12.50 ms``."""
    return f"{seconds * 1e3:.2f} ms"
