"""What ``rpcsys profile`` refuses before it leases a device; tests/live/test_profiles.py runs it on a board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.cli.commands import run_group
from tests.live import deployed


@pytest.fixture
def model(tmp_path: Path) -> Path:
    pytest.importorskip("onnx")
    return deployed.endless_model(tmp_path / "model.onnx")


def test_a_trace_overwrites_no_input(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "inputs.npz", n=np.int64(1))
    for trace, said in ((model, "would be overwritten"), (tmp_path / "inputs.npz", "would be overwritten"),
                        (tmp_path / "none" / "t.json", "there is no folder")):  # fmt: skip
        words = ["profile", str(model), str(tmp_path / "inputs.npz"), "--key", "cpu", "--trace", str(trace)]
        assert run_group(words) == 2
        assert said in capsys.readouterr().err
    assert model.stat().st_size


def test_inputs_that_the_model_does_not_take_are_refused_first(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "inputs.npz", other=np.int64(1))
    assert run_group(["profile", str(model), str(tmp_path / "inputs.npz"), "--key", "cpu"]) == 2
    assert "'other'" in capsys.readouterr().err
