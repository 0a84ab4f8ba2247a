"""Types and shapes that a model does not tell."""

from __future__ import annotations

from rpcsys import graph
from tests.graph.running import assert_same, make, node, numbers, run, run_stages, values


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


def test_free_extents_stay_free() -> None:
    model = make(
        [node("Relu", "x", "a"), node("Neg", "a", "y")],
        values("x", shape=("batch", None)),
        values("y", shape=("batch", None)),
    )
    (tensor,) = graph.split(model, 1)[0].outputs
    assert (tensor.shape, tensor.nbytes) == (("batch", None), None)
    assert tensor.text() == "float32[batch, ?]"
