from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys.cli import demo
from rpcsys.cli.commands import run_group
from rpcsys.errors import RpcsysError
from tests.cli.conftest import Command


@pytest.mark.live
def test_the_demo_shows_the_queue_a_run_and_its_time(rpcsys: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = rpcsys("demo")
    assert done.returncode == 0, done.stderr
    assert "yourself" not in done.stderr  # it is another user who waits
    moments = [done.stdout.index(f"The queue, {moment}") for moment in ("before", "meanwhile", "after")]
    assert moments == sorted(moments)
    queues = re.findall(r"^ +cpu +(\d+) +(\d+) +(\d+)", done.stdout, re.MULTILINE)  # total, free, pending
    assert queues == [("2", "2", "0"), ("2", "0", "1"), ("2", "2", "0")]
    assert re.search(r"softmax_1  float32 \[1, 1000\]", done.stdout)
    assert re.search(r"largest absolute difference \S+", done.stdout)
    assert re.search(r"time +median [\d.]+ ms", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_result_ends_the_demo_with_an_error() -> None:
    with pytest.raises(RpcsysError, match=r"differ from the local run by 0\.5"):
        demo._difference({"y": np.ones(3)}, {"y": np.array([1, 1, 0.5])})
    with pytest.raises(RpcsysError, match="nan"):
        demo._difference({"y": np.full(3, np.nan)}, {"y": np.ones(3)})


def test_without_onnxruntime_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = demo.importlib.util.find_spec
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    assert run_group(["demo"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "onnxruntime" in error
    assert "pip install 'rpcsys[graph]'" in error


@pytest.mark.live
def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "rpcsys", "demo"]
    pipe: Any = subprocess.PIPE
    demonstration = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    assert demonstration.stdout is not None
    for line in demonstration.stdout:
        if line.startswith("A lab on this machine"):
            break
    assert list(tmp_path.glob("rpcsys-demo-*"))
    demonstration.terminate()
    _, errors = demonstration.communicate(timeout=60)
    assert demonstration.returncode == 143
    assert errors.splitlines()[-1] == "rpcsys: terminated"
    assert list(tmp_path.iterdir()) == []
