"""A stage whose model decodes its inputs, and encodes its outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.graph._build.decoding import decoding
from rpcsys.graph._ir.stage import Stage
from rpcsys.wire import encoding


def stage_of(inner: bool = False) -> Stage:
    """``y = x * 2 + z`` and ``n = y``'s sum; with ``inner``, the addition is inside the branches of an If."""
    x, z, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xzy")
    total = helper.make_tensor_value_info("total", TensorProto.FLOAT, [])
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    body = [helper.make_node("Mul", ["x", "two"], ["twice"])]
    if inner:
        out = helper.make_tensor_value_info("inside", TensorProto.FLOAT, ["n", 4])
        branch = helper.make_graph([helper.make_node("Add", ["twice", "z"], ["inside"])], "branch", [], [out])
        yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
        body.append(helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch))
        two = [two, yes]
    else:
        body.append(helper.make_node("Add", ["twice", "z"], ["y"]))
    body.append(helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0))
    made = helper.make_graph(body, "g", [x, z], [y, total], two if isinstance(two, list) else [two])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (stage,) = graph.split(model, [])
    return stage


X = np.linspace(-3, 3, 8, dtype="f4").reshape(2, 4)
Z = X[::-1] * 5


def test_without_a_way_it_is_the_same() -> None:
    stage = stage_of()
    same = decoding(stage, {})
    assert (same.inputs, same.outputs) == (stage.inputs, stage.outputs)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(("how", "atol"), [("float16", 0.02), ("int8", 0.3)])
def test_it_computes_the_same_of_encoded_tensors(how: str, atol: float, inner: bool) -> None:
    stage = stage_of(inner)
    made = decoding(stage, {"x": how, "z": how, "y": "float16"})
    onnx.checker.check_model(onnx.load_from_string(made.to_bytes()), full_check=True)
    feeds = {}
    for name, value in (("x", X), ("z", Z)):
        found = encoding.encode(value, how, always=True)
        if how == "float16":
            feeds[name] = np.frombuffer(found.data, "f2").reshape(value.shape)
        else:
            feeds[name] = np.frombuffer(found.data, "i1", offset=8).reshape(value.shape)
            feeds[f"{name}.scale"] = np.frombuffer(found.data, "f8", 1)
    assert [each.name for each in made.inputs] == list(feeds)
    assert [(each.name, each.dtype) for each in made.outputs] == [("y", "float16"), ("total", "float32")]
    with graph.build(stage) as plain, graph.build(made) as encoded:
        expected, found = plain.run({"x": X, "z": Z}), encoded.run(feeds)
    assert found["y"].dtype == np.float16
    np.testing.assert_allclose(found["y"], expected["y"], atol=atol)
    np.testing.assert_allclose(found["total"], expected["total"], atol=10 * atol)


def test_the_stage_itself_is_not_changed() -> None:
    stage = stage_of()
    before = stage.to_bytes()
    decoding(stage, {"x": "int8", "y": "float16"})
    assert stage.to_bytes() == before
