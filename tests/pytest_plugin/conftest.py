"""A lab with boards of three keys, and runs of pytest that lease them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcsys.client import Tracker
from rpcsys.lab import Lab

BOARDS = {"jetson": 1, "pico": 1, "rpi4": 2}
RUN_S = 100


class LabRun:
    """Runs pytest on files of its own, in ``folder``, with the boards of a lab."""

    def __init__(self, lab: Lab, tracker: Tracker, folder: Path) -> None:
        self.tracker = tracker
        self.where = "{}:{}".format(*lab.tracker_address)
        self.folder = folder

    def start(self, source: str, *args: str, where: str = "", group: bool = False) -> subprocess.Popen[str]:
        """Pytest on a file of this source; ``group``: in a process group of its own."""
        self.folder.joinpath("test_it.py").write_text(source)
        self.folder.joinpath("pytest.ini").write_text("[pytest]\n")
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rpcsys-wait=20", "test_it.py", *args]
        environment = {**os.environ, "RPCSYS_TRACKER": where or self.where, "COLUMNS": "120"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(words, cwd=self.folder, env=environment, start_new_session=group, **pipes)

    def __call__(self, source: str, *args: str, where: str = "") -> tuple[int, str]:
        """The exit status of the run, and what it has printed."""
        process = self.start(source, *args, where=where)
        try:
            printed = process.communicate(timeout=RUN_S)[0]
        finally:
            process.kill()
        return process.returncode, printed

    def history(self, since: float, count: int) -> list[dict[str, Any]]:
        """The leases that began after ``since`` and are over, as soon as the tracker has written so many."""
        deadline = time.monotonic() + 20
        while True:
            found = [lease for lease in self.tracker.history(limit=None) if lease["since"] >= since]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def leases(self, count: int) -> list[str]:
        """The keys of the leases that are held, as soon as they are so many."""
        deadline = time.monotonic() + 20
        while True:
            held = sorted(lease["key"] for lease in self.tracker.leases() if lease["state"] == "running")
            if len(held) == count:
                return held
            assert time.monotonic() < deadline, held
            time.sleep(0.05)


@pytest.fixture(scope="session")
def boards_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    state = str(tmp_path_factory.mktemp("tracker"))
    flags = ["--allow-pickle", "--preload", "none"]
    with Lab(BOARDS, tracker_args=["--state-dir", state], server_args=flags) as lab:
        yield lab


@pytest.fixture
def lab_run(boards_lab: Lab, tmp_path: Path) -> Iterator[LabRun]:
    with boards_lab.connect() as tracker:
        run = LabRun(boards_lab, tracker, tmp_path)
        yield run
        assert run.leases(0) == []
