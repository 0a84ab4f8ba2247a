"""The tracker's pages: the lab as people see it, and as programs read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from rpcsys.daemon.http import Content, Page, health_page, metrics_page, shared
from rpcsys.tracker.entities import Peer
from rpcsys.tracker.views import overview, summary

if TYPE_CHECKING:
    from rpcsys.tracker.records import Records
    from rpcsys.tracker.views.metrics import Metrics
    from rpcsys.tracker.views.utilisation import Utilisation

VIEWER = Peer(0, "127.0.0.1", "127.0.0.1")
"""For whom addresses are shown: whoever looks by way of HTTP sees what somebody on the tracker's machine would."""

FRESH_S = 1.0
"""However many people look at the lab, it is looked up at most so often."""

_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/picture.js": ("picture.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def pages(records: Records, metrics: Metrics, utilisation: Utilisation, now: Callable[[], float]) -> dict[str, Page]:
    """All pages of a tracker, by path."""
    return {
        "/healthz": health_page,
        "/metrics": metrics_page(metrics),
        "/api/summary": shared(lambda: _summary(records, now)),
        "/api/lab": _fresh_enough(_as_json(lambda: overview.lab(records, now())), now),
        "/api/day": _fresh_enough(_as_json(lambda: utilisation.day(now())), now),
        **{path: _file(name, kind) for path, (name, kind) in _FILES.items()},
    }


async def _summary(records: Records, now: Callable[[], float]) -> Content:
    """The whole summary, page by page, so that the loop is free between them."""
    texts: dict[str, list[str]] = {}
    begin: summary.Place | None = (0, 0)
    while begin is not None:
        found, begin = summary.page(records, now(), VIEWER, begin)
        for part, rows in found.items():
            if rows:
                texts.setdefault(part, []).append(_dense(rows)[1:-1])
        await asyncio.sleep(0)
    parts = ",".join(_part(part, ",".join(texts.get(part, ()))) for part in summary.PARTS)
    return "application/json", f"{{{parts}}}".encode()


def _part(name: str, rows: str) -> str:
    return f'"{name}":{{{rows}}}' if name == "queue_info" else f'"{name}":[{rows}]'


def _file(name: str, kind: str) -> Page:
    body = resources.files("rpcsys.tracker").joinpath("page").joinpath(name).read_bytes()
    return lambda: (kind, body)


_dense = json.JSONEncoder(separators=(",", ":")).encode


def _as_json(make: Callable[[], Any]) -> Callable[[], Content]:
    return lambda: ("application/json", _dense(make()).encode())


def _fresh_enough(page: Callable[[], Content], now: Callable[[], float]) -> Page:
    made: tuple[float, Content] | None = None

    def fresh() -> Content:
        nonlocal made
        at = now()
        if made is None or at - made[0] >= FRESH_S:
            made = at, page()
        return made[1]

    return fresh
