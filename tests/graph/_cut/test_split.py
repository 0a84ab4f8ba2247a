from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph import samples
from tests.combinations import NETWORKS, usual
from tests.graph.networks import feeds_of, networks, stage_counts
from tests.graph.running import assert_same, chain, make, names, node, numbers, ops, run, run_stages, values


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


def test_a_stage_up_to_a_tensor_makes_nothing_else() -> None:
    side = make(
        [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Abs", "a", "c"), node("Add", "b c", "y")],
        values("x"),
        values("y"),
    )
    stages = graph.split(side, "c")
    assert [ops(stage) for stage in stages] == [["Relu", "Abs"], ["Neg", "Add"]]
    assert names(stages[1].inputs) == ["x", "c"]


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ("nothing", "no node of the model is called 'nothing', and none makes a tensor of that name"),
        ("x", "none makes a tensor of that name"),
        (0, "no cut before node 0: the model has 4 nodes"),
        (4, "no cut before node 4"),
        (-1, "no cut before node -1"),
        (4, "no cut before node 4: .*; give 1 to 3"),
        ([1.5], "^1.5 is no cut: give a node's place in the graph or its name, or the name of a tensor, or of several"),
        (1.5, "^1.5 is no cut"),
        (None, "^None is no cut"),
        ([None], "^None is no cut"),
        ([(1, 2)], r"^\(1, 2\) is no cut"),
        ([()], r"^\(\) is no cut"),
        ("", "^'' is no cut"),
        ([b"b"], "^b'b' is no cut"),
        ([2, 2], "stage1 would have nothing to do"),
        ("y", "stage1 would have nothing to do: no output of the model needs it"),
    ],
)
def test_an_invalid_cut_is_refused(cuts: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        graph.split(chain(), cuts)
    assert "\n" not in str(caught.value)


def test_a_cut_may_be_a_number_of_numpy() -> None:
    for cuts in (np.int64(2), np.array([2]), [np.int8(2)]):
        assert len(graph.split(chain(), cuts)) == 2


def test_a_model_of_one_node_cannot_be_cut() -> None:
    one = make([node("Relu", "x", "y")], values("x"), values("y"))
    with pytest.raises(UsageError, match="has 1 nodes, and a cut leaves some on either side, so it cannot be cut"):
        graph.split(one, 1)


def check(network: str, *numbers_of_stages: int) -> None:
    """Exact stages give the bits of the whole, other stages are close to it."""
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
@pytest.mark.parametrize("network", usual(samples.names(), NETWORKS.__contains__))
def test_every_real_network_in_any_number_of_stages(network: str) -> None:
    check(network, *stage_counts(network))


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
    """Of equal nodes onnxruntime keeps the last one's name, which may be behind the cut and lead to no output."""
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
