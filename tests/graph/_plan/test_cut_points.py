"""Where a model can be cut, and which tensors cross there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

from rpcsys.errors import UsageError
from rpcsys.graph._cut.split import split
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.rewriting import optimised
from rpcsys.graph._plan.cost_model import UnitTensor
from rpcsys.graph._plan.cut_points import CutPoints, cut_points
from rpcsys.graph._plan.profile import profile
from rpcsys.module.kinds.onnx_model import read
from tests.graph.networks import feeds_of, networks
from tests.graph.running import assert_same, chain, make, node, numbers, run, run_stages, values


def laid_out(model: onnx.ModelProto, feeds: dict[str, Any]) -> CutPoints:
    flow = Dataflow(read(model))
    known = {value.name for each in flow.nodes for value in each.outputs if value.name}
    basic, _ = optimised(flow)
    return cut_points(basic, profile(basic, feeds), known, feeds)


def test_a_chain_can_be_cut_between_any_two_nodes() -> None:
    found = laid_out(chain(4), {"x": numbers(2, 3)})
    assert found.cuts == (("t1",), ("t2",), ("t3",))
    assert found.nodes == (1, 1, 1, 1)
    assert all(seconds > 0 for seconds in found.seconds)
    assert found.tensors == {
        "x": UnitTensor(24, -1, (0,)),
        "t1": UnitTensor(24, 0, (1,)),
        "t2": UnitTensor(24, 1, (2,)),
        "t3": UnitTensor(24, 2, (3,)),
        "y": UnitTensor(24, 3, (), result=True),
    }


def test_a_skip_connection_crosses_every_cut_on_its_way() -> None:
    nodes = [node("Neg", "x", "a"), node("Relu", "a", "b"), node("Tanh", "b", "c"), node("Add", "a c", "y")]
    found = laid_out(make(nodes, values("x"), values("y")), {"x": numbers(2, 3)})
    assert found.cuts == (("a",), ("a", "b"), ("a", "c"))


def test_a_result_made_early_belongs_to_the_cuts_behind_it() -> None:
    nodes = [node("Neg", "x", "early"), node("Relu", "x", "b"), node("Tanh", "b", "late")]
    found = laid_out(make(nodes, values("x"), values("early", "late")), {"x": numbers(2, 3)})
    assert found.cuts == (("early",), ("early", "b"))


def test_merged_nodes_are_not_parted() -> None:
    """A convolution and its normalisation become one node: no cut between them."""
    weights = {"w": numbers(4, 3, 3, 3), **{name: np.ones(4, np.float32) for name in "sbmv"}}
    nodes = [
        node("Conv", "x w", "a"),
        node("BatchNormalization", "a s b m v", "c"),
        node("Relu", "c", "d"),
        node("Neg", "d", "y"),
    ]
    shape = (1, 3, 8, 8)
    model = make(nodes, values("x", shape=shape), values("y", shape=(1, 4, 6, 6)), weights=weights)
    found = laid_out(model, {"x": numbers(*shape)})
    assert ("a",) not in found.cuts
    assert ("c",) in found.cuts


def test_sizes_are_those_of_the_run() -> None:
    """A tensor whose shape the model leaves open has the size of the run."""
    nodes = [node("NonZero", "x", "n"), node("Cast", "n", "y", to=1)]
    model = make(nodes, values("x"), values("y", shape=(2, None)))
    found = laid_out(model, {"x": np.eye(2, 3, dtype=np.float32)})
    assert found.tensors["n"].nbytes == 2 * 2 * 8


@given(networks())
@settings(max_examples=25)
def test_every_cut_gives_stages_of_the_same_bits(network: onnx.ModelProto) -> None:
    feeds = feeds_of(network, flag=True)
    found = laid_out(network, feeds)
    for cut in found.cuts:
        try:
            stages = split(network, [cut], exact=True)
        except UsageError as error:
            pytest.fail(f"{cut}: {error}")
        assert_same(run_stages(stages, feeds), run(network, feeds))
