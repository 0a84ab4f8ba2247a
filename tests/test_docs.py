"""The documents hold: `make docs`, as a test."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.device_files import ROOT

CHECK = ROOT / "docs" / "check.py"


@pytest.mark.live
@pytest.mark.timeout(500)
def test_links_lead_somewhere_and_examples_run() -> None:
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, timeout=450, check=False)
    assert done.returncode == 0, done.stderr
