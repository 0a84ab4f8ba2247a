"""Each document is in one section of the site."""

from __future__ import annotations

from docs.site import navigation
from tests.device_files import ROOT


def test_each_page_is_in_one_section() -> None:
    listed = [page for pages in navigation.SECTIONS.values() for page in pages]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/README.md")]
    names = [path.relative_to(ROOT).with_suffix("").as_posix() for path in pages]
    assert sorted(listed) == sorted(set(names) - {"README"}), "docs/site/navigation.py says where a page is"
