"""The page's templates, and what they are given beside their data. Every value is escaped, unless we made it HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import lru_cache
from importlib import resources
from typing import Any

from tornado.escape import xhtml_escape
from tornado.template import DictLoader, Template

from rpcsys.errors import span
from rpcsys.tracker.views.fragments import Fragment
from rpcsys.tracker.views.paths import PageKind, PagePath

#: What a board's state is drawn as, beside its word: `rpcsys.tracker.views.rows.state_word`.
_LOOKS = {
    **dict.fromkeys(("free", "ok"), "free"), "busy": "busy", "partly busy": "partly", "preparing": "preparing",
    **dict.fromkeys(("drained", "on trial"), "odd"), **dict.fromkeys(("set aside", "unhealthy", "slow"), "bad"),
    **dict.fromkeys(("gone", "not here"), "gone"),
}  # fmt: skip


class Templates:
    """All templates of ``page/``, compiled when they are first used."""

    def __init__(self) -> None:
        folder = resources.files("rpcsys.tracker").joinpath("page")
        texts = {each.name: each.read_text("utf-8") for each in folder.iterdir() if each.name.endswith(".html")}
        helpers = {"when": when, "link": link, "look": look, "bar": bar, "span": span, "quote": shlex.quote}
        self.names = tuple(texts)
        self._loader = DictLoader(texts, namespace={**helpers, "dense": dense}, whitespace="oneline")
        self._loaded: dict[str, Template] = {}

    def draw(self, name: str, data: dict[str, Any]) -> str:
        """A template with its data."""
        return self.load(name).generate(**data).decode()

    def load(self, name: str) -> Template:
        """A template, compiled."""
        template = self._loaded.get(name)
        if template is None:
            template = self._loaded[name] = self._loader.load(name)
        return template

    def fragment(self, fragment: Fragment) -> str:
        """The HTML of a fragment."""
        return self.draw(fragment.template, {"id": fragment.id, **fragment.data})


@lru_cache(4096)
def when(at: float) -> str:
    """A time, in seconds since 1970, as an element: its date in UTC, of which the page's script makes an age."""
    try:
        moment = datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, ValueError, OSError):  # a row of a damaged history
        return "<time>unknown</time>"
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}" data-at="{at:.0f}">{moment:%Y-%m-%d %H:%M} UTC</time>'


def link(kind: str, name: str, text: str = "") -> str:
    """A link to the page of a board, a key or a lease."""
    return f'<a href="{xhtml_escape(PagePath(PageKind(kind), name).path)}">{xhtml_escape(text or name)}</a>'


def look(state: str) -> str:
    """The class of a state: a shape and a colour."""
    return _LOOKS.get(state, "odd")


def bar(parts: Iterable[tuple[str, float]], total: float) -> str:
    """A bar of ``parts``, each a class and an amount of ``total``. What it says is said in words beside it."""
    drawn, x = [], 0.0
    for name, amount in parts:
        width = 100 * amount / total if total else 0.0
        drawn.append(f'<rect class="{name}" x="{x:.2f}" width="{width:.2f}" height="1"/>')
        x += width
    return f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">{"".join(drawn)}</svg>'


def dense(data: Any) -> str:
    """Data for the page's script, as JSON."""
    return json.dumps(data, separators=(",", ":"))
