"""Fixtures of the tests of modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.artefacts import Artefacts, compiled


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    """Files that TVM has compiled."""
    pytest.importorskip("tvm")
    root: Path = tmp_path_factory.getbasetemp()
    return compiled(root.parent if root.name.startswith("popen-") else root)
