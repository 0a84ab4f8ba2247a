"""The pages for people: whole documents, which need no script, and what has changed since, for the script.

A page is made at most once a second, however many ask, and in slices: the event loop runs between them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from rpcsys import __version__
from rpcsys.daemon.http import Content, NoPage, Page
from rpcsys.tracker.views.board_page import board_fragments
from rpcsys.tracker.views.fragments import DrawnPage, Fragment
from rpcsys.tracker.views.key_page import key_fragments
from rpcsys.tracker.views.lab_page import lab_fragments
from rpcsys.tracker.views.lease_page import lease_fragments
from rpcsys.tracker.views.paths import BOARD, KEY, LAB, LEASE, PagePath, page_at
from rpcsys.tracker.views.templates import Templates

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.past import Past, PastReader

LIVE = "/live/"  # before the version that a viewer has seen, and the page's own path
FRESH_S = 1.0  # how long a page that was made is served again
#: How long a page that is no more is served again: a lease that is over is in the history within a second.
LATE_S = 5.0
#: Pages that are kept with what they have shown, so that their viewers get only what changes; 50 MB.
MAX_KEPT, MAX_FRAGMENTS = 256, 20_000
_DOCUMENTS = {LAB: "lab.html", KEY: "key.html", BOARD: "board.html", LEASE: "parts.html"}
_NONE = "no {kind} {name!r} is here, and {past}; see / for what is here"


@dataclass
class KeptPage:
    """A page that was made. ``at``: when; ``found``: when there was something to show."""

    drawn: DrawnPage
    title: str = ""
    at: float = float("-inf")
    found: float = float("-inf")
    why: str = ""  # why there is nothing to show
    making: asyncio.Future[None] | None = field(default=None, repr=False)


class LivePages:
    """Makes the pages of ``records`` and of the history, ``past``; ``now``: seconds since 1970."""

    def __init__(self, records: Records, past: PastReader, now: Callable[[], float]) -> None:
        self._records = records
        self._past = past
        self._now = now
        self._templates = Templates()
        self._kept: dict[PagePath, KeptPage] = {}  # the last used last

    def at(self, path: str) -> Page | None:
        """The page at a path, None if there is none. It may raise `NoPage`: nobody knows such a board, key or lease."""
        if not path.startswith(LIVE):
            page = page_at(path)
            return None if page is None else partial(self._document, page)
        version, slash, rest = path[len(LIVE) :].partition("/")
        page = page_at(slash + rest)
        return None if page is None else partial(self._changes, page, version)

    async def _document(self, page: PagePath) -> Content:
        kept = await self._fresh(page)
        lab = self._records.lab
        html = self._templates.draw(
            _DOCUMENTS[page.kind],
            {
                "title": kept.title,
                "lab": "" if lab is None else lab.name,
                "groups": kept.drawn.html(),
                "version": kept.drawn.version,
                "now": kept.at,
                "started": self._records.started_at,
                "rpcsys": __version__,
            },
        )
        return "text/html; charset=utf-8", html.encode()

    async def _changes(self, page: PagePath, version: str) -> Content:
        kept = await self._fresh(page)
        drawn = kept.drawn
        found = {
            "title": kept.title,
            "version": drawn.version,
            "now": self._now(),
            "started": self._records.started_at,
            **drawn.since(version),
        }
        return "application/json", json.dumps(found, separators=(",", ":")).encode()

    async def _fresh(self, page: PagePath) -> KeptPage:
        """A page that is at most `FRESH_S` old. Raises `NoPage`."""
        kept = self._kept.pop(page, None) or KeptPage(DrawnPage(self._templates.fragment))
        self._kept[page] = kept
        self._make_room()
        if kept.making is None or (kept.making.done() and self._now() - kept.at >= FRESH_S):
            kept.making = asyncio.ensure_future(self._make(page, kept))
        await asyncio.shield(kept.making)
        if kept.at - kept.found > LATE_S:
            self._kept.pop(page, None)
            raise NoPage(404, kept.why)
        return kept

    def _make_room(self) -> None:
        """Drop the pages that nobody has asked for for longest, while there are too many; the last one stays."""
        size = sum(len(kept.drawn) for kept in self._kept.values())
        while len(self._kept) > MAX_KEPT or (size > MAX_FRAGMENTS and len(self._kept) > 1):
            size -= len(self._kept.pop(next(iter(self._kept))).drawn)

    async def _make(self, page: PagePath, kept: KeptPage) -> None:
        past = None if page.kind is LAB else await self._read(page)
        at = self._now()
        fragments = self._fragments(page, at, past)
        first = next(fragments, None)
        if first is not None:
            await kept.drawn.update(chain((first,), fragments))
            kept.title, kept.found = self._title(page), at
        else:
            problem = past.problem if past is not None else ""
            kept.why = _NONE.format(kind=page.kind.value, name=page.name, past=problem or "the history has none")
        kept.at = at

    async def _read(self, page: PagePath) -> Past:
        if page.kind is BOARD:
            return await self._past.of_board(page.name)
        if page.kind is KEY:
            return await self._past.of_key(page.name, self._now())
        return await self._past.of_lease(page.name)

    def _fragments(self, page: PagePath, at: float, past: Past | None) -> Iterator[Fragment]:
        if past is None:
            return lab_fragments(self._records, at)
        if page.kind is BOARD:
            return board_fragments(self._records, at, page.name, past)
        if page.kind is KEY:
            return key_fragments(self._records, at, page.name, past)
        return lease_fragments(self._records, page.name, past)

    def _title(self, page: PagePath) -> str:
        if page.kind is LAB:
            return f"Device lab: {len(self._records.waiting)} waiting"
        return f"{page.name or 'any key (by label)'} · {page.kind.value} · Device lab"
