"""The inputs, outputs and nodes of stages."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.errors import UsageError
from tests.graph.running import assert_same, make, names, node, numbers, ops, run, run_stages, values


def test_a_tensor_that_skips_a_stage_crosses_by_name() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Abs", "b", "c"), node("Add", "a c", "y")],
        values("x"),
        values("y"),
    )
    stages = graph.split(model, [1, 2, 3])
    assert names(stages[3].inputs) == ["a", "c"]
    assert stages[3].needs == ("stage0", "stage2")
    assert {c.tensor.name: (c.source, c.targets) for c in stages.crossings()} == {
        "x": ("", ("stage0",)),
        "a": ("stage0", ("stage1", "stage3")),
        "b": ("stage1", ("stage2",)),
        "c": ("stage2", ("stage3",)),
        "y": ("stage3", ("",)),
    }
    assert [c.tensor.nbytes for c in stages.crossings()] == [24] * 5


def test_branches_do_not_need_each_other() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Abs", "a", "c"), node("Add", "b c", "y")],
        values("x"),
        values("y"),
    )
    stages = graph.split(model, ["a", "b", 3])
    assert [stage.needs for stage in stages] == [(), ("stage0",), ("stage0",), ("stage1", "stage2")]


def test_constants_are_computed_where_they_are_needed() -> None:
    """Both stages use the same constant part, and neither sends it."""
    model = make(
        [node("Exp", "w", "k"), node("Add", "x k", "a"), node("Mul", "a k", "y")],
        values("x"),
        values("y"),
        weights={"w": numbers(2, 3)},
    )
    stages = graph.split(model, "a")
    assert [ops(stage) for stage in stages] == [["Exp", "Add"], ["Exp", "Mul"]]
    assert names(stages[1].inputs) == ["a"]
    assert all("w" in stage.model.graph.initializers for stage in stages)
    x = numbers(2, 3, seed=1)
    assert_same(run_stages(stages, {"x": x}), run(model, {"x": x}))


def test_a_stage_of_constants_alone_computes_them() -> None:
    model = make(
        [node("Exp", "w", "k"), node("Add", "x k", "y")], values("x"), values("y"), weights={"w": numbers(2, 3)}
    )
    stages = graph.split(model, 1)
    assert [ops(stage) for stage in stages] == [["Exp"], ["Add"]]
    assert names(stages[1].inputs) == ["x", "k"]
    x = numbers(2, 3, seed=1)
    assert_same(run_stages(stages, {"x": x}), run(model, {"x": x}))


def test_outputs_may_be_inputs_weights_constants_and_inner_tensors() -> None:
    model = make(
        [node("Exp", "w", "k"), node("Relu", "x", "a"), node("Neg", "a", "y")],
        values("x"),
        values("x", "w", "k", "a", "y"),
        weights={"w": numbers(2, 3)},
    )
    stages = graph.split(model, 2)
    assert stages.source("x") == ""
    x = numbers(2, 3, seed=1)
    assert_same(run_stages(stages, {"x": x}, "DISABLE_ALL"), run(model, {"x": x}, "DISABLE_ALL"))


def test_an_input_with_a_default_can_still_be_given() -> None:
    model = make(
        [node("Add", "x d", "a"), node("Mul", "a d", "y")], values("x", "d"), values("y"), weights={"d": numbers(2, 3)}
    )
    stages = graph.split(model, 1)
    assert [[(i.name, i.required) for i in stage.inputs] for stage in stages] == [
        [("x", True), ("d", False)],
        [("d", False), ("a", True)],
    ]
    feeds = {"x": numbers(2, 3, seed=1), "d": numbers(2, 3, seed=2)}
    assert_same(run_stages(stages, feeds), run(model, feeds))


def test_weights_of_an_old_model_are_no_inputs() -> None:
    model = make(
        [node("Add", "x w", "a"), node("Mul", "a w", "y")],
        values("x", "w"),
        values("y"),
        weights={"w": numbers(2, 3)},
        ir_version=3,
    )
    assert names(graph.split(model, 1).inputs) == ["x"]


def test_functions_go_with_those_that_call_them() -> None:
    twice = helper.make_function("own", "Twice", ["v"], ["w"], [node("Add", "v v", "w")], [helper.make_opsetid("", 17)])
    four = helper.make_function(
        "own",
        "Four",
        ["v"],
        ["w"],
        [node("Twice", "v", "u", domain="own"), node("Twice", "u", "w", domain="own")],
        [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
    )
    model = make(
        [node("Relu", "x", "a"), node("Four", "a", "b", domain="own"), node("Neg", "b", "y")],
        values("x"),
        values("y"),
        functions=[twice, four],
        domains={"own": 1},
    )
    stages = graph.split(model, [1, 2])
    assert [len(stage.model.functions) for stage in stages] == [0, 2, 0]
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def classifier(*, behind: bool = False) -> onnx.ModelProto:
    """Ends in ZipMap: one dict for each row; with ``behind``, the number of rows is an output, too."""
    nodes = [
        node("Relu", "x", "r"),
        node("Softmax", "r", "p"),
        node("ZipMap", "p", "y", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    rows = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    outputs = [helper.make_value_info("y", helper.make_sequence_type_proto(rows))]
    if behind:
        nodes.append(node("SequenceLength", "y", "n"))
        outputs += values("n", shape=(), dtype=TensorProto.INT64)
    return make(nodes, values("x"), outputs, domains={"ai.onnx.ml": 3})


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("cuts", [1, 2, "p", [1, 2]])
def test_a_model_that_ends_in_maps(cuts: Any, exact: bool) -> None:
    stages = graph.split(classifier(), cuts, exact=exact)
    assert stages[-1].outputs[0].text() == "seq(map(strings,tensor(float32)))"
    feeds = {"x": numbers(2, 3)}
    assert run_stages(stages, feeds) == run(classifier(), feeds)


def test_no_map_crosses() -> None:
    with pytest.raises(UsageError, match=r"no map crosses between stages, and 'y' is seq.*export it with zipmap=False"):
        graph.split(classifier(behind=True), 3)


@pytest.mark.slow
def test_a_classifier_of_scikit_learn() -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    linear_model = pytest.importorskip("sklearn.linear_model")
    known = np.vstack([numbers(20, 4) + 2 * i for i in range(3)])
    fitted = linear_model.LogisticRegression().fit(known, np.repeat(["a", "b", "c"], 20))
    model = skl2onnx.to_onnx(fitted, known[:1])
    whole = run(model, {"X": known})
    made = []
    for cut in range(1, len(model.graph.node)):
        with contextlib.suppress(UsageError):  # constants alone are no stage
            made.append(run_stages(graph.split(model, cut, exact=True), {"X": known}))
    assert made
    assert all(np.array_equal(each[name], whole[name]) for each in made for name in whole)
