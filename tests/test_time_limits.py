"""Each run of a test, and its teardown, has the time limit of its first run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

CONFTEST = "from tests.time_limits import pytest_runtest_setup, pytest_runtest_teardown, pytest_timeout_set_timer\n"
ROOT = Path(__file__).parent.parent


def run(folder: Path, test: str, *options: str) -> str:
    """What pytest prints of a test file with a limit of 1 s."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "none.ini", "--rootdir", str(folder)]
    (folder / "none.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    done = subprocess.run(
        [*command, "--timeout", "1", *options], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def test_a_rerun_that_hangs_ends(tmp_path: Path) -> None:
    hangs = "import time\n\ndef test_it(runs=[]):\n    runs.append(0)\n    assert len(runs) > 1\n    time.sleep(1000)\n"
    started = time.monotonic()
    printed = run(tmp_path, hangs, "--reruns", "1")
    assert "1 failed, 1 rerun" in printed, printed
    assert "Timeout" in printed
    assert time.monotonic() - started < 30


def test_a_teardown_after_a_failure_ends(tmp_path: Path) -> None:
    hangs = (
        "import time, pytest\n\n@pytest.fixture\ndef it():\n    yield\n    time.sleep(1000)\n\n"
        "def test_it(it):\n    assert 0\n"
    )
    printed = run(tmp_path, hangs)
    assert "1 failed, 1 error" in printed, printed
    assert "Timeout" in printed


def test_what_ends_in_time_passes(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, "def test_it():\n    pass\n")
