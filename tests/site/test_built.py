"""The web site that `make site` builds: its links, names and search, and how a browser shows it from a folder."""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import docstrings
from tests.device_files import ROOT
from tests.live.browser import Browser
from tests.live.daemons import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BUILD_S = 300.0
#: What a browser fetches without a click.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("source", "src"),
    ("iframe", "src"),
    ("object", "data"),
}


class Page(HTMLParser):
    """The targets of a page, and what can be linked to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif (tag, name) in FETCHED and value:
                self.fetched.append(value)
            elif name == "href" and value:
                self.links.append(value)


def test_the_site_is_whole(tmp_path: Path) -> None:
    """One test, so that it is built once, whoever runs the tests of a file."""
    site = built(tmp_path / "site")
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    every_link_has_a_target(pages)
    nothing_is_fetched_from_elsewhere(site, pages)
    each_public_name_and_command_has_its_place(site, pages)
    with contextlib.closing(Browser(tmp_path)) as browser:
        the_search_works_from_a_folder(site, browser)
        its_colours_follow_the_system(site, browser)
        notebooks_have_their_outputs_and_tables_no_empty_head(site, browser)


def built(folder: Path) -> Path:
    command = ["make", "--no-print-directory", "site", f"SITE={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def every_link_has_a_target(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for target in [*page.links, *page.fetched]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(other)
            if not other.is_file() or (known and parts.fragment and unquote(parts.fragment) not in known.anchors):
                broken.append(f"{path.name} links to {target}")
    assert broken == []
    assert len(pages) > 150


def nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    targets = [(path.name, target) for path, page in pages.items() for target in page.fetched]
    assert [each for each in targets if urlsplit(each[1]).netloc] == []
    styles = "\n".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", styles) == []


def each_public_name_and_command_has_its_place(site: Path, pages: dict[Path, Page]) -> None:
    for name in docstrings.MODULES:
        anchors = pages[(site / "docs" / "api" / f"{name}.html").resolve()].anchors
        public = docstrings.public_names(importlib.import_module(name))
        assert [each for each in public if f"{name}.{each}" not in anchors] == []
    commands = pages[(site / "docs" / "commands.html").resolve()].anchors
    assert {"rpcsys-run", "rpcsys-tracker", "rpcsys-lab-init", "query-tracker-leases"} <= commands


def shown(browser: Browser, script: str) -> Any:
    return wait_until(lambda: browser.run(script), 30.0, script, 0.2)


def the_search_works_from_a_folder(site: Path, browser: Browser) -> None:
    for words, result in (("lease", "Who gets a board"), ("load_module", "rpcsys.client.Session.load_module")):
        browser.go((site / "index.html").as_uri())
        browser.run(
            "const box = document.querySelector('.sidebar-search'); box.value = arguments[0]; box.form.submit()", words
        )
        browser.await_text("Search finished")
        found = browser.await_text(result, "#search-results")
        assert result in found
    browser.run(
        "[...document.querySelectorAll('#search-results a')].find(a => a.innerText.includes('client.Session')).click()"
    )
    assert "load_module" in browser.await_text("Load a model on the device", "article")
    assert browser.console() == []


def its_colours_follow_the_system(site: Path, browser: Browser) -> None:
    back = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"
    for dark in (False, True):
        browser.resize(1280, 900, dark)
        browser.go((site / "docs" / "sessions.html").as_uri())
        assert (max(shown(browser, back)) < 60) is dark
    browser.resize(390, 844)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.console() == []


def notebooks_have_their_outputs_and_tables_no_empty_head(site: Path, browser: Browser) -> None:
    browser.resize(1280, 900)
    browser.go((site / "files" / "docs" / "notebooks" / "first-session.ipynb.html").as_uri())
    browser.await_text("A first session", "article h1")
    assert browser.run("return document.querySelectorAll('article table').length") >= 5
    browser.resize(390, 844)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.go((site / "docs" / "api" / "README.html").as_uri())
    heads = (
        "return [...document.querySelectorAll('article thead')].map(head => [head.innerText.trim(), head.offsetHeight])"
    )
    assert shown(browser, heads) == [["", 0]]
    assert browser.console() == []
