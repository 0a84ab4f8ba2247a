"""Pages for the files of the repository that documents link to: a forge shows these files, and so does the site."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_FOLDER = "files"
_BEFORE = 400  # the priority of Sphinx' own listener, which copies what is linked, is 500

linked: set[str] = set()


def lead_to_pages(app: Sphinx, document: nodes.document) -> None:
    """Change each link to a file, which Sphinx would copy for download, into one to the file's page."""
    root, name = Path(app.srcdir).resolve(), app.env.docname
    for link in list(document.findall(download_reference)):
        path = Path(app.env.relfn2path(link["reftarget"], name)[1]).resolve().relative_to(root).as_posix()
        linked.add(path)
        target = app.builder.get_relative_uri(name, f"{_FOLDER}/{path}")
        link.replace_self(nodes.reference("", "", *link.children, refuri=target, internal=True))


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, contents and template of each file's page."""
    for path in sorted(linked):
        text = (Path(app.srcdir) / path).read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, _language(path, text), force=True)  # type: ignore[attr-defined]
        name = escape(path)
        yield f"{_FOLDER}/{path}", {"title": name, "body": f"<h1><code>{name}</code></h1>{code}"}, "page.html"


def _language(path: str, text: str) -> str:
    try:
        return str(get_lexer_for_filename(path, text).aliases[0])
    except ClassNotFound:
        return "text"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    linked.clear()
    app.connect("doctree-read", lead_to_pages, priority=_BEFORE)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False}
