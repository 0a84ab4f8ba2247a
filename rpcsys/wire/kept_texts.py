"""Checks of texts in control messages that are cut, rather than refused: sentences, and what a session left."""

from __future__ import annotations

from typing import Any

from rpcsys.wire import checks

MAX_NAMES = 64  # of each kind of leftovers


def brief(value: Any, name: str) -> str:
    """The first `checks.MAX_TEXT` characters of a text, made printable. A long text is cut, not refused."""
    kept = checks.sentence(value, name)[: checks.MAX_TEXT]
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "?" for c in kept)


def left(value: Any, name: str) -> Any:
    """A count, or the first `MAX_NAMES` names of a list."""
    if type(value) is list:
        return [brief(item, name) for item in value[:MAX_NAMES]]
    return checks.integer(0, checks.MAX_ID)(value, name)
