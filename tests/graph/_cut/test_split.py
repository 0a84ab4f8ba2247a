from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.errors import ModelError, UsageError
from rpcsys.graph import samples
from tests.graph.networks import feeds_of, networks
from tests.graph.running import FLOAT, assert_same, chain, make, node, numbers, run, run_stages, values


def ops(stage: graph.Stage) -> list[str]:
    return [item.op_type for item in stage.model.graph]


def names(tensors: Any) -> list[str]:
    return [tensor.name for tensor in tensors]


# ------------------------------------------------------------------ where to cut


@pytest.mark.parametrize(
    ("cuts", "sizes"),
    [
        (2, [2, 2]),
        ([1, 3], [1, 2, 1]),
        ([3, 1], [1, 2, 1]),
        ("n1", [1, 3]),
        ("t1", [1, 3]),
        (["t1", "n2", 3], [1, 1, 1, 1]),
        ([("t1", "t2")], [2, 2]),
        ([], [4]),
    ],
)
def test_a_cut_is_a_node_that_begins_a_stage_or_a_tensor_that_ends_one(cuts: Any, sizes: list[int]) -> None:
    stages = graph.split(chain(), cuts)
    assert [len(ops(stage)) for stage in stages] == sizes
    assert [stage.name for stage in stages] == [f"stage{i}" for i in range(len(sizes))]
    x = numbers(2, 3)
    assert_same(run_stages(stages, {"x": x}), run(chain(), {"x": x}))


def test_a_tensor_ends_a_stage_that_makes_it_and_nothing_else() -> None:
    side = make(
        [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Abs", "a", "c"), node("Add", "b c", "y")],
        values("x"),
        values("y"),
    )
    stages = graph.split(side, "c")
    assert [ops(stage) for stage in stages] == [["Relu", "Abs"], ["Neg", "Add"]]
    assert names(stages[1].inputs) == ["x", "c"]


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        ("nothing", "no node of the model is called 'nothing', and none makes a tensor of that name"),
        ("x", "none makes a tensor of that name"),
        (0, "no cut before node 0: the model has 4 nodes"),
        (4, "no cut before node 4"),
        (-1, "no cut before node -1"),
        ([2, 2], "stage1 would have nothing to do"),
        ("y", "stage1 would have nothing to do: no output of the model needs it"),
    ],
)
def test_a_cut_that_cannot_be_is_named(cuts: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        graph.split(chain(), cuts)
    assert "\n" not in str(caught.value)


def test_an_unsorted_model_is_refused() -> None:
    model = make(
        [node("Relu", "a", "y", name="late"), node("Neg", "x", "a", name="first")], values("x"), values("y")
    )
    with pytest.raises(UsageError, match=r"not sorted: 'late' stands before 'first'"):
        graph.split(model, 1)


# ------------------------------------------------------------------ what crosses


def test_a_tensor_that_skips_a_stage_is_carried_by_name() -> None:
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
    """Both stages use the same constant part: neither ships it."""
    model = make(
        [
            node("Exp", "w", "k"),
            node("Add", "x k", "a"),
            node("Mul", "a k", "y"),
        ],
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


def test_a_stage_of_constants_alone_does_compute_them() -> None:
    model = make(
        [node("Exp", "w", "k"), node("Add", "x k", "y")],
        values("x"),
        values("y"),
        weights={"w": numbers(2, 3)},
    )
    stages = graph.split(model, 1)
    assert [ops(stage) for stage in stages] == [["Exp"], ["Add"]]
    assert names(stages[1].inputs) == ["x", "k"]
    x = numbers(2, 3, seed=1)
    assert_same(run_stages(stages, {"x": x}), run(model, {"x": x}))


def test_what_is_drawn_at_random_is_drawn_once() -> None:
    model = make(
        [
            node("RandomNormal", "", "r", shape=[2, 3]),
            node("Add", "x r", "a"),
            node("Sub", "a r", "y"),
        ],
        values("x"),
        values("y"),
    )
    stages = graph.split(model, "a")
    assert ops(stages[1]) == ["Sub"]
    x = numbers(2, 3)
    np.testing.assert_allclose(run_stages(stages, {"x": x})["y"], x, atol=1e-6)


def test_outputs_may_be_inputs_weights_constants_and_made_midway() -> None:
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


def test_what_leads_nowhere_is_left_out() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Abs", "x", "dead"), node("Neg", "a", "y")], values("x"), values("y")
    )
    assert [ops(stage) for stage in graph.split(model, 1)] == [["Relu"], ["Neg"]]


def test_an_input_with_a_default_can_still_be_given() -> None:
    model = make(
        [node("Add", "x d", "a"), node("Mul", "a d", "y")],
        values("x", "d"),
        values("y"),
        weights={"d": numbers(2, 3)},
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


# ------------------------------------------------------------------ bodies, functions, types


def branches() -> onnx.ModelProto:
    """An If whose branches capture tensors from before it, one of them through a second body."""
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
def test_what_a_body_captures_crosses(flag: bool, cuts: Any) -> None:
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


def test_functions_go_with_those_that_call_them() -> None:
    twice = helper.make_function(
        "own", "Twice", ["v"], ["w"], [node("Add", "v v", "w")], [helper.make_opsetid("", 17)]
    )
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


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (TensorProto.STRING, np.array([["a", "ö", ""]], object)),
        (TensorProto.BOOL, np.array([[True, False, True]])),
        (FLOAT, np.zeros((0, 3), np.float32)),
        (FLOAT, np.full((), 3, np.float32)),
    ],
)
def test_any_tensor_may_cross(dtype: int, given: np.ndarray[Any, Any]) -> None:
    model = make(
        [node("Identity", "x", "a"), node("Identity", "a", "y")],
        values("x", shape=given.shape, dtype=dtype),
        values("y", shape=given.shape, dtype=dtype),
    )
    stages = graph.split(model, 1)
    assert_same(run_stages(stages, {"x": given}, "DISABLE_ALL"), {"y": given})


def test_sequences_cross_with_their_type() -> None:
    model = make(
        [node("SequenceConstruct", "x x", "s"), node("ConcatFromSequence", "s", "y", axis=0)],
        values("x"),
        values("y", shape=(4, 3)),
    )
    stages = graph.split(model, 1)
    (crossing,) = stages[0].outputs
    assert (crossing.dtype, crossing.shape, crossing.nbytes) == ("seq(tensor(float32))", None, None)
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def test_bfloat16_crosses() -> None:
    model = make(
        [node("Cast", "x", "a", to=TensorProto.BFLOAT16), node("Cast", "a", "y", to=FLOAT)],
        values("x"),
        values("y"),
    )
    (crossing,) = graph.split(model, 1)[0].outputs
    assert (crossing.dtype, crossing.nbytes) == ("bfloat16", 12)


def test_operators_that_onnx_does_not_know_are_asked_of_onnxruntime() -> None:
    model = make(
        [node("Gelu", "x", "a", domain="com.microsoft"), node("Neg", "a", "y")],
        values("x"),
        values("y"),
        domains={"com.microsoft": 1},
    )
    stages = graph.split(model, 1)
    assert stages[0].outputs[0].text() == "float32[2, 3]"
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def test_a_tensor_of_unknown_type_cannot_cross() -> None:
    model = make(
        [node("Secret", "x", "a", domain="nowhere"), node("Neg", "a", "y")],
        values("x"),
        values("y"),
        domains={"nowhere": 1},
    )
    with pytest.raises(UsageError, match="nothing tells the type of tensor 'a'"):
        graph.split(model, 1)


def test_free_extents_stay_free() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Neg", "a", "y")],
        values("x", shape=("batch", None)),
        values("y", shape=("batch", None)),
    )
    (tensor,) = graph.split(model, 1)[0].outputs
    assert (tensor.shape, tensor.nbytes) == (("batch", None), None)
    assert tensor.text() == "float32[batch, ?]"


# ------------------------------------------------------------------ bit for bit


def check(network: str, *numbers_of_stages: int) -> None:
    """Stages give the bits of the whole where that is promised, and are near it where it is not."""
    model = samples.light_model(network)
    feeds = {model.graph.input[0].name: numbers(1, 3, 224, 224)}
    same, near = run(model, feeds, "BASIC"), run(model, feeds, "ALL")
    for count in numbers_of_stages:
        places = [len(model.graph.node) * i // count for i in range(1, count)]
        exact = graph.split(model, places, exact=True)
        assert len(exact) == count
        assert all(stage.exact for stage in exact)
        assert_same(run_stages(exact, feeds, "BASIC"), same)
        fast = run_stages(graph.split(model, places), feeds, "ALL")
        for name, output in near.items():
            np.testing.assert_allclose(fast[name], output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("network", "count"), [("squeezenet", 4), ("shufflenet", 3)])
def test_real_networks_give_the_same_bits(network: str, count: int) -> None:
    check(network, count)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("network", samples.names())
def test_every_real_network_in_any_number_of_stages(network: str) -> None:
    check(network, 2, 3, 4, 7)


@settings(max_examples=40, deadline=None)
@given(network=networks(), data=st.data())
def test_random_networks_give_the_same_bits(network: onnx.ModelProto, data: st.DataObject) -> None:
    places = st.integers(1, len(network.graph.node) - 1)
    tensors = st.sampled_from([name for item in network.graph.node for name in item.output])
    cuts = data.draw(st.lists(places | tensors | st.tuples(tensors, tensors), min_size=1, max_size=4))
    taken: list[Any] = []
    stages = graph.split(network, [])
    for cut in cuts:
        with contextlib.suppress(UsageError):  # a stage would have no work
            stages = graph.split(network, [*taken, cut])
            taken.append(cut)
    feeds = feeds_of(network, data.draw(st.booleans()))
    assert_same(run_stages(stages, feeds, "DISABLE_ALL"), run(network, feeds, "DISABLE_ALL"))
    seen: set[str] = set()
    for stage in stages:
        assert set(stage.needs) <= seen
        seen.add(stage.name)


def test_exact_cuts_where_equal_nodes_became_one() -> None:
    """Of equal nodes onnxruntime keeps the last one's name, which may stand behind the cut, and lead nowhere."""
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Tanh", "b", "y"), node("Relu", "x", "z")]
    model = make(nodes, values("x"), values("y"))
    stages = graph.split(model, [("b",)], exact=True)
    assert [ops(stage) for stage in stages] == [["Relu", "Neg"], ["Tanh"]]
    feeds = {"x": numbers(2, 3)}
    assert_same(run_stages(stages, feeds), run(model, feeds))


def test_exact_carries_the_cuts_over_what_was_merged() -> None:
    """A Conv and its BatchNormalization become one node; a cut between them moves in front of it."""
    rng = np.random.default_rng(0)
    model = make(
        [
            node("Relu", "x", "r"),
            node("Conv", "r w", "c", name="conv"),
            node("BatchNormalization", "c s b m v", "n", name="bn"),
            node("Neg", "n", "y"),
        ],
        values("x", shape=(1, 2, 4, 4)),
        values("y", shape=(1, 2, 2, 2)),
        weights={
            "w": rng.standard_normal((2, 2, 3, 3), np.float32),
            **{name: rng.uniform(0.5, 1.5, 2).astype(np.float32) for name in "sbmv"},
        },
    )
    stages = graph.split(model, "bn", exact=True)
    assert [ops(stage) for stage in stages] == [["Relu"], ["Conv", "Neg"]]
    feeds = {"x": numbers(1, 2, 4, 4)}
    assert_same(run_stages(stages, feeds), run(model, feeds))


def test_exact_needs_a_model_that_onnxruntime_runs() -> None:
    model = make(
        [node("Secret", "x", "a", domain="nowhere"), node("Neg", "a", "y")], values("x"), values("y")
    )
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        graph.split(model, 1, exact=True)


# ------------------------------------------------------------------ large models


def test_weights_in_files_stay_there(tmp_path: Path) -> None:
    model = make(
        [node("Add", "x w", "a"), node("Mul", "a v", "y")],
        values("x"),
        values("y"),
        weights={"w": numbers(2, 3), "v": numbers(2, 3, seed=1)},
    )
    feeds = {"x": numbers(2, 3, seed=2)}
    expected = run(model, feeds)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    stages = graph.split(path, 1)
    tensors = [value.const_value for stage in stages for value in stage.model.graph.initializers.values()]
    assert [tensor.name for tensor in tensors] == ["w", "v"]
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    stages.save(tmp_path / "elsewhere")
    (tmp_path / "weights").rename(tmp_path / "gone")
    first = run(onnx.load(tmp_path / "elsewhere" / "stage0.onnx"), feeds)
    second = run(onnx.load(tmp_path / "elsewhere" / "stage1.onnx"), first)
    assert_same(second, expected)
