from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rpcsys.graph import samples
from rpcsys.lab import Lab
from tests.cli.conftest import Command

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "squeezenet.onnx"
    samples.save(samples.light_model("squeezenet"), path)
    return path


def test_runs_times_and_prints(lab: Lab, model: Path, rpcsys: Command) -> None:
    done = rpcsys("run", "--key", "cpu", model, "--repeat", "3", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "random (seed 0)" in done.stdout
    assert re.search(r"data_0 +float32 \[1, 3, 224, 224\]", done.stdout)
    assert re.search(r"softmaxout_1 +float32 \[1, 1000, 1, 1\]", done.stdout)
    assert re.search(r"time: +mean [\d.]+ .*\(3 repeats\)", done.stdout)


def test_inputs_from_a_file(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    image = np.full((1, 3, 224, 224), 0.25, "float32")
    np.savez(tmp_path / "in.npz", data_0=image)
    done = rpcsys("run", "--key", "cpu", model, "in.npz", "--repeat", "1", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "min 0.25  mean 0.25  max 0.25" in done.stdout
    expected = samples.run_here(model, {"data_0": image})["softmaxout_1"]
    assert f"max {expected.max():.4g}" in done.stdout


def test_the_device_is_free_again(lab: Lab, model: Path, rpcsys: Command) -> None:
    for _ in range(2):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 30, "--repeat", 1, model, tracker=lab.tracker_address)
        assert done.returncode == 0, done.stderr


def test_errors_are_one_line(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model at all")
    np.savez(tmp_path / "name.npz", wrong=np.zeros(3, "float32"))
    np.savez(tmp_path / "shape.npz", data_0=np.zeros((1, 3, 224), "float32"))
    np.savez(tmp_path / "dtype.npz", data_0=np.zeros((1, 3, 224, 224), "int64"))
    for args, says in [
        (["--key", "cpu", "broken.onnx"], "broken.onnx"),
        (["--key", "cpu", model, "name.npz"], "data_0"),
        (["--key", "cpu", model, "shape.npz"], "data_0"),
        (["--key", "cpu", model, "dtype.npz"], "data_0"),
        (["--key", "cpu", model, "nowhere.npz"], "cannot read nowhere.npz"),
        (["--key", "cpus", model], "no server offers 'cpus'; there are cpu"),
    ]:
        done = rpcsys("run", *args, tracker=lab.tracker_address)
        line = done.stderr.splitlines()[-1]
        assert done.returncode in (1, 2)
        assert line.startswith("rpcsys: error: ")
        assert says in line
        assert "Traceback" not in done.stderr


def test_who_waits_is_told_the_place_and_when_it_was_too_long(lab: Lab, model: Path, rpcsys: Command) -> None:
    with lab.connect() as tracker, tracker.request("cpu", wait_timeout=30):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 1, model, tracker=lab.tracker_address)
    assert done.returncode == 1
    place, error = done.stderr.splitlines()
    assert place.startswith("  waiting for a device: place 1 in the queue, taken by ")
    assert error.startswith("rpcsys: error: ")
