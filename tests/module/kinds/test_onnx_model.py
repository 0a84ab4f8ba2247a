"""Separated ONNX models: which weights are separated, shared, and can be overridden."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import numpy as np  # noqa: E402 - only where onnx is
import onnx_ir as ir  # noqa: E402
from onnx import helper as h  # noqa: E402

from rpcsys.errors import UsageError  # noqa: E402
from rpcsys.module import onnx_module, params, weights_of  # noqa: E402
from rpcsys.module.kinds import onnx_model  # noqa: E402
from tests.module.onnx_models import W, made, product, value, weight  # noqa: E402
from tests.module.trees import blob_of  # noqa: E402


def test_large_weights_are_separated_and_small_ones_stay():
    parts = onnx_model.parts(product())
    assert list(parts.weights) == ["w"]
    assert len(parts.proto) < 1000
    small = onnx_model.parts(product(W[:4, :4]))
    assert small.weights == {}


@pytest.mark.parametrize("how", ["path", "bytes", "proto", "onnx-ir"])
def test_every_form_of_model(tmp_path, how):
    model = product()
    onnx.save(model, tmp_path / "model.onnx")
    given = {
        "path": tmp_path / "model.onnx",
        "bytes": model.SerializeToString(),
        "proto": model,
        "onnx-ir": ir.from_proto(model),
    }[how]
    before = given if how != "onnx-ir" else ir.to_proto(given).SerializeToString()
    assert blob_of(onnx_module(given)) == blob_of(onnx_module(model))
    assert before == (given if how != "onnx-ir" else ir.to_proto(given).SerializeToString())


def test_only_equal_weights_are_shared():
    shared = params({"w": W + 1})
    module = onnx_module(product(), params=shared)
    assert list(module.model.weights) == ["w"]
    assert module.imports == ()
    with pytest.raises(UsageError, match="different weights called 'w'"):
        weights_of(product(), product(W + 1))


@pytest.mark.parametrize("given", [b"nonsense", "/nowhere/model.onnx"])
def test_an_invalid_model_is_refused(given):
    with pytest.raises(UsageError, match="cannot be read as an ONNX model") as caught:
        onnx_module(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (3,), ("n", None, 4)])
def test_what_a_model_declares(shape):
    model = made([h.make_node("Identity", ["x"], ["y"])], [value("x", shape=shape)], [value("y", shape=shape)])
    parts = onnx_model.parts(model)
    assert parts.inputs == [{"name": "x", "dtype": "float32", "shape": list(shape)}]
    assert parts.outputs == [{"name": "y", "dtype": "float32", "shape": list(shape)}]


def test_reading_a_model_makes_a_copy():
    model = ir.from_proto(product())
    read = onnx_model.read(model)
    read.graph.initializers.pop("w")
    assert list(model.graph.initializers) == ["w"]


def test_inputs_that_are_weights_up_to_ir_version_3():
    nodes = [h.make_node("Add", ["x", "w"], ["y"])]
    values = [value("x", shape=(300,)), value("w", shape=(300,))]
    model = made(nodes, values, [value("y", shape=(300,))], [weight("w", np.ones(300, "f4"))])
    assert [each.name for each in onnx_model.read(model).graph.inputs] == ["x", "w"]
    model.ir_version = 3
    read = onnx_model.read(model)
    assert ([each.name for each in read.graph.inputs], read.ir_version) == (["x"], 4)
