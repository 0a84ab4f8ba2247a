"""The site's navigation: which page is in which section. README.md is its front page.

The documents themselves have no directives, so that a forge shows them as they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DECISIONS = "docs/decisions/README"

#: Section -> its pages, in their order. A page that is in none is an error of the build.
SECTIONS = {
    "Start": ["docs/getting-started", "docs/installing", "docs/coming-from"],
    "The lab": [
        "docs/boards", "docs/server", "docs/devices", "docs/scheduling", "docs/lab", "docs/policy", "docs/oidc",
        "docs/proxy", "docs/sites",
    ],
    "Sessions": ["docs/sessions", "docs/hold", "docs/exec", "docs/pytest", "docs/notebooks", "docs/connect"],
    "Models": ["docs/modules", "docs/runtimes", "docs/serving", "docs/inference"],
    "Graphs": ["docs/graphs"],
    "Measuring": ["docs/measuring", "docs/bench", "docs/profiles", "docs/canaries", "docs/tuning", "docs/benchmarks"],
    "Operating": ["docs/monitoring", "docs/page", "docs/webhooks", "docs/tracing", "docs/replicas", "docs/security"],
    "Reference": [
        "docs/api/README", "docs/commands", "docs/wire", "docs/native", "docs/architecture", "docs/glossary",
        "CONTRIBUTING", "CHANGELOG",
    ],
    "Decisions": [DECISIONS],
}  # fmt: skip

#: Pages with pages below them, by a pattern beside the page.
_BELOW = {DECISIONS: "0*", "docs/api/README": "rpcsys*"}


def toctree(*lines: str, caption: str = "") -> str:
    """A directive that lists pages in the navigation, and shows nothing on its own page."""
    options = [f":caption: {caption}"] if caption else [":glob:"]
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *lines, "```", ""])


def add_toctrees(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the text of a page that has pages below it."""
    if name == app.config.root_doc:
        source[0] += "".join(toctree(*pages, caption=section) for section, pages in SECTIONS.items())
    elif name in _BELOW:
        source[0] += toctree(_BELOW[name])


def copy_front_page(app: Sphinx, error: Exception | None) -> None:
    """Give the front page the name that servers and people look for, too."""
    if error is None:
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{app.config.root_doc}.html", folder / "index.html")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", add_toctrees)
    app.connect("build-finished", copy_front_page)
    return {"parallel_read_safe": True}
