"""The notebooks of docs/notebooks run in a real kernel and lab, and each object shows itself as it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.device_files import ROOT
from tests.shown_html import ShownHtml

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def shows(cell: Any) -> list[str]:
    """What kinds of output a cell's object has; its HTML is fit for a notebook."""
    found = [output.data for output in cell.get("outputs", ()) if output.output_type == "execute_result"]
    for data in found:
        if "text/html" in data:
            ShownHtml(data["text/html"])
    return sorted(kind for data in found for kind in data)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_did(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    from tests.live.notebooks import executed

    stored = nbformat.read(path, as_version=4).cells
    now = executed(path, tmp_path).cells
    assert [shows(cell) for cell in now] == [shows(cell) for cell in stored]
    assert sum("text/html" in shows(cell) for cell in now) >= 9
    errors = [output for cell in now for output in cell.get("outputs", ()) if output.output_type == "error"]
    assert errors == []
