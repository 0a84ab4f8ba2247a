"""Types and shapes of tensors that cross, given by the model or inferred."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from rpcsys import graph
from rpcsys.errors import UsageError
from tests.graph.running import FLOAT, assert_same, make, node, numbers, run, run_stages, values


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
        [node("Cast", "x", "a", to=TensorProto.BFLOAT16), node("Cast", "a", "y", to=FLOAT)], values("x"), values("y")
    )
    (crossing,) = graph.split(model, 1)[0].outputs
    assert (crossing.dtype, crossing.nbytes) == ("bfloat16", 12)


def test_a_tensor_of_unknown_type_cannot_cross() -> None:
    model = make(
        [node("Secret", "x", "a", domain="nowhere"), node("Neg", "a", "y")],
        values("x"),
        values("y"),
        domains={"nowhere": 1},
    )
    with pytest.raises(UsageError, match="the type of tensor 'a' is unknown"):
        graph.split(model, 1)


def test_onnxruntime_infers_types_of_operators_unknown_to_onnx() -> None:
    model = make(
        [node("Gelu", "x", "a", domain="com.microsoft"), node("Neg", "a", "y")],
        values("x"),
        values("y"),
        domains={"com.microsoft": 1},
    )
    stages = graph.split(model, 1)
    assert stages[0].outputs[0].text() == "float32[2, 3]"
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def test_free_extents_stay_free() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Neg", "a", "y")],
        values("x", shape=("batch", None)),
        values("y", shape=("batch", None)),
    )
    (tensor,) = graph.split(model, 1)[0].outputs
    assert (tensor.shape, tensor.nbytes) == (("batch", None), None)
    assert tensor.text() == "float32[batch, ?]"
