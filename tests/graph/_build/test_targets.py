"""Names of targets, and their operators."""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._build.targets import target_of
from tests.graph.running import make, node, numbers, run, values


def test_names_of_targets() -> None:
    assert target_of("tvm:cuda") == graph.Tvm("cuda")
    assert target_of('tvm:{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}') == graph.Tvm(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    )


def test_a_region_has_the_operators_of_tvm() -> None:
    """onnxruntime's own operator stays between two pieces that TVM compiles."""
    pytest.importorskip("tvm")
    model = make(
        [
            node("Conv", "x w", "a"),
            node("Relu", "a", "b"),
            node("QuickGelu", "b", "c", domain="com.microsoft"),
            node("Tanh", "c", "y"),
        ],
        values("x", shape=(1, 2, 6, 6)),
        values("y", shape=(1, 2, 4, 4)),
        weights={"w": numbers(2, 2, 3, 3)},
        domains={"com.microsoft": 1},
    )
    stages = graph.partition(model, graph.supported("tvm"), several=True)
    assert [[item.op_type for item in stage.model.graph] for stage in stages] == [
        ["Conv", "Relu"],
        ["QuickGelu"],
        ["Tanh"],
    ]
    built = graph.build(stages, {"region0": "tvm", "region1": "tvm"})
    feeds = {"x": numbers(1, 2, 6, 6, seed=1)}
    np.testing.assert_allclose(built.run(feeds)["y"], run(model, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_onnxruntime_lists_its_kernels() -> None:
    has = graph.supported("onnxruntime")
    assert has(ir.Node("", "Conv", []))
    assert has(ir.Node("com.microsoft", "QuickGelu", []))
    assert not has(ir.Node("", "Secret", []))
    assert not graph.supported(graph.OnnxRuntime(provider="MoonExecutionProvider"))(ir.Node("", "Conv", []))


def test_a_node_is_supported_if_its_body_is() -> None:
    def with_body(operator: str) -> ir.Node:
        body = helper.make_graph([node(operator, "x", "b")], "body", [], values("b"))
        flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
        branches = {"then_branch": body, "else_branch": body}
        model = make([helper.make_node("If", ["flag"], ["y"], **branches)], [*values("x"), flag], values("y"))
        return ir.from_proto(model).graph[0]

    assert graph.supported("onnxruntime")(with_body("Neg"))
    assert not graph.supported("onnxruntime")(with_body("Secret"))


def test_targets_without_a_list() -> None:
    with pytest.raises(UsageError, match="only TVM and onnxruntime have a list of operators"):
        graph.supported("reference")


def test_without_tvm_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    monkeypatch.setitem(sys.modules, "tvm.relax.frontend.onnx", None)
    with pytest.raises(UsageError, match=r"pip install 'rpcsys\[tvm\]'"):
        graph.supported("tvm")
