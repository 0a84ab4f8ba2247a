"""The documents hold: `make docs`, as a test."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device_files import ROOT

CHECK = ROOT / "docs" / "check.py"


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.timeout(500)
def test_links_lead_somewhere_and_examples_run() -> None:
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stderr


def test_every_link_leads_somewhere() -> None:
    check = runpy.run_path(str(CHECK))
    broken = {page.name: [*check["broken_links"](page)] for page in check["documents"]()}
    assert {name: found for name, found in broken.items() if found} == {}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    check = runpy.run_path(str(CHECK))
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing, and more\n[ok](page.md#one-thing-and-more) [up](../nowhere.md) [down](page.md#deeper)\n"
        "```python run\nraise SystemExit(3)\n```\n```python\nraise SystemExit(4)\n```\n[web](https://example.org/x)\n",
        encoding="utf-8",
    )
    assert list(check["broken_links"](page)) == [
        "no such file: ../nowhere.md",
        "no such heading: page.md#deeper",
    ]
    ((language, source, line),) = check["examples"](page)
    assert (language, line) == ("python", 3)
    assert check["failure"](language, source) == "exit status 3\n"
    assert check["failure"]("sh", "exit 0") is None
    assert "cannot be run" in check["failure"]("perl", "1")
