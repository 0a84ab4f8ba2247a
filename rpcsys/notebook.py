"""The HTML with which objects show themselves in notebooks: escaped, without scripts, in the notebook's own colours.

An object tells what it knows already: to be shown, it asks nothing over a network.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from rpcsys.errors import printable

#: The most rows of a table.
MAX_ROWS = 200
_CELL = "text-align:left;vertical-align:top;padding:.15em 1em .15em 0"
_RULE = "border-bottom:1px solid rgba(128,128,128,.5)"  # seen on a light and on a dark page


def block(title: str, *parts: str) -> str:
    """An object: its title, and the HTML of what it says below."""
    return f'<div style="margin:.3em 0"><strong>{_text(title)}</strong>{"".join(parts)}</div>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values, a row for each value that is known: neither None nor ""."""
    known = [(name, value) for name, value in pairs if value is not None and value != ""]
    return _rows(_row("td", [name, str(value)]) for name, value in known)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table under its headings; of very many rows the first ones, and how many more there are."""
    shown = [*rows]
    more = len(shown) - MAX_ROWS
    body = [_row("td", list(map(str, row))) for row in shown[:MAX_ROWS]]
    note = lines([f"… and {more} more"]) if more > 0 else ""
    return _rows([_row("th", head), *body]) + note


def lines(texts: Iterable[str]) -> str:
    """Sentences, one a line."""
    return "".join(f"<div>{_text(text)}</div>" for text in texts)


def picture(svg: str, text: str) -> str:
    """A drawing, as an image: its styles and identifiers stay its own. ``text``: what it shows, for who cannot see."""
    data = base64.b64encode(printable(svg, "\n").encode()).decode()
    return f'<div><img alt="{_text(text)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}"></div>'


def _rows(rows: Iterable[str]) -> str:
    return f'<table style="border-collapse:collapse;margin:.3em 0">{"".join(rows)}</table>'


def _row(tag: str, cells: Sequence[str]) -> str:
    made = (f'<{tag} style="{_CELL};{_RULE}">{_text(cell)}</{tag}>' for cell in cells)
    return f"<tr>{''.join(made)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text, "\n"))
