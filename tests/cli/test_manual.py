"""Manual pages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys.cli import manual
from tests.cli.conftest import Command


def printed(page: Path) -> str:
    """The page as a terminal shows it, without bold print; groff must print no warning."""
    assert shutil.which("groff"), "groff reads the pages; type: apt-get install groff-base"
    command = ["groff", "-k", "-man", "-ww", "-Tutf8", "-P-cbou", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("share") / "man" / "man1"
    command = [sys.executable, "-m", "rpcsys", "man", str(made)]
    done = subprocess.run(command, cwd=made.parents[1], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return made


def test_every_command_has_a_page_that_groff_accepts(folder: Path) -> None:
    names = {page.stem for page in folder.iterdir()}
    assert {"rpcsys", "rpcsys-tracker", "rpcsys-run", "rpcsys-lease-end"} <= names
    assert {"query_tracker", "query_tracker-leases", "query_tracker-history"} <= names
    for page in folder.iterdir():
        text = printed(page)
        assert {"NAME", "SYNOPSIS", "DESCRIPTION"} <= set(text.splitlines())
        assert f"{page.stem} - " in " ".join(text.split())  # lines are justified


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("rpcsys-tracker", ["--state-dir DIR", "rpcsys tracker [-h]", "OPTIONS"]),
        ("rpcsys-server", ["--through-proxy", "OPTIONS"]),
        ("rpcsys-run", ["--repeat INTEGER RANGE", "INPUTS.npz", "OPTIONS"]),
        ("rpcsys-compare", ["--least PERCENT", "MODEL MODEL", "OPTIONS"]),
        ("query_tracker-history", ["--since WHEN", "query_tracker history", "OPTIONS"]),
        ("rpcsys", ["COMMANDS", "rpcsys query --why rpi4"]),
    ],
)
def test_a_page_contains_the_help(name: str, texts: list[str], folder: Path) -> None:
    text = printed(folder / f"{name}.1")
    for words in texts:
        assert words in text


def test_help_text_never_becomes_a_groff_request(tmp_path: Path) -> None:
    text = "Usage: x\n\n.so /etc/passwd\n'br\na\\fB-b\n"
    page = tmp_path / "x.1"
    page.write_text(manual.page("x", "Do nothing.", text))
    shown = printed(page)
    assert all(words in shown for words in (".so /etc/passwd", "'br", "a\\fB-b"))


def test_an_invalid_folder_is_refused(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = rpcsys("man", str(tmp_path / "file" / "man1"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
