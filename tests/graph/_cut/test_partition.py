from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from rpcsys import graph
from rpcsys.errors import ModelError, UsageError
from rpcsys.graph import samples
from tests.graph.networks import feeds_of, networks
from tests.graph.running import assert_same, chain, make, node, numbers, run, run_stages, values


def diamond() -> onnx.ModelProto:
    """A Relu, then two branches (b; c and d) that an Add joins, and a Neg."""
    return make(
        [
            node("Relu", "x", "a", name="stem"),
            node("Exp", "a", "b", name="left"),
            node("Abs", "a", "c", name="right1"),
            node("Tanh", "c", "d", name="right2"),
            node("Add", "b d", "e", name="join"),
            node("Neg", "e", "y", name="tail"),
        ],
        values("x"),
        values("y"),
    )


def shape_of(stages: graph.Stages) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    """Stage -> its operators and the stages it needs."""
    return {s.name: ([item.op_type for item in s.model.graph], s.needs) for s in stages}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "region", [["left"], ["b"], lambda item: item.op_type == "Exp", graph.operators("Exp", "own::Exp")]
)
def test_a_region_has_stages_before_beside_and_after(region: Any, exact: bool) -> None:
    stages = graph.partition(diamond(), region, exact=exact)
    assert shape_of(stages) == {
        "before": (["Relu"], ()),
        "region": (["Exp"], ("before",)),
        "beside": (["Abs", "Tanh"], ("before",)),
        "after": (["Add", "Neg"], ("region", "beside")),
    }
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(diamond(), {"x": numbers(2, 3)}))


@pytest.mark.parametrize(
    ("region", "names"),
    [
        (["stem"], ["region", "after"]),
        (["tail"], ["before", "region"]),
        (["stem", "left", "right1", "right2", "join", "tail"], ["region"]),
    ],
)
def test_empty_parts_make_no_stage(region: list[str], names: list[str]) -> None:
    assert [stage.name for stage in graph.partition(diamond(), region)] == names


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (["stem", "join"], r"not convex: the path 'stem' -> 'left' -> 'join' leaves it and comes back"),
        (["right1", "tail"], r"the path 'right1' -> 'right2' -> 'join' -> 'tail' leaves it"),
        ([], "the region is empty"),
        (graph.operators("Conv"), "the region is empty"),
        (3, "^a region is names of nodes and tensors, or a function of a node, not 3$"),
        (None, "^a region is names"),
        ([["stem"]], r"no node of the model is called \['stem'\]"),
        (["nobody"], "no node of the model is called 'nobody'"),
    ],
)
def test_an_invalid_region_is_refused_with_the_reason(region: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph.partition(diamond(), region)


def test_several_takes_all_that_a_target_supports() -> None:
    stages = graph.partition(diamond(), graph.operators("Relu", "Exp", "Tanh", "Neg"), several=True)
    assert shape_of(stages) == {
        "region0": (["Relu", "Exp"], ()),
        "rest1": (["Abs"], ("region0",)),
        "region1": (["Tanh"], ("rest1",)),
        "rest2": (["Add"], ("region0", "region1")),
        "region2": (["Neg"], ("rest2",)),
    }
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(diamond(), {"x": numbers(2, 3)}))


def test_constants_make_no_region_of_their_own() -> None:
    model = make(
        [node("Exp", "w", "k", name="constant"), node("Relu", "x", "a", name="a"), node("Add", "a k", "y", name="sum")],
        values("x"),
        values("y"),
        weights={"w": numbers(2, 3)},
    )
    stages = graph.partition(model, ["constant", "sum"])
    assert shape_of(stages) == {"before": (["Relu"], ()), "region": (["Exp", "Add"], ("before",))}


def through_constants() -> onnx.ModelProto:
    """``x`` plus a value made of ``k``, and ``loose`` beside it; all three are constants."""
    constants = {name: onnx.numpy_helper.from_array(numbers(2, 3)) for name in ("k", "loose")}
    return make(
        [
            *(helper.make_node("Constant", [], [name], name, value=value) for name, value in constants.items()),
            node("Neg", "k", "j", name="j"),
            node("Add", "x j", "sum", name="sum"),
            node("Add", "sum loose", "y", name="y"),
        ],
        values("x"),
        values("y", "loose"),
    )


@pytest.mark.parametrize("several", [False, True])
def test_a_region_of_constants_comes_before_its_users(several: bool) -> None:
    stages = graph.partition(through_constants(), ["k"], several=several)
    region, after = stages
    assert [output.name for output in region.outputs] == ["k"]
    assert "k" in [item.name for item in after.inputs]
    x = {"x": numbers(2, 3)}
    assert_same(run_stages(stages, x), run(through_constants(), x))


@settings(max_examples=100, deadline=None)
@given(network=networks(), data=st.data())
def test_random_regions_give_the_same_bits(network: onnx.ModelProto, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from([item.output[0] for item in network.graph.node]), min_size=1))
    feeds = feeds_of(network, data.draw(st.booleans()))
    expected = run(network, feeds, "DISABLE_ALL")
    for several in (False, True):
        try:
            stages = graph.partition(network, chosen, several=several)
        except UsageError as error:
            expected_words = ("not convex",) if not several and "convex" in str(error) else ("is empty",)
            assert any(words in str(error) for words in expected_words)  # noqa: PT017 - which of two is the point
        else:
            assert_same(run_stages(stages, feeds, "DISABLE_ALL"), expected)


@pytest.mark.parametrize("exact", [False, True])
def test_regions_that_a_target_supports_of_a_real_network(exact: bool) -> None:
    model = samples.light_model("squeezenet")
    stages = graph.partition(model, graph.operators("Conv", "Relu", "MaxPool"), several=True, exact=exact)
    assert len(stages) > 5
    feeds = {model.graph.input[0].name: numbers(1, 3, 224, 224)}
    assert_same(run_stages(stages, feeds), run(model, feeds))


# ------------------------------------------------------------------ by annotation


@pytest.mark.parametrize("exact", [False, True])
def test_marks_in_the_model_make_its_stages(exact: bool, caplog: pytest.LogCaptureFixture) -> None:
    marked = graph.annotate(diamond(), {0: ["stem"], 1: ["left"], 2: ["join"]}, targets={1: "tvm"})
    again = ir.from_proto(onnx.ModelProto.FromString(ir.to_proto(marked).SerializeToString()))
    stages = graph.partition(again, graph.annotated(), exact=exact)
    assert shape_of(stages) == {
        "stage0": (["Relu", "Abs", "Tanh"], ()),
        "stage1": (["Exp"], ("stage0",)),
        "stage2": (["Add", "Neg"], ("stage0", "stage1")),
    }
    assert [stage.target for stage in stages] == ["onnxruntime", "tvm", "onnxruntime"]
    assert not caplog.records
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(diamond(), {"x": numbers(2, 3)}))


def test_the_error_names_marks_against_the_flow() -> None:
    marked = graph.annotate(chain(), {1: ["n0"], 0: ["n2"]})
    with pytest.raises(UsageError, match=r"the path 'n0' -> 'n1' -> 'n2' goes from stage 1 back to stage 0"):
        graph.partition(marked, graph.annotated())
    marked = graph.annotate(chain(), {1: ["n1"], 0: ["n2"]})
    with pytest.raises(UsageError, match=r"the path 'n1' -> 'n2' goes from stage 1 back to stage 0"):
        graph.partition(marked, graph.annotated())


def test_exact_needs_onnxruntime() -> None:
    model = make([node("Secret", "x", "a", domain="nowhere"), node("Neg", "a", "y")], values("x"), values("y"))
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        graph.partition(model, ["a"], exact=True)
