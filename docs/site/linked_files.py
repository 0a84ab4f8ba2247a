"""Pages for the files of the repository that documents link to: a forge shows these files, and so does the site.

A notebook is shown with its outputs, any other file as code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from markdown_it import MarkdownIt
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
        name = escape(path)
        title = f"<h1><code>{name}</code></h1>"
        body = _notebook(app, text) if path.endswith(".ipynb") else title + _code(app, text, _language(path, text))
        yield f"{_FOLDER}/{path}", {"title": name, "body": body}, "page.html"


def _code(app: Sphinx, text: str, language: str) -> str:
    """``text`` as HTML, coloured."""
    return str(app.builder.highlighter.highlight_block(text, language, force=True))  # type: ignore[attr-defined]


def _notebook(app: Sphinx, text: str) -> str:
    """The cells of a notebook with their outputs, as HTML."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(MarkdownIt().render(source) if cell["cell_type"] == "markdown" else _code(app, source, "python"))
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", ())})
            plain = f"<pre>{escape(''.join(data.get('text/plain', ())))}</pre>"
            parts.append(f'<div style="overflow-x:auto">{"".join(data.get("text/html", plain))}</div>')
    return "\n".join(parts)


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
