from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from rpcsys import graph
from rpcsys.errors import ModelError, UsageError
from rpcsys.graph import samples
from rpcsys.module import Module, export_library, load_module, walk
from tests.graph.running import assert_same, make, node, numbers, run, values


def diamond() -> onnx.ModelProto:
    """Two branches that share the weight ``w`` (large enough to be kept apart), and a tail."""
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
    """Equal in names and order, and in values as far as two runtimes agree."""
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


def test_an_exact_stage_is_run_as_it_is() -> None:
    first, second = graph.split(diamond(), 2, exact=True)
    assert graph.build(first).model.options["level"] == "basic"  # type: ignore[attr-defined]
    assert "level" not in graph.build(graph.split(diamond(), 2)[0]).model.options  # type: ignore[attr-defined]
    for target in ("reference", "tvm"):
        with pytest.raises(UsageError, match=r"stage1 is exact: .* in onnxruntime alone; split without exact=True"):
            graph.build(second, target)


def test_cpus_are_those_of_the_session_and_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("target", "said"),
    [
        (graph.OnnxRuntime(cpus=[4000]), "is for CPUs that this process may not use: 4000"),
        (
            graph.OnnxRuntime(provider="MoonExecutionProvider"),
            "is for MoonExecutionProvider, and onnxruntime here has CPU|Azure",
        ),
    ],
)
def test_what_this_machine_lacks_is_named(target: graph.OnnxRuntime, said: str) -> None:
    built = graph.build(graph.split(diamond(), [])[0], target)
    with pytest.raises(ModelError, match=said):
        built.run(FEEDS)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("vhdl", "no target is called 'vhdl'; there are onnxruntime, reference, tvm, tvm:TARGET"),
        ("tvm:{", "is no target of TVM"),
        ({"stage0": "tvm"}, "one stage has one target"),
        (graph.OnnxRuntime(threads=0), "threads is a number from 1"),
        (graph.Remote("f"), "by a tracker or by an address"),
    ],
)
def test_targets_that_cannot_be_meant(target: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        graph.build(graph.split(diamond(), [])[0], target)


def test_all_stages_are_one_module_that_exports_as_one_library(tmp_path: Path) -> None:
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
    assert [module.runtime for module in built.imports] == ["onnxruntime", "reference", "onnxruntime"]  # type: ignore[attr-defined]
    foreign = graph.annotate(diamond(), {0: ["stem"], 1: ["left"]}, targets={1: "edge"})
    with pytest.raises(UsageError, match="no target is called 'edge'"):
        graph.build(graph.partition(foreign, graph.annotated()))


def test_a_module_of_another_compiler_takes_a_region() -> None:
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


def test_tvm_compiles_a_stage_and_takes_its_place_in_the_pipeline(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    stages = graph.partition(diamond(), ["left", "join"], several=True)
    assert [stage.name for stage in stages] == ["rest0", "region0"]
    built = graph.build(stages, {"region0": "tvm"})
    same(built, diamond())
    export_library(built, tmp_path / "model.so")
    with load_module(tmp_path / "model.so") as loaded:
        assert "rpcsys.library" in [module.kind for module in walk(loaded)]
        same(loaded, diamond())
