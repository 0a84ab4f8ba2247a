"""A board whose chips work at once, on real drivers: overlap, arrays that stay, and what goes wrong on one chip."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rpcsys
from rpcsys import graph, module
from rpcsys.errors import RemoteError, SessionLost
from rpcsys.graph import Leased, Pipeline
from tests.graph.running import make, node, numbers, values
from tests.live import deployed
from tests.live.daemons import Daemon, Daemons
from tests.opencl import LENGTH, Programs

OPENCL = graph.Tvm({"kind": "opencl", "host": {"kind": "llvm"}})
SIZE = 256
LAYERS = 6  # of each stage
FRAMES = 30


def network(size: int = SIZE, layers: int = LAYERS) -> onnx.ModelProto:
    """Products with weights; ``middle`` is between the first and the second half."""
    rng = np.random.default_rng(3)
    weights, nodes, name = {}, [], "x"
    for layer in range(2 * layers):
        weights[f"w{layer}"] = rng.standard_normal((size, size), np.float32) / np.float32(size) ** 0.5
        made = {layers - 1: "middle", 2 * layers - 1: "y"}.get(layer, f"t{layer}")
        nodes.append(node("MatMul", f"{name} w{layer}", made))
        name = made
    return make(nodes, values("x", shape=(size, size)), values("y", shape=(size, size)), weights=weights)


@pytest.fixture(scope="module")
def lab(module_daemons: Any, opencl_library: Path) -> tuple[Daemon, Daemon]:
    """A tracker, and a board with a CPU and an OpenCL device with 1 GiB of memory."""
    pytest.importorskip("tvm")
    daemons: Daemons = module_daemons()
    tracker = daemons.tracker()
    flags = ("--devices", "opencl", "--load-library", str(opencl_library))
    env = {**os.environ, "POCL_MEMORY_LIMIT": "1"}
    return tracker, daemons.server("board", *flags, tracker=tracker, offers=1, env=env)


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any, opencl_library: Path) -> Path:
    """A small network in two stages, one on each chip."""
    pytest.importorskip("tvm")
    path = tmp_path_factory.mktemp("chips") / "two.so"
    stages = graph.split(network(32, 1), ["middle"])
    module.export_library(graph.build(stages, {"stage0": "onnxruntime", "stage1": OPENCL}), path)
    return Path(path)


@pytest.fixture
def session(lab: tuple[Daemon, Daemon]):
    with rpcsys.connect_tracker(lab[0].where) as tracker, tracker.request("board", wait_timeout=30) as session:
        yield session


def runs(path: Path) -> dict[str, list[tuple[float, float]]]:
    """When each device of the board worked, from a trace."""
    events = json.loads(path.read_text())["traceEvents"]
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X" and event["cat"].startswith("board "):
            found.setdefault(event["cat"], []).append((event["ts"], event["ts"] + event["dur"]))
    return found


def overlap(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> float:
    """Time in which both worked, as a share of the smaller one's."""
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
    return both / min(sum(end - begin for begin, end in each) for each in (one, other))


def test_both_chips_of_a_leased_board_are_busy_at_once(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    whole = graph.build(graph.split(network(), []))
    stages = graph.split(network(), ["middle"])
    targets = {
        "stage0": Leased("board", lab[0].where, device="cpu:0"),
        "stage1": Leased("board", lab[0].where, target=OPENCL, device="opencl:0"),
    }
    with Pipeline(stages, targets) as pipeline:
        frames = [numbers(SIZE, SIZE, seed=number) for number in range(FRAMES)]
        for given, out in zip(frames, pipeline.run(frames), strict=True):
            np.testing.assert_allclose(out, whole(given), atol=1e-4)
        pipeline.save_trace(tmp_path / "trace.json")
    worked = runs(tmp_path / "trace.json")
    assert [len(each) for each in worked.values()] == [FRAMES, FRAMES]
    assert overlap(*worked.values()) > 0.5  # 0 without; other work on the machine delays either


def test_what_passes_from_chip_to_chip_is_copied_once_and_never_sent(session: Any, library: Path) -> None:
    model = session.load_module(library)
    x = numbers(32, 32)
    kept = model["main"](x, keep=True)
    assert (kept.device, kept.shape) == ("opencl:0", (32, 32))
    devices = session.memory()["devices"]
    assert (devices["opencl:0"]["copied_in"], devices["opencl:0"]["copied_out"]) == (1, 0)
    np.testing.assert_allclose(kept.numpy(), model(x), atol=1e-6)
    assert session.memory()["devices"]["opencl:0"]["copied_out"] == 2


def test_an_array_on_a_chip_is_no_copy_for_its_functions(session: Any, tmp_path: Path) -> None:
    stage = graph.split(network(32, 1), ["middle"])["stage1"]
    module.export_library(graph.build(stage, OPENCL), tmp_path / "one.so")
    model = session.load_module(tmp_path / "one.so")
    x = session.array(numbers(32, 32), device="opencl:0")
    assert x.device == "opencl:0"
    for _ in range(3):
        kept = model["main"](x, keep=True)
    figures = session.device_report()["devices"]["opencl:0"]
    assert (figures["copied_in"], figures["copied_out"]) == (1, 0)
    np.testing.assert_allclose(kept.numpy(), model(numbers(32, 32)), atol=1e-6)


def test_an_array_for_openvino_stays_in_the_hosts_memory(session: Any, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx.save(network(32, 1), tmp_path / "two.onnx")
    model = session.load_module(tmp_path / "two.onnx", device="openvino:CPU")
    x = session.array(numbers(32, 32), device="openvino:CPU")
    assert x.device == "cpu:0"
    whole = graph.build(graph.split(network(32, 1), []))
    np.testing.assert_allclose(model(x), whole(numbers(32, 32)), atol=1e-4)
    assert session.device_report()["devices"]["openvino:CPU"]["calls"] == 2  # the array, and the call


def test_a_chip_without_memory_fails_one_call_and_the_rest_go_on(session: Any, library: Path) -> None:
    model = session.load_module(library)
    frames = [model["main"].submit(numbers(32, 32, seed=number)) for number in range(4)]
    quarter = np.zeros(1 << 26, "float32")  # of its memory
    with pytest.raises(RemoteError, match=r"opencl:0 has no room for an array of float32 \[67108864\]"):
        [session.array(quarter, device="opencl:0") for _ in range(5)]
    assert [future.result(60).shape for future in frames] == [(32, 32)] * 4
    assert model(numbers(32, 32)).shape == (32, 32)


def test_a_wrong_kernel_fails_its_own_call(session: Any, library: Path, opencl_programs: Programs) -> None:
    model, wrong = session.load_module(library), session.load_module(opencl_programs.wrong)
    x, y = numbers(LENGTH), rpcsys.empty(LENGTH)
    for _ in range(2):
        frame = model["main"].submit(numbers(32, 32))
        with pytest.raises(RemoteError, match=r"kernel addone_kernel on opencl:0 does not build") as caught:
            wrong["addone"](x, y)
        assert "\n" not in str(caught.value)
        assert frame.result(60).shape == (32, 32)
    np.testing.assert_array_equal(session.load_module(opencl_programs.addone)["addone"](x, y), x + 1)


def test_the_schedules_for_a_cpu_are_vectors_with_the_same_outputs(session: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weights = {
        "c": rng.standard_normal((16, 2, 3, 3), np.float32),
        "b": rng.standard_normal(16, np.float32),
        "d": rng.standard_normal((16 * 5 * 5, 24), np.float32),
    }
    nodes = [
        node("Conv", "a/x c b", "conv", pads=[1, 1, 1, 1], strides=[2, 2], group=2),
        node("Relu", "conv", "relu"),
        node("Flatten", "relu", "flat"),
        node("MatMul", "flat d", "y"),
    ]
    model = make(nodes, values("a/x", shape=(1, 4, 9, 9)), values("y", shape=(1, 24)), weights=weights)
    stages = graph.split(model, [])
    x = numbers(1, 4, 9, 9)
    path = tmp_path / "cpu.so"
    cpu = graph.Tvm({"kind": "opencl", "device": "cpu", "host": {"kind": "llvm"}})
    module.export_library(graph.build(stages, cpu), path)
    assert b"vload8" in path.read_bytes()
    expected = graph.build(stages, "onnxruntime")(x)
    np.testing.assert_allclose(session.load_module(str(path))(x), expected, rtol=1e-4, atol=1e-4)


def test_a_killed_session_in_mid_pipeline_leaves_a_clean_board(lab: tuple[Daemon, Daemon], library: Path) -> None:
    where = lab[0].where
    with rpcsys.connect_tracker(where) as tracker:
        with tracker.request("board", wait_timeout=30) as session:
            model = session.load_module(library)
            model(numbers(32, 32))
            frames = [model["main"].submit(numbers(32, 32, seed=number)) for number in range(40)]
            frames[0].result(60)
            os.kill(session.info["pid"], signal.SIGKILL)
            failed = [future.exception(60) for future in frames]
            assert isinstance(failed[-1], SessionLost)
            assert all(error is None or isinstance(error, SessionLost) for error in failed)
        with tracker.request("board", wait_timeout=30) as session:
            assert session.memory()["objects"] == 0
            assert session.load_module(library)(numbers(32, 32)).shape == (32, 32)


def test_a_model_runs_on_the_chip_that_the_command_names(
    lab: tuple[Daemon, Daemon], library: Path, tmp_path: Path
) -> None:
    stages = graph.split(network(32, 1), ["middle"])
    module.export_library(graph.build(stages["stage1"], OPENCL), tmp_path / "one.so")
    command = [sys.executable, "-m", "rpcsys", "run", "--key", "board", "--tracker", lab[0].where, "--repeat", "2"]
    for device, status, said in (
        ("opencl:0", 0, "time:   median"),
        ("cpu:0", 1, "is compiled for opencl, not for cpu:0"),
        ("cuda:0", 1, "is compiled for opencl, not for cuda:0"),
    ):
        run = [*command, "--device", device, str(tmp_path / "one.so")]
        done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done
        assert "Traceback" not in done.stderr


def test_a_deployed_graph_uses_both_chips(
    module_daemons: Any, opencl_library: Path, library: Path, tmp_path: Path
) -> None:
    flags = ("--devices", "opencl", "--load-library", str(opencl_library), "--deploy", str(tmp_path / "deployed"))
    deployed.put(tmp_path / "deployed", "two", library)
    server = module_daemons().server("edge", *flags)
    whole = graph.build(graph.split(network(32, 1), []))
    frames = [numbers(32, 32, seed=number) for number in range(20)]
    with rpcsys.connect(*server.address, serve="two") as served:
        futures = [served["main"].submit(frame) for frame in frames]
        for frame, future in zip(frames, futures, strict=True):
            np.testing.assert_allclose(future.result(60), whole(frame), atol=1e-4)
