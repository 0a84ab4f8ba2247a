"""Stages built into modules; both sides of an offloaded model; a graph from its JSON, its library and its weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rpcsys import graph, module
from rpcsys.errors import ModelError, UsageError
from rpcsys.graph import samples
from rpcsys.module import Module, export_library, load_module, walk
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.graph.running import assert_same, chain, make, node, numbers, run, values
from tests.native import compiled


def diamond() -> onnx.ModelProto:
    """Two branches that share the weight ``w`` (large enough to be separated), and a tail."""
    shape = (16, 32)
    return make(
        [
            node("Add", "x w", "a", name="stem"),
            node("Mul", "a w", "b", name="left"),
            node("Tanh", "a", "c", name="right"),
            node("Sub", "b c", "y", name="join"),
        ],
        values("x", shape=shape),
        values("y", "c", shape=shape),
        weights={"w": numbers(*shape)},
    )


FEEDS = {"x": numbers(16, 32, seed=1)}


def same(module: Module, model: onnx.ModelProto) -> None:
    """Equal names and order, and values that two runtimes agree on."""
    got, expected = module.run(FEEDS), run(model, FEEDS)
    assert list(got) == list(expected)
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["onnxruntime", "reference", graph.OnnxRuntime(threads=1), graph.Reference()])
def test_a_stage_is_built_for_its_target(target: Any) -> None:
    (stage,) = graph.split(diamond(), [])
    built = graph.build(stage, target)
    assert built.kind == "rpcsys.onnx"
    assert built.inputs == [{"name": "x", "dtype": "float32", "shape": [16, 32]}]
    same(built, diamond())
    assert built.runtime == ("reference" if "eference" in str(target) else "onnxruntime")  # type: ignore[attr-defined]


def test_an_exact_stage_runs_as_it_is() -> None:
    first, second = graph.split(diamond(), 2, exact=True)
    assert graph.build(first).model.options["level"] == "off"  # type: ignore[attr-defined]
    assert "level" not in graph.build(graph.split(diamond(), 2)[0]).model.options  # type: ignore[attr-defined]
    for target in ("reference", "tvm"):
        with pytest.raises(UsageError, match=r"stage1 is exact: .* in onnxruntime alone; split without exact=True"):
            graph.build(second, target)


def test_session_and_calls_are_bound_to_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    built = graph.build(graph.split(diamond(), [])[0], graph.OnnxRuntime(cpus=[cpu]))
    seen = []
    real = onnxruntime.InferenceSession.run

    def spied(self: Any, *args: Any) -> Any:
        seen.append(os.sched_getaffinity(0))
        return real(self, *args)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", spied)
    built.run(FEEDS)
    assert seen == [{cpu}]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (graph.OnnxRuntime(cpus=[4000]), "is for CPUs that this process may not use: 4000"),
        (
            graph.OnnxRuntime(provider="MoonExecutionProvider"),
            "is for MoonExecutionProvider, and onnxruntime here has CPU|Azure",
        ),
    ],
)
def test_the_error_names_what_this_machine_lacks(target: graph.OnnxRuntime, message: str) -> None:
    built = graph.build(graph.split(diamond(), [])[0], target)
    with pytest.raises(ModelError, match=message):
        built.run(FEEDS)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("vhdl", "no target is called 'vhdl'; there are onnxruntime, reference, tvm, tvm:TARGET"),
        ("tvm:{", "is no target of TVM"),
        ({"stage0": "tvm"}, "one stage has one target"),
        (graph.OnnxRuntime(threads=0), "threads is a number from 1"),
        (graph.Remote("f"), "by a tracker or by an address"),
    ],
)
def test_invalid_targets_are_refused(target: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph.build(graph.split(diamond(), [])[0], target)


def test_all_stages_are_one_module_and_one_library(tmp_path: Path) -> None:
    stages = graph.split(diamond(), ["left", "right", "join"])
    built = graph.build(stages, {"stage1": "reference", "stage3": graph.OnnxRuntime(threads=1)})
    same(built, diamond())
    export_library(built, tmp_path / "model.so")
    with load_module(tmp_path / "model.so") as loaded:
        assert [module.kind for module in walk(loaded)].count("rpcsys.params") == 1  # w, once
        assert [value["name"] for value in loaded.outputs] == ["y", "c"]
        same(loaded, diamond())


def test_targets_come_from_the_annotation() -> None:
    marked = graph.annotate(diamond(), {0: ["stem"], 1: ["left"], 2: ["join"]}, targets={1: "reference"})
    built = graph.build(graph.partition(marked, graph.annotated()))
    same(built, diamond())
    runtimes = [module.runtime for module in built.imports]  # type: ignore[attr-defined]
    assert runtimes == ["onnxruntime", "reference", "onnxruntime"]
    foreign = graph.annotate(diamond(), {0: ["stem"], 1: ["left"]}, targets={1: "edge"})
    with pytest.raises(UsageError, match="no target is called 'edge'"):
        graph.build(graph.partition(foreign, graph.annotated()))


def test_a_region_may_be_a_module_of_another_compiler() -> None:
    stages = graph.partition(diamond(), ["left"])

    def theirs(a: Any) -> Any:
        return np.asarray(a) * numbers(16, 32)

    built = graph.build(stages, {"region": Module("theirs", {"main": theirs})})
    same(built, diamond())
    with pytest.raises(UsageError, match="no stage 'head'; there are before, region, beside, after"):
        graph.build(stages, {"head": "reference"})


def test_an_input_with_a_default_keeps_it() -> None:
    model = make([node("Add", "x d", "y")], values("x", "d"), values("y"), weights={"d": numbers(2, 3)})
    built = graph.build(graph.split(model, []))
    x = numbers(2, 3, seed=3)
    assert_same(built.run({"x": x}), run(model, {"x": x, "d": numbers(2, 3)}))


def test_a_real_network_exact_as_one_library(tmp_path: Path) -> None:
    model = samples.light_model("squeezenet")
    feeds = {model.graph.input[0].name: numbers(1, 3, 224, 224)}
    export_library(graph.build(graph.split(model, [20, 40], exact=True)), tmp_path / "model.so")
    with load_module(tmp_path / "model.so") as loaded:
        assert_same(loaded.run(feeds), run(model, feeds))


def test_a_stage_compiled_by_tvm_runs_in_the_whole(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    stages = graph.partition(diamond(), ["left", "join"], several=True)
    assert [stage.name for stage in stages] == ["rest0", "region0"]
    built = graph.build(stages, {"region0": "tvm"})
    same(built, diamond())
    export_library(built, tmp_path / "model.so")
    with load_module(tmp_path / "model.so") as loaded:
        assert "rpcsys.library" in [module.kind for module in walk(loaded)]
        same(loaded, diamond())


NOWHERE = {"function": "head", "address": "127.0.0.1:1"}
IMAGE = {"image": numbers(1, 3, 8, 8)}


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


def test_the_device_calls_the_part_and_the_part_is_the_stage(network: Any) -> None:
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
        np.testing.assert_allclose(loaded.run(IMAGE)["y"], run(network, IMAGE)["y"], atol=1e-5)
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


def test_pairs_of_functions_are_exported_with_both_sides(network: Any, tmp_path: Path) -> None:
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
        np.testing.assert_allclose(device.run(IMAGE)["y"], run(network, IMAGE)["y"], atol=1e-2)


def test_an_exact_model_has_an_exact_fallback(network: Any) -> None:
    stages = graph.split(network, ["bend"], exact=True)
    device = graph.build(stages, {"stage1": graph.Remote(**NOWHERE, fallback="onnxruntime")})
    np.testing.assert_array_equal(device.run(IMAGE)["y"], run(network, IMAGE)["y"])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({}, "no stage is for a server"),
        (None, r"^targets are given by the names of stages, such as .*graph.Remote\(\.\.\.\).*, not as NoneType$"),
        ("stage1", "^targets are given by the names of stages, .*, not as str$"),
        ({"stage1": graph.Remote(**NOWHERE), "stage0": 3}, "^3 is no target; there are onnxruntime"),
        ({"stage7": graph.Remote(**NOWHERE)}, "no stage 'stage7'"),
        ({"stage1": graph.Remote(**NOWHERE, encode={"z": "int8"})}, "no tensor 'z'"),
        ({"stage1": graph.Remote(**NOWHERE, fallback="vhdl")}, "no target is called 'vhdl'"),
        ({"stage1": graph.Remote(serve="head")}, "by a tracker or by an address"),
    ],
)
def test_invalid_sides_are_refused(network: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph.offload(graph.split(network, ["bend"]), targets)


SOURCE = Path(__file__).parents[2] / "module" / "kinds" / "preprocess.c"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    native = module.library(compiled(SOURCE, tmp_path_factory.mktemp("native") / "preprocess.so"))
    stage = module.Stage("prepare", native, ["image", "mean"], ["x"], "prepare", [("float32", [1, 3, "h", "w"])])
    inputs = [{"name": "image", "dtype": "uint8", "shape": ["h", "w", 3]}]
    weights = module.params({"mean": np.array([0.1, 0.2, 0.3], "f4")})
    return module.graph([stage], inputs, [{"name": "x"}], params=weights)


def test_from_three_files(whole: Any, tmp_path: Path) -> None:
    whole.save_graph_json(tmp_path / "graph.json")
    module.export_library(whole.library, tmp_path / "stages.so")
    module.export_library(whole.params, tmp_path / "weights.so")
    image = np.arange(48, dtype="u1").reshape(4, 4, 3)
    for json in (tmp_path / "graph.json", (tmp_path / "graph.json").read_text()):
        made = graph.create(json, tmp_path / "stages.so", str(tmp_path / "weights.so"))
        assert np.array_equal(made(image), whole(image))
    darker = graph.create(tmp_path / "graph.json", whole.library, {"mean": np.ones(3, "f4")})
    assert darker(image).max() <= 0


def test_missing_parts_are_refused(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"graph\.json cannot be read: No such file"):
        graph.create(tmp_path / "graph.json", whole.library)
    whole.save_graph_json(tmp_path / "graph.json")
    with pytest.raises(UsageError, match=r"stages\.so: there is no such file"):
        graph.create(tmp_path / "graph.json", tmp_path / "stages.so")


def test_an_operator_that_tvm_lacks_is_named() -> None:
    pytest.importorskip("tvm")
    model = make([node("Secret", "x", "y", domain="nowhere")], values("x"), values("y"), domains={"nowhere": 1})
    with pytest.raises(UsageError, match=r"TVM cannot compile stage0: .*Secret"):
        graph.build(graph.split(model, [])[0], "tvm")


def test_building_without_tvm_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[tvm\]'"):
        graph.build(graph.split(chain(), [])[0], "tvm")
