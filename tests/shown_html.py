"""Reads the HTML with which objects show themselves in notebooks."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

#: All that notebooks are given: nothing that runs, and nothing that is fetched.
TAGS = {"div", "strong", "table", "tr", "th", "td", "img"}
ATTRIBUTES = {"style", "alt", "src"}
_DATA = "data:image/svg+xml;base64,"


class ShownHtml(HTMLParser):
    """``cells``: the texts of elements in order; ``pictures``: the drawings. Fails for what notebooks must not get."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.pictures: list[ET.Element] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        if tag == "img":
            source = dict(attrs)["src"] or ""
            assert source.startswith(_DATA)
            self.pictures.append(ET.fromstring(base64.b64decode(source[len(_DATA) :])))
            return
        self._open.append(tag)
        if tag in ("td", "th", "strong"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "div":
            self.cells.append(data)
        else:
            self.cells[-1] += data


def shown(value: object) -> ShownHtml:
    """What an object shows of itself. Its repr has one line."""
    assert "\n" not in repr(value)
    return ShownHtml(value._repr_html_())  # type: ignore[attr-defined]
