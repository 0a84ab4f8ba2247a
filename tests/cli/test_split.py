"""``rpcsys split``: divides a model from the shell."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from rpcsys import module
from rpcsys.cli.commands import run_group
from rpcsys.lab import Lab
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.cli.conftest import Command
from tests.graph.running import make, node, numbers, run, values

pytestmark = pytest.mark.live

SHAPE = (1, 8, 32, 32)


def network() -> onnx.ModelProto:
    """Three convolutions, t0 to t2."""
    nodes = [node("Conv", f"{f't{i - 1}' if i else 'x'} w{i}", f"t{i}", pads=[1, 1, 1, 1]) for i in range(3)]
    weights = {f"w{i}": numbers(8, 8, 3, 3, seed=i) * np.float32(0.1) for i in range(3)}
    return make(nodes, values("x", shape=SHAPE), values("t2", shape=SHAPE), weights=weights)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture(scope="module")
def cpu() -> str:
    """The name of a CPU of this machine."""
    return f"cpu:{min(os.sched_getaffinity(0))}"


def test_split_prints_the_expected_times_and_writes_the_library(model: Path, cpu: str, rpcsys: Command) -> None:
    done = rpcsys("split", model, "--over", cpu)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"stage0 +{cpu} +3 .* ms", done.stdout)
    assert re.search(r"expected: [\d.]+ frames/s, [\d.]+ ms for one frame", done.stdout)
    assert done.stdout.endswith("wrote net.so\n")
    assert "profiling the model" in done.stderr
    x = numbers(*SHAPE)
    with module.load_module(model.with_name("net.so")) as loaded:
        np.testing.assert_allclose(loaded(x), run(network(), {"x": x})["t2"], rtol=1e-4, atol=1e-5)


def test_a_stage_for_a_device_is_a_part_to_be_deployed(lab: Lab, model: Path, rpcsys: Command) -> None:
    """The library calls the part by its name; with a fallback it runs here while there is no server."""
    done = rpcsys("split", model, "--over", "key:cpu", "-o", "of it.so", "--fallback", tracker=lab.tracker_address)
    assert done.returncode == 0, done.stderr
    part = "of-it-stage0.onnx"
    output = f"wrote of it.so\nwrote {part}, for key:cpu; type: rpcsys deploy {part} --to HOST:PORT\n"
    assert done.stdout.endswith(output)
    before, _, _ = done.stderr.partition("profiling the model")
    warning = "key:cpu has no --deploy: its part cannot be deployed until its server runs with --deploy DIR"
    assert warning in before
    x = numbers(*SHAPE)
    expected = run(network(), {"x": x})["t2"]
    stage = onnx.load(model.with_name(part))
    np.testing.assert_allclose(run(stage, {"x": x})["t2"], expected, rtol=1e-4, atol=1e-5)
    with module.load_module(model.with_name("of it.so")) as loaded:
        (remote,) = (each for each in module.walk(loaded) if isinstance(each, RemoteFunctionModule))
        assert remote.endpoint.serve == "of-it-stage0"
        assert remote.endpoint.tracker == "{}:{}".format(*lab.tracker_address)
        np.testing.assert_allclose(loaded(x), expected, rtol=1e-4, atol=1e-5)
    lab.connect().request("cpu", wait_timeout=30).close()


def test_given_cuts_need_no_search(model: Path, cpu: str, rpcsys: Command) -> None:
    done = rpcsys("split", model, "--over", f"{cpu},10.0.0.1:9090", "--at", "t0", "--exact")
    assert done.returncode == 0, done.stderr
    assert re.search(r"t0 +float32\[1, 8, 32, 32\] +32.8 kB +stage0 +stage1", done.stdout)
    assert "net-stage1.so, for 10.0.0.1:9090" in done.stdout
    assert model.with_name("net-stage1.so").is_file()


def test_errors_are_one_line(
    model: Path, cpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"no model at all")
    np.savez(tmp_path / "other.npz", z=numbers(2))
    np.savez(tmp_path / "shape.npz", x=numbers(2))
    for args, status, message in [
        (["nowhere.onnx", "--over", cpu], 2, "no such model: nowhere.onnx"),
        (["broken.onnx", "--over", cpu], 2, "broken.onnx"),
        ([model, "--over", "gpu:0"], 2, "'gpu:0' is no device"),
        ([model, "--over", "cpu:60000"], 2, "this process has CPUs"),
        ([model, "--over", "99999"], 2, "cannot be divided into 99999"),
        ([model, "--over", ""], 2, "is no device"),
        ([model, "--over", cpu, "--inputs", "other.npz"], 2, "no input 'z'"),
        ([model, "--over", cpu, "--inputs", "shape.npz"], 1, "does not run with these inputs"),
        ([model, "--over", cpu, "--at", "t0"], 2, "1 cut(s) make 2 stages, and --over names 1 device(s)"),
        ([model, "--over", cpu, "--at", "no"], 2, "no node of the model is called 'no'"),
        ([model, "--over", cpu, "--encode", "gif"], 2, "'gif' is no encoding"),
        ([model, "--over", cpu, "-o", "no/where.so"], 2, "no/where.so"),
        ([model, "--over", "key:edge", "--tracker", "127.0.0.1:1"], 1, "127.0.0.1:1"),
        ([model, "--over", "key:edge", "--tracker", "nowhere:"], 2, "is no address"),
    ]:
        assert run_group(["split", *map(str, args)]) == status, args
        output = capsys.readouterr().err
        assert output.count("error:") == 1, args
        assert message in output.splitlines()[-1], args


def test_an_unknown_key_is_an_error(lab: Lab, model: Path, rpcsys: Command) -> None:
    done = rpcsys("split", model, "--over", "key:nobody", tracker=lab.tracker_address)
    assert done.returncode == 1
    assert "nobody" in done.stderr.splitlines()[-1]
    assert not model.with_name("net.so").exists()
