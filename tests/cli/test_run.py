from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys.cli.run import load_inputs, time_model
from rpcsys.client import TimingResult
from rpcsys.errors import UsageError
from rpcsys.graph import samples
from rpcsys.lab import Lab
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("model") / "squeezenet.onnx"
    samples.save(samples.light_model("squeezenet"), path)
    return path


@pytest.mark.live
def test_runs_times_and_prints(lab: Lab, model: Path, rpcsys: Command) -> None:
    done = rpcsys("run", "--key", "cpu", model, "--repeat", "3", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "random (seed 0)" in done.stdout
    assert re.search(r"data_0 +float32 \[1, 3, 224, 224\]", done.stdout)
    assert re.search(r"softmaxout_1 +float32 \[1, 1000, 1, 1\]", done.stdout)
    assert re.search(r"time: +mean [\d.]+ .*\(3 repeats\)", done.stdout)


@pytest.mark.live
def test_inputs_from_a_file(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    image = np.full((1, 3, 224, 224), 0.25, "float32")
    np.savez(tmp_path / "in.npz", data_0=image)
    done = rpcsys("run", "--key", "cpu", model, "in.npz", "--repeat", "1", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    assert "min 0.25  mean 0.25  max 0.25" in done.stdout
    expected = samples.run_here(model, {"data_0": image})["softmaxout_1"]
    assert f"max {expected.max():.4g}" in done.stdout


@pytest.mark.live
def test_the_device_is_free_again(lab: Lab, model: Path, rpcsys: Command) -> None:
    for _ in range(2):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 30, "--repeat", 1, model, tracker=lab.tracker_address)
        assert done.returncode == 0, done.stderr


@pytest.mark.live
def test_errors_are_one_line(lab: Lab, model: Path, tmp_path: Path, rpcsys: Command) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model at all")
    np.savez(tmp_path / "name.npz", wrong=np.zeros(3, "float32"))
    np.savez(tmp_path / "shape.npz", data_0=np.zeros((1, 3, 224), "float32"))
    np.savez(tmp_path / "dtype.npz", data_0=np.zeros((1, 3, 224, 224), "int64"))
    for args, message in [
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
        assert message in line
        assert "Traceback" not in done.stderr


@pytest.mark.live
def test_waiting_shows_the_place_in_the_queue_and_times_out(lab: Lab, model: Path, rpcsys: Command) -> None:
    with lab.connect() as tracker, tracker.request("cpu", wait_timeout=30):
        done = rpcsys("run", "--key", "cpu", "--wait-timeout", 1, model, tracker=lab.tracker_address)
    assert done.returncode == 1
    place, error = done.stderr.splitlines()
    assert place.startswith("  waiting for a device: place 1 in the queue, taken by ")
    assert error.startswith("rpcsys: error: ")


def test_load_gives_every_array_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.arange(3), b=np.zeros((2, 2), "float32"))
    loaded = load_inputs(tmp_path / "in.npz")
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"].dtype == np.float32


def test_the_error_for_a_file_that_is_no_npz_of_plain_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("not an archive", encoding="utf-8")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "object.npz").read_bytes()[:60])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, message in [
        ("one.npy", "holds one array"),
        ("object.npz", "no .npz file of plain arrays"),
        ("text.npz", "no .npz file of plain arrays"),
        ("cut.npz", "no .npz file of plain arrays"),
        ("empty.npz", "no .npz file of plain arrays"),
        ("nowhere.npz", "cannot read .*nowhere.npz: No such file"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_inputs(tmp_path / name)


class Model:
    """Answers every request for times, and records the numbers of runs requested."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[int] = []

    def time_evaluator(self, name: str, number: int, repeat: int) -> Any:
        assert (name, number) == ("main", 1)
        self.asked.append(repeat)
        return lambda *args: TimingResult([self.seconds] * repeat)


@pytest.mark.parametrize(("seconds", "asked"), [(5.0, [1] * 8), (0.3, [1, 3, 3, 1]), (1e-5, [1, 7]), (0.0, [1, 7])])
def test_a_bar_moves_about_once_a_second(seconds: float, asked: list[int]) -> None:
    model, seen = Model(seconds), []
    result = time_model(model, ["x"], 8, lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    assert model.asked == asked
    assert result.results == (seconds,) * 8
    assert seen == [(sum(asked[: i + 1]), 8) for i in range(len(asked))]
