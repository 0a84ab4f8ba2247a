"""Cuts found by measuring, with real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.errors import ModelError, UsageError
from tests.graph.running import assert_same, chain, make, node, numbers, run, run_stages, values

Quick = Callable[..., graph.Plan]


@pytest.fixture
def auto_cuts() -> Quick:
    """`graph.auto_cuts` with minimal measuring; its expected times are meaningless."""

    def found(model: Any, over: Any, **options: Any) -> graph.Plan:
        return graph.auto_cuts(model, over, **{"measure_s": 0.001, "rounds": 2, **options})

    return found


def test_the_plan_is_a_division_of_the_model(auto_cuts: Quick, cpus: list[str]) -> None:
    model = chain(6)
    plan = auto_cuts(model, cpus)
    assert sum(stage.nodes for stage in plan.planned) == 6
    assert [stage.name for stage in plan.planned] == [stage.name for stage in plan.stages]
    assert all(stage.stage_s > 0 and stage.given == 24 for stage in plan.planned)
    feeds = {"x": numbers(2, 3)}
    assert_same(run_stages(graph.split(model, plan), feeds), run(model, feeds))
    with plan.pipeline() as pipeline:
        results = list(pipeline.run([feeds["x"]] * 5))
        told = plan.compare(pipeline.figures())
    assert_same({"y": results[-1]}, run(model, feeds))
    assert {stage.name for stage in told.stages} == {stage.name for stage in plan.stages}


def test_control_flow_sequences_and_strings_are_divided(auto_cuts: Quick, cpus: list[str]) -> None:
    then = helper.make_graph([node("Neg", "a", "t1"), node("Add", "t1 x", "t2")], "then", [], values("t2"))
    other = helper.make_graph([node("Relu", "a", "t3")], "else", [], values("t3"))
    nodes = [
        node("Tanh", "x", "a"),
        helper.make_node("If", ["flag"], ["b"], then_branch=then, else_branch=other),
        node("SequenceConstruct", "a b", "s"),
        node("SequenceAt", "s one", "c"),
        node("NonZero", "c", "n"),
        node("Cast", "n", "y", to=1),
        node("Identity", "words", "said"),
    ]
    inputs = [
        *values("x"),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("words", TensorProto.STRING, [2]),
    ]
    outputs = [*values("y", shape=(2, None)), helper.make_tensor_value_info("said", TensorProto.STRING, [2])]
    model = make(nodes, inputs, outputs, weights={"one": np.asarray(1)})
    feeds = {"x": numbers(2, 3), "flag": np.asarray(True), "words": np.array(["a", "b"], object)}
    plan = auto_cuts(model, cpus, inputs=feeds, exact=True, rounds=1)
    assert len(plan.stages) == 2
    assert plan.planned[0].taken <= 24 + 1 + 2
    assert_same(run_stages(plan.stages, feeds), run(model, feeds))


def test_fewer_nodes_than_devices_make_fewer_stages(auto_cuts: Quick, cpus: list[str]) -> None:
    plan = auto_cuts(chain(2), [*cpus, "cpu:2"])
    assert len(plan.stages) <= 2
    assert len(plan.unused) == 3 - len(plan.stages)
    assert len(auto_cuts(chain(1), cpus).stages) == 1


def test_free_extents_are_one_with_a_warning(auto_cuts: Quick, cpus: list[str]) -> None:
    nodes = [node("Neg", "x", "a"), node("Relu", "a", "y")]
    model = make(nodes, values("x", shape=("batch", 3)), values("y", shape=("batch", 3)))
    with pytest.warns(RuntimeWarning, match=r"x is float32\[batch, 3\]: free extents are taken as 1"):
        plan = auto_cuts(model, cpus)
    assert plan.planned[0].taken == 12
    assert plan.warnings
    plan = auto_cuts(model, cpus, inputs={"x": numbers(5, 3)})
    assert plan.planned[0].taken == 60
    assert not plan.warnings


def _constant() -> onnx.ModelProto:
    return make([node("Neg", "w", "y")], values("x"), values("y"), weights={"w": numbers(2, 3)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"goal": "beauty"}, "a goal is throughput or latency"),
        ({"encode": "gif"}, "'gif' is no encoding"),
        ({"rounds": 0}, "rounds is 1 or more"),
        ({"measure_s": 0}, "measure_s above 0"),
        ({"inputs": {"z": numbers(2, 3)}}, "no input 'z'; the model wants x"),
        ({"inputs": numbers(2, 3)}, "^inputs are given by name, such as {'x': array}, not as ndarray"),
        ({"inputs": [numbers(2, 3)]}, "^inputs are given by name, .* not as list"),
        ({"inputs": {3: 1, "z": 1}}, "no input 3; the model wants x"),
        ({"inputs": {}}, "none given for input 'x'"),
        ({"model": _constant()}, "nothing in the model depends on its inputs"),
        ({"model": b"none"}, "cannot be read as an ONNX model"),
        ({"over": ["gpu:0"]}, "'gpu:0' is no device"),
        ({"over": [1, None]}, "^1 is no device; devices are written"),
        ({"over": 1.5}, "^1.5 is no list of devices, nor a number of shares; devices are written"),
        ({"over": None}, "^None is no list of devices"),
    ],
)
def test_invalid_arguments_are_refused(auto_cuts: Quick, cpus: list[str], options: dict[str, Any], text: str) -> None:
    model, over = options.pop("model", chain()), options.pop("over", cpus)
    with pytest.raises(UsageError, match=text):
        auto_cuts(model, over, **options)


def test_a_model_that_onnxruntime_cannot_run_is_an_error(auto_cuts: Quick, cpus: list[str]) -> None:
    model = make([node("Nothing", "x", "y", domain="nowhere")], values("x"), values("y"), domains={"nowhere": 1})
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        auto_cuts(model, cpus)
    with pytest.raises(ModelError, match="does not run with these inputs"):
        auto_cuts(chain(), cpus, inputs={"x": numbers(7)})
