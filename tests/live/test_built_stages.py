"""Stages of one network on their targets: TVM's code on a board without Python packages, a server's own function, and
both in one library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rpcsys
from rpcsys import graph, module
from tests.graph.running import chain, make, node, numbers, run, values
from tests.live.daemons import Daemons

pytest.importorskip("tvm")


@pytest.fixture
def network() -> Any:
    """A convolution, a Tanh and a Neg."""
    weights = {"w": numbers(4, 3, 3, 3), "b": numbers(4)}
    nodes = [
        node("Conv", "image w b", "features", name="conv"),
        node("Tanh", "features", "bent", name="bend"),
        node("Neg", "bent", "y", name="tail"),
    ]
    return make(nodes, values("image", shape=(1, 3, 8, 8)), values("y", shape=(1, 4, 6, 6)), weights=weights)


FEEDS = {"image": numbers(1, 3, 8, 8, seed=5)}


def test_a_stage_compiled_by_tvm_runs_with_its_runtime_alone(network: Any, daemons: Daemons, tmp_path: Path) -> None:
    """The board has Python, libtvm_ffi and libtvm_runtime: no numpy, no onnxruntime, no tvm."""
    stages = graph.split(network, ["tail"])
    module.export_library(graph.build(stages[0], "tvm"), tmp_path / "head.so")
    server = daemons.server("board", flavour="bare")
    with rpcsys.connect(*server.address, key="board") as session:
        assert not any(session.info["capabilities"][name] for name in ("numpy", "onnxruntime"))
        model = session.load_module(tmp_path / "head.so")
        assert [value["name"] for value in model.inputs] == ["image"]
        made = model.run(FEEDS)
    expected = run(stages[0].model, FEEDS)
    np.testing.assert_allclose(made["bent"], expected["bent"], rtol=1e-5, atol=1e-6)


@pytest.fixture
def edge(daemons: Daemons, network: Any, tmp_path: Path) -> str:
    """Start a server with the network's last stage as its function ``edge.head``; its address."""
    path = tmp_path / "tail.onnx"
    graph.split(network, ["tail"])[1].save(path)
    server = daemons.server("edge", "--import", "tests.live.edge_functions", env={"EDGE_MODEL": str(path)})
    return server.where


def test_one_library_runs_onnxruntime_tvm_and_a_server(network: Any, edge: str, tmp_path: Path) -> None:
    stages = graph.split(network, ["bend", "tail"])
    targets = {"stage1": "tvm", "stage2": graph.Remote("edge.head", key="edge", address=edge)}
    module.export_library(graph.build(stages, targets), tmp_path / "model.so")
    with module.load_module(tmp_path / "model.so") as loaded:
        kinds = [part.kind for part in module.walk(loaded)]
        assert {"rpcsys.onnx", "rpcsys.library", "rpcsys.remote"} <= set(kinds)
        np.testing.assert_allclose(loaded.run(FEEDS)["y"], run(network, FEEDS)["y"], rtol=1e-5, atol=1e-6)


def test_a_stage_compiled_for_another_machine_is_refused(tmp_path: Path) -> None:
    target = graph.Tvm({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, toolchain="aarch64-linux-gnu")
    built = graph.build(graph.split(chain(), [])[0], target)
    module.export_library(built, tmp_path / "model.so", toolchain="aarch64-linux-gnu")
    told = module.inspect(tmp_path / "model.so")
    assert "aarch64" in str(told)
    assert "rpcsys.library" in str(told)
    with pytest.raises(rpcsys.errors.ModelError, match="is built for aarch64"):
        module.load_module(tmp_path / "model.so")
