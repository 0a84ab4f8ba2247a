"""Nodes that a region means."""

from __future__ import annotations

import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._cut.region import chosen
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import make, node, values


@pytest.fixture
def flow() -> Dataflow:
    nodes = [
        node("Neg", "x", "a", name="first"),
        node("Tanh", "a", "b"),
        node("QuickGelu", "b", "y", domain="com.microsoft"),
    ]
    return Dataflow(read(make(nodes, values("x"), values("y"), domains={"com.microsoft": 1})))


def test_nodes_are_meant_by_their_names_or_those_of_their_tensors(flow: Dataflow) -> None:
    assert chosen(flow, ["first", "b"]) == {0, 1}
    assert chosen(flow, "first") == {0}


def test_nodes_are_meant_by_a_test_or_by_their_operators(flow: Dataflow) -> None:
    assert chosen(flow, lambda item: item.op_type == "Tanh") == {1}
    assert chosen(flow, graph.operators("Neg", "com.microsoft::QuickGelu")) == {0, 2}
    assert chosen(flow, graph.operators("QuickGelu")) == set()


def test_a_name_that_no_node_has_is_said(flow: Dataflow) -> None:
    with pytest.raises(UsageError, match="no node of the model is called 'c', and none makes a tensor"):
        chosen(flow, ["first", "c"])
