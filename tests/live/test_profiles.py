"""Profiles of models on a board: which operator takes the time, by onnxruntime, TVM and OpenVINO; the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

import rpcsys
from rpcsys import aio
from rpcsys.cli.commands import run_group
from rpcsys.client.profiles import OperatorProfile
from rpcsys.errors import ProfileNotSupported
from rpcsys.module import export_library, load_module
from tests.client.test_profiles import check_trace
from tests.graph.running import make, node, values
from tests.live.artefacts import Artefacts
from tests.live.daemons import Daemon, Daemons
from tests.module import runtime_models

SIZE = 384
X = np.random.default_rng(1).standard_normal((SIZE, SIZE), "float32")
W = np.random.default_rng(2).standard_normal((SIZE, SIZE), "float32")


@pytest.fixture(scope="module")
def lab(module_daemons: Callable[..., Daemons]) -> tuple[Daemon, Daemon]:
    daemons = module_daemons()
    tracker = daemons.tracker()
    return tracker, daemons.server("board", "--name", "board-1", "--slots", "2", tracker=tracker, offers=2)


@pytest.fixture(scope="module")
def session(lab: tuple[Daemon, Daemon]) -> Iterator[rpcsys.Session]:
    with rpcsys.connect_tracker(lab[0].where) as tracker, tracker.request("board") as session:
        yield session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Relu, and two MatMul around it: the first one is the larger."""
    nodes = [node("MatMul", "x w", "a", name="large"), node("Relu", "a", "b"), node("MatMul", "b v", "y", name="small")]
    weights = {"w": np.tile(W, 4), "v": np.ones((4 * SIZE, 8), "float32")}
    made = make(nodes, values("x", shape=("n", SIZE)), values("y", shape=("n", 8)), weights=weights)
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    onnx.save(made, path)
    return path


def check(found: OperatorProfile, dominant: str, runs: int) -> None:
    """Assert that the operators take most of the time, and not more than there is; ``dominant`` takes most of it."""
    assert len(found.calls_s) == runs
    assert 0.3 < sum(row.share for row in found.rows) < 1.1
    assert dominant in (found.rows[0].name, found.rows[0].type)
    assert found.rows[0].share > 0.25
    assert 0 < found.plain_s < 5
    check_trace(json.loads(json.dumps(found.trace())), found)


def test_onnxruntime(session: rpcsys.Session, model: Path, tmp_path: Path) -> None:
    loaded = session.load_module(model, threads=1)
    before = session.listdir()
    found = loaded.profile(X, runs=5, trace=str(tmp_path / "trace.json"))
    check(found, "large", 5)
    assert {row.provider for row in found.rows} == {"CPU"}
    assert found.by_type()[0].type == "MatMul"
    assert json.loads((tmp_path / "trace.json").read_text()) == json.loads(json.dumps(found.trace()))
    assert session.listdir() == before
    export_library(load_module(model), tmp_path / "model.so")
    check(session.load_module(tmp_path / "model.so", threads=1).profile(X, runs=3), "large", 3)


def test_openvino(session: rpcsys.Session, model: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    openvino.save_model(openvino.Core().read_model(model), tmp_path / "model.xml", compress_to_fp16=False)
    for path, how in ((tmp_path / "model.xml", {}), (model, {"device": "openvino:CPU"})):
        found = session.load_module(path, threads=1, **how).profile(X, runs=5)
        check(found, "FullyConnected", 5)
        assert found.runtime == "OpenVINO"
        assert "MatMul" not in {row.type for row in found.rows}  # its own operators, not the model's


def test_a_relax_program(session: rpcsys.Session, lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    tvm = pytest.importorskip("tvm")
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(W)))
            y = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(y)
    tvm.compile(builder.get(), target="llvm").export_library(str(tmp_path / "relax.so"))
    program = session.load_module(tmp_path / "relax.so")
    found = program.profile(X, runs=2, warm_up=0)
    check(found, "matmul", 2)
    kernels = {row.name: row for row in found.rows if not row.name.startswith("vm.builtin.")}
    assert set(kernels) == {"matmul", "relu"}
    assert kernels["relu"].shapes == f"float32[{SIZE},{SIZE}] float32[{SIZE},{SIZE}]"
    assert kernels["relu"].provider == "cpu:0"
    np.testing.assert_allclose(program(X), np.maximum(X @ W, 0), rtol=1e-2, atol=1e-2)
    relax.build(builder.get(), "llvm", exec_mode="compiled").export_library(str(tmp_path / "compiled.so"))
    with rpcsys.connect_tracker(lab[0].where) as tracker, tracker.request("board") as fresh:  # without TVM's runtime
        compiled = fresh.load_module(tmp_path / "compiled.so")
        np.testing.assert_array_equal(compiled(X), program(X))
        with pytest.raises(ProfileNotSupported, match="compile it with exec_mode='bytecode'"):
            compiled.profile(X)


def test_what_tells_nothing_says_so_and_the_session_goes_on(
    session: rpcsys.Session, artefacts: Artefacts, tmp_path: Path
) -> None:
    for suffix, package, said in (
        (".tflite", "ai_edge_litert", "LiteRT's Python tells no times of operators; its benchmark_model does"),
        (".vmfb", "iree.runtime", "IREE's Python tells no times of operators; its iree-run-module does"),
    ):
        pytest.importorskip(package)
        loaded = session.load_module(runtime_models.written("perceptron", suffix, tmp_path))
        with pytest.raises(ProfileNotSupported, match=rf"{said}[^\n]*\Z"):
            loaded.profile(*runtime_models.given("perceptron"))
    pytest.importorskip("tvm")
    with pytest.raises(ProfileNotSupported, match="'addone' is native code, which tells no times"):
        session.load_module(artefacts.addone).profile(X, X, name="addone")
    assert session.get_function("testing.echo")(1) == 1


def test_in_asyncio(lab: tuple[Daemon, Daemon], model: Path) -> None:
    async def main() -> OperatorProfile:
        async with await aio.connect_tracker(lab[0].where) as tracker, await tracker.request("board") as session:
            return await (await session.load_module(model, threads=1)).profile(X, runs=2)

    check(asyncio.run(main()), "large", 2)


def test_the_command(
    lab: tuple[Daemon, Daemon], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "inputs.npz", x=X)
    words = ["profile", str(model), "--key", "board", "--tracker", lab[0].where, "--threads", "1", "--runs", "3"]
    trace = tmp_path / "trace.json"
    assert run_group([*words, str(tmp_path / "inputs.npz"), "--top", "1", "--trace", str(trace)]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["  loading model.onnx", "  profiling model.onnx"]
    out = printed.out.splitlines()
    assert out[0] == "model.onnx on board-1"
    assert (out[1].split()[0], out[2].split()[:2]) == ("OPERATOR", ["large", "MatMul"])
    assert out[3].startswith("(2 more: ")
    assert out[4].startswith("outside operators: ")
    assert "in onnxruntime, mean of 3" in out[5]
    assert out[6] == f"wrote {trace}: open it at https://ui.perfetto.dev"
    assert json.loads(trace.read_text())["traceEvents"]
    assert run_group([*words, "--by", "type", "--json"]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (said["device"], said["runtime"], len(said["operators"])) == ("board-1", "onnxruntime", 3)
    assert run_group([*words, "--trace", "/dev/full"]) == 2
    table, error = capsys.readouterr()
    assert table.startswith("model.onnx on board-1\nOPERATOR")
    assert "/dev/full cannot be written: No space left on device" in error
