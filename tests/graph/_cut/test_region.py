"""Nodes that a region selects, and marks in the model itself."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._cut.region import chosen
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import assert_same, chain, make, node, numbers, run, values


@pytest.fixture
def flow() -> Dataflow:
    nodes = [
        node("Neg", "x", "a", name="first"),
        node("Tanh", "a", "b"),
        node("QuickGelu", "b", "y", domain="com.microsoft"),
    ]
    return Dataflow(read(make(nodes, values("x"), values("y"), domains={"com.microsoft": 1})))


def test_nodes_are_selected_by_their_names_or_their_tensors_names(flow: Dataflow) -> None:
    assert chosen(flow, ["first", "b"]) == {0, 1}
    assert chosen(flow, "first") == {0}


def test_nodes_are_selected_by_a_test_or_by_their_operators(flow: Dataflow) -> None:
    assert chosen(flow, lambda item: item.op_type == "Tanh") == {1}
    assert chosen(flow, graph.operators("Neg", "com.microsoft::QuickGelu")) == {0, 2}
    assert chosen(flow, graph.operators("QuickGelu")) == set()


def test_a_name_that_no_node_has_is_refused(flow: Dataflow) -> None:
    with pytest.raises(UsageError, match="no node of the model is called 'c', and none makes a tensor"):
        chosen(flow, ["first", "c"])


def test_annotations_are_those_of_the_standard() -> None:
    model = chain()
    marked = graph.annotate(
        model, {0: ["n0", "t2"], 2: lambda item: item.name == "n3"}, targets={0: "cpu:0", 2: "edge"}
    )
    proto = ir.to_proto(marked)
    assert proto.ir_version == 11
    (plan,) = proto.configuration
    assert (plan.name, list(plan.device)) == ("rpcsys", ["cpu:0", "onnxruntime", "edge"])
    stages = {
        item.name: [(mark.configuration_id, mark.pipeline_stage) for mark in item.device_configurations]
        for item in proto.graph.node
    }
    assert stages == {"n0": [("rpcsys", 0)], "n1": [("rpcsys", 0)], "n2": [], "n3": [("rpcsys", 2)]}
    onnx.checker.check_model(proto)
    assert not any(item.device_configurations for item in model.graph.node)  # a copy was marked
    assert_same(run(proto, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def test_annotating_again_replaces_the_plan_and_keeps_others() -> None:
    marked = graph.annotate(chain(), {0: ["n0"]}, configuration="theirs")
    marked = graph.annotate(graph.annotate(marked, {0: ["n1"]}), {1: ["n2"]})
    marks = {
        item.name: [(c.configuration.name, c.pipeline_stage) for c in item.device_configurations]
        for item in marked.graph
    }
    assert marks == {"n0": [("theirs", 0)], "n1": [], "n2": [("rpcsys", 1)], "n3": []}
    with pytest.raises(UsageError, match=r"several plans \('theirs', 'rpcsys'\); name one: annotated\('theirs'\)"):
        graph.partition(marked, graph.annotated())
    assert [s.name for s in graph.partition(marked, graph.annotated("rpcsys"))] == ["stage0", "stage1"]


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ({}, "needs stages from 0 up"),
        ({-1: ["n0"]}, "needs stages from 0 up"),
        ({0: ["n0", "n1"], 1: ["n1"]}, "node 'n1' is in the regions of stages 0 and 1"),
        ({0: ["nobody"]}, "no node of the model is called 'nobody'"),
    ],
)
def test_invalid_marks_are_refused(regions: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph.annotate(chain(), regions)


def test_missing_marks_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no node of the model is marked .*graph\.annotate marks them"):
        graph.partition(chain(), graph.annotated())
    with pytest.raises(UsageError, match="no plan 'x' that marks pipeline stages; it has 'rpcsys'"):
        graph.partition(graph.annotate(chain(), {0: ["n0"]}), graph.annotated("x"))


def test_a_mark_may_name_no_configuration() -> None:
    model = chain()
    model.ir_version = 11
    for item in model.graph.node[2:]:
        item.device_configurations.add().pipeline_stage = 1
    assert [len(list(s.model.graph)) for s in graph.partition(model, graph.annotated())] == [2, 2]
