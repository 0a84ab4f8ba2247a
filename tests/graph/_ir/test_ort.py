"""Models in onnxruntime."""

from __future__ import annotations

import pytest

from rpcsys import graph
from rpcsys.errors import ModelError
from rpcsys.graph._ir import ort
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import chain, make, node, numbers, values


def test_exact_needs_a_model_that_onnxruntime_runs() -> None:
    model = make([node("Secret", "x", "a", domain="nowhere"), node("Neg", "a", "y")], values("x"), values("y"))
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        graph.split(model, 1, exact=True)


def test_inputs_that_a_model_does_not_take_are_refused() -> None:
    session = ort.open_session(read(chain()))
    x = numbers(2, 3)
    (again,) = ort.run(session, [session.get_outputs()[0].name], {"x": x})
    assert again.shape == (2, 3)
    with pytest.raises(ModelError, match="does not run with these inputs"):
        ort.run(session, [session.get_outputs()[0].name], {"x": numbers(7)})
