"""The values that nodes take, those that bodies capture, and the nodes that have work to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from tests.graph.running import assert_same, make, names, node, numbers, ops, run, run_stages, values


def test_an_unsorted_model_is_sorted() -> None:
    """As onnxruntime does, with values that only a body takes; a cut counts nodes in the new order."""
    then, other = (helper.make_graph([node(op, "a", "b")], op, [], values("b")) for op in ("Neg", "Abs"))
    branches = helper.make_node("If", ["flag"], ["c"], then_branch=then, else_branch=other)
    nodes = [node("Relu", "c", "y"), branches, node("Neg", "x", "a"), node("Sin", "x", "z")]
    model = make(nodes, [*values("x"), *values("flag", shape=(), dtype=TensorProto.BOOL)], values("y", "z"))
    feeds = {"x": numbers(2, 3), "flag": np.asarray(True)}
    for exact in (False, True):
        stages = graph.split(model, 2, exact=exact)
        assert [ops(stage) for stage in stages] == [["Neg", "If"], ["Relu", "Sin"]]
        assert_same(run_stages(stages, feeds), run(model, feeds))
    assert [each.op_type for each in model.graph.node] == ["Relu", "If", "Neg", "Sin"]


def test_random_numbers_are_drawn_once() -> None:
    model = make(
        [node("RandomNormal", "", "r", shape=[2, 3]), node("Add", "x r", "a"), node("Sub", "a r", "y")],
        values("x"),
        values("y"),
    )
    stages = graph.split(model, "a")
    assert ops(stages[1]) == ["Sub"]
    x = numbers(2, 3)
    np.testing.assert_allclose(run_stages(stages, {"x": x})["y"], x, atol=1e-6)


def test_nodes_without_an_output_are_left_out() -> None:
    model = make([node("Relu", "x", "a"), node("Abs", "x", "dead"), node("Neg", "a", "y")], values("x"), values("y"))
    assert [ops(stage) for stage in graph.split(model, 1)] == [["Relu"], ["Neg"]]


def branches() -> onnx.ModelProto:
    """An If whose branches capture tensors from outside, one of them through a second body."""
    inner = helper.make_graph([node("Mul", "b b", "squared")], "inner", [], values("squared"))
    other = helper.make_graph([node("Neg", "w", "negative")], "other", [], values("negative"))
    then = helper.make_graph(
        [helper.make_node("If", ["flag"], ["chosen"], then_branch=inner, else_branch=other)],
        "then",
        [],
        values("chosen"),
    )
    otherwise = helper.make_graph([node("Add", "a w", "sum")], "otherwise", [], values("sum"))
    return make(
        [
            node("Relu", "x", "a"),
            node("Neg", "x", "b"),
            helper.make_node("If", ["flag"], ["picked"], name="if", then_branch=then, else_branch=otherwise),
            node("Abs", "picked", "y"),
        ],
        [*values("x"), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        values("y"),
        weights={"w": numbers(2, 3, seed=9)},
    )


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("cuts", ["if", [1, "if"], ["picked"], [1, 2, 3]])
def test_tensors_captured_by_a_body_cross(flag: bool, cuts: Any) -> None:
    model = branches()
    feeds = {"x": numbers(2, 3), "flag": np.asarray(flag)}
    stages = graph.split(model, cuts)
    assert_same(run_stages(stages, feeds), run(model, feeds))


def test_a_loop_that_captures_and_scans() -> None:
    body = helper.make_graph(
        [node("Add", "sum a", "next"), node("Identity", "going", "on"), node("Mul", "next w", "seen")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            *values("sum"),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), *values("next", "seen")],
    )
    model = make(
        [
            node("Relu", "x", "a"),
            helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body),
            node("ReduceSum", "all", "y", keepdims=0),
            node("Neg", "last", "z"),
        ],
        values("x"),
        [*values("z"), *values("y", shape=())],
        weights={"n": np.asarray(3), "w": numbers(2, 3, seed=2)},
    )
    stages = graph.split(model, [1, 2])
    assert names(stages[1].inputs) == ["x", "a"]
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))
