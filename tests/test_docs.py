"""Links and examples of the documents: `make docs` as a test."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rpcsys.cli.commands import group
from tests.device_files import ROOT

CHECK = ROOT / "docs" / "check.py"


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(500)
def test_links_resolve_and_examples_run() -> None:
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stderr


def test_every_link_resolves() -> None:
    check = runpy.run_path(str(CHECK))
    broken = {page.name: [*check["broken_links"](page)] for page in check["documents"]()}
    assert {name: found for name, found in broken.items() if found} == {}


def rows(page: str) -> list[list[str]]:
    """The cells of each row of a page's tables whose last column is called file."""
    tables = re.findall(
        r"^\| [^|\n]+ \|(?: [^|\n]+ \|)* file \|\n\|[-|]+\|\n((?:\|.+\|\n)+)",
        (ROOT / "docs" / page).read_text(),
        re.MULTILINE,
    )
    return [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()]


def names_files(cell: str) -> bool:
    """Whether a cell has links, each with its target as its text."""
    links = re.findall(r"\[([^]]+)\]\(([^)]+)\)", cell)
    return bool(links) and all(target in (f"../rpcsys/{name}", f"../{name}") for name, target in links)


def test_each_word_has_one_meaning_and_a_file() -> None:
    words = [word for word, _, _ in rows("glossary.md")]
    assert len(words) == len(set(words)) >= 40
    assert [cells for cells in rows("glossary.md") if not names_files(cells[-1])] == []


def test_each_task_has_a_file() -> None:
    assert len(rows("architecture.md")) >= 10
    assert [cells for cells in rows("architecture.md") if not names_files(cells[-1])] == []


def test_broken_links_and_examples_are_named(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECK))
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    (tmp_path / "in").mkdir()
    page.write_text(
        "# One thing, and more\n[ok](page.md#one-thing-and-more) [up](../nowhere.md) [down](page.md#deeper)\n"
        "[in](../in)\n```python run\nraise SystemExit(3)\n```\n```python\nraise SystemExit(4)\n```\n[web](https://example.org/x)\n",
        encoding="utf-8",
    )
    assert list(check["broken_links"](page)) == [
        "no such file: ../nowhere.md",
        "no such heading: page.md#deeper",
        "a folder has no page on the site: ../in",
    ]
    ((language, source, line),) = check["examples"](page)
    assert (language, line) == ("python", 4)
    assert check["failure"](language, source) == "exit status 3\n"
    assert check["failure"]("sh", "exit 0") is None
    assert "cannot be run" in check["failure"]("perl", "1")


def test_the_page_of_commands_names_each() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    named = {word for code in re.findall(r"`([^`]+)`", page) for word in code.split()}
    assert set(group.list_commands(click.Context(group))) - named == set()


def test_the_table_of_versions_is_what_pip_gets() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "installing.md").read_text(encoding="utf-8")
    for package in ("numpy", "onnx", "onnx-ir", "onnxruntime", "apache-tvm", "apache-tvm-ffi"):
        (versions,) = re.findall(rf'"{package}([<>=][^"; ]*)', text)
        assert f"| {package} | `{versions}` |" in table, package


def test_no_line_of_prose_is_wider_than_a_screen() -> None:
    wide = []
    for page in runpy.run_path(str(CHECK))["documents"]():
        if page.name == "benchmarks.md":  # its figures are longer
            continue
        prose = re.sub(r"(?ms)^```.*?^```$", lambda code: "\n" * code[0].count("\n"), page.read_text())
        for number, line in enumerate(prose.splitlines(), 1):
            if len(line) > 120 and not line.startswith("|"):
                wide.append(f"{page.name}:{number}")
    assert wide == []
