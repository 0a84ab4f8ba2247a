from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rpcsys.lab import Lab

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def rpcsys(tmp_path: Path) -> Command:
    """Run the command in an empty folder: ``rpcsys("run", "--key", "cpu", …)``."""

    def run(*args: object, tracker: tuple[str, int] | None = None) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if "_TRACKER_" not in name}
        if tracker is not None:
            env.update(RPCSYS_TRACKER_HOST=tracker[0], RPCSYS_TRACKER_PORT=str(tracker[1]))
        command = [sys.executable, "-m", "rpcsys", *map(str, args)]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)

    return run


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab({"cpu": 1}) as lab:
        yield lab


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a command does to the process's logs: its output is closed when its test is over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
