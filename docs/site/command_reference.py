"""The page of all commands: what their ``--help`` prints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rpcsys.cli.commands import group
from rpcsys.cli.manual import COLUMNS, helps
from rpcsys.query.__main__ import query as query_tracker

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_PAGE = "docs/commands"


def add_helps(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the helps to the page's text."""
    if name == _PAGE:
        os.environ["COLUMNS"] = str(COLUMNS)  # for the daemons' own parsers
        source[0] += "".join(
            f"\n## {command}\n\n{summary}\n\n```text\n{text.strip()}\n```\n"
            for command, summary, text in [*helps(group, "rpcsys"), *helps(query_tracker, "query_tracker")]
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", add_helps)
    return {"parallel_read_safe": True}
