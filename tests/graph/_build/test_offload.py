"""Both sides of a model whose part runs on a server: built, exported, and run without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import graph, module
from rpcsys.errors import UsageError
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.graph.running import make, node, numbers, run, values

NOWHERE = {"function": "head", "address": "127.0.0.1:1"}
FEEDS = {"image": numbers(1, 3, 8, 8)}


@pytest.fixture
def network() -> Any:
    """A convolution, a Tanh and a Neg."""
    weights = {"w": numbers(4, 3, 3, 3, seed=1), "b": numbers(4, seed=2)}
    nodes = [
        node("Conv", "image w b", "features", name="conv"),
        node("Tanh", "features", "bent", name="bend"),
        node("Neg", "bent", "y", name="tail"),
    ]
    return make(nodes, values("image", shape=(1, 3, 8, 8)), values("y", shape=(1, 4, 6, 6)), weights=weights)


def remote_of(device: Any) -> RemoteFunctionModule:
    (found,) = (part for part in module.walk(device) if isinstance(part, RemoteFunctionModule))
    return found


def test_the_device_calls_and_the_part_is_the_stage(network: Any) -> None:
    stages = graph.partition(network, ["bend"])
    both = graph.offload(stages, {"region": graph.Remote(**NOWHERE, encode={"features": "int8", "bent": "zlib"})})
    far = remote_of(both.device)
    assert far.encode == {"features": "int8", "bent": "zlib"}
    assert far.imports == ()
    assert list(both.parts) == ["region"]
    made = both.parts["region"].run({"features": np.ones((1, 4, 6, 6), "f4")})
    np.testing.assert_allclose(made["bent"], np.tanh(1), rtol=1e-6)


def test_weights_of_the_part_are_not_on_the_device(network: Any, tmp_path: Path) -> None:
    stages = graph.split(network, ["bend"])
    both = graph.offload(stages, {"stage0": graph.Remote(**NOWHERE)})
    module.export_library(both.device, tmp_path / "device.so")
    module.export_library(both.parts["stage0"], tmp_path / "part.so")
    weight = numbers(4, 3, 3, 3, seed=1).tobytes()
    assert weight in (tmp_path / "part.so").read_bytes()
    assert weight not in (tmp_path / "device.so").read_bytes()


def test_the_fallback_is_exported_with_the_device(network: Any, tmp_path: Path) -> None:
    stages = graph.split(network, ["bend", "tail"])
    remote = graph.Remote(**NOWHERE, encode="int8", fallback="onnxruntime")
    both = graph.offload(stages, {"stage1": remote})
    module.export_library(both.device, tmp_path / "device.so")
    with module.load_module(tmp_path / "device.so") as loaded:
        np.testing.assert_allclose(loaded.run(FEEDS)["y"], run(network, FEEDS)["y"], atol=1e-5)
        assert remote_of(loaded).figures().here == 1


def test_a_fallback_shares_weights_with_the_stages_here() -> None:
    weight = numbers(64, 64)
    nodes = [node("MatMul", "x w", "h", name="a"), node("MatMul", "h w", "y", name="b")]
    twice = make(nodes, values("x", shape=(1, 64)), values("y", shape=(1, 64)), weights={"w": weight})
    stages = graph.split(twice, ["b"])
    device = graph.build(stages, {"stage1": graph.Remote(**NOWHERE, fallback="onnxruntime")})
    assert [part.kind for part in module.walk(device)].count("rpcsys.params") == 1
    x = numbers(1, 64, seed=4)
    np.testing.assert_allclose(device(x), x @ weight @ weight, rtol=1e-4)


def test_pairs_of_functions_travel_with_both_sides(network: Any, tmp_path: Path) -> None:
    pair = (lambda array: array.astype("f2"), lambda array: array.astype("f4"))
    stages = graph.split(network, ["bend", "tail"])
    remote = graph.Remote(**NOWHERE, encode={"features": pair, "bent": pair}, fallback="onnxruntime")
    both = graph.offload(stages, {"stage1": remote})
    for name, side in {"device": both.device, "part": both.parts["stage1"]}.items():
        module.export_library(side, tmp_path / f"{name}.so")
    with module.load_module(tmp_path / "part.so", allow_pickle=True) as part:
        made = part(np.ones((1, 4, 6, 6), "f2"))
        assert made.dtype == "f2"
    with module.load_module(tmp_path / "device.so", allow_pickle=True) as device:
        np.testing.assert_allclose(device.run(FEEDS)["y"], run(network, FEEDS)["y"], atol=1e-2)


def test_an_exact_model_has_an_exact_fallback(network: Any) -> None:
    stages = graph.split(network, ["bend"], exact=True)
    device = graph.build(stages, {"stage1": graph.Remote(**NOWHERE, fallback="onnxruntime")})
    np.testing.assert_array_equal(device.run(FEEDS)["y"], run(network, FEEDS)["y"])


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ({}, "no stage is for a server"),
        ({"stage7": graph.Remote(**NOWHERE)}, "no stage 'stage7'"),
        ({"stage1": graph.Remote(**NOWHERE, encode={"z": "int8"})}, "no tensor 'z'"),
        ({"stage1": graph.Remote(**NOWHERE, fallback="vhdl")}, "no target is called 'vhdl'"),
        ({"stage1": graph.Remote(serve="head")}, "by a tracker or by an address"),
    ],
)
def test_what_cannot_be_meant(network: Any, targets: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        graph.offload(graph.split(network, ["bend"]), targets)
