"""The paths of the pages about the lab, a board, a key or a lease. They can be sent to others."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

MAX_PATH = 4096  # characters: a name of 256, percent-encoded, has 3072


class PageKind(str, Enum):
    """What a page is about; the value is the first part of its path."""

    LAB = ""
    BOARD = "board"
    KEY = "key"
    LEASE = "lease"


LAB, BOARD, KEY, LEASE = PageKind


class PagePath(NamedTuple):
    """A page. ``name``: ``""`` for the lab, and for the key of requests that ask by label alone."""

    kind: PageKind
    name: str = ""

    @property
    def path(self) -> str:
        """The path, percent-encoded."""
        return "/" if self.kind is LAB else f"/{self.kind.value}/{quote(self.name, safe='')}"


def page_at(path: str) -> PagePath | None:
    """The page at a path, as a request has it; None if there is none."""
    if path == "/":
        return PagePath(LAB)
    word, slash, name = path[1:].partition("/")
    if not (path.startswith("/") and word and slash) or len(path) > MAX_PATH or "/" in name:
        return None
    try:
        return PagePath(PageKind(word), unquote(name, errors="strict"))
    except ValueError:  # no kind, or no UTF-8
        return None
