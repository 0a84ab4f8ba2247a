"""The reference evaluator instead of onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402 - only where onnx is
from onnx import helper as h  # noqa: E402

from rpcsys.errors import ModelError, RemoteArgumentError  # noqa: E402
from rpcsys.module import onnx_module, params, weights_of  # noqa: E402
from rpcsys.module.kinds import reference  # noqa: E402
from tests.module.trees import blob_of, loaded  # noqa: E402

W = np.random.default_rng(0).standard_normal((300, 200))


def value(name, dtype=T.FLOAT, shape=("n",)):
    return h.make_tensor_value_info(name, dtype, shape)


def model(nodes, inputs, outputs, initializers=()):
    graph = h.make_graph(nodes, "test", inputs, outputs, list(initializers))
    return h.make_model(graph, ir_version=10, opset_imports=[h.make_opsetid("", 17)])


def product():
    """onnxruntime has Cosh of float32 alone."""
    return model(
        [h.make_node("MatMul", ["x", "w"], ["xw"]), h.make_node("Cosh", ["xw"], ["y"])],
        [value("x", T.DOUBLE, ("n", 300))], [value("y", T.DOUBLE, ("n", 200))],
        [onnx.numpy_helper.from_array(W, "w")],
    )  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
def test_a_library_runs_what_onnxruntime_cannot(shared):
    weights = params(weights_of(product())) if shared else None
    module = loaded(blob_of(onnx_module(product(), params=weights)))
    assert module.runtime == "reference"
    x = np.full((2, 300), 0.01)
    assert np.allclose(module(x), np.cosh(x @ W))
    assert np.allclose(module.run({"x": x}, ["y"])["y"], np.cosh(x @ W))
    assert module.describe()["inputs"] == [{"name": "x", "dtype": "float64", "shape": ["n", 300]}]
    with pytest.raises(RemoteArgumentError, match="no input 'z'"):
        module.run({"z": x})


def test_the_reference_evaluator_can_be_selected():
    module = onnx_module(model([h.make_node("Neg", ["x"], ["y"])], [value("x")], [value("y")]), runtime="reference")
    assert module.runtime == "reference"
    assert loaded(blob_of(module)).runtime == "reference"
    assert module(np.ones(2, "f4")).tolist() == [-1, -1]


def test_types_that_numpy_lacks_are_returned_as_by_onnxruntime():
    identity = [h.make_node("Identity", ["x"], ["y"])]
    runner = reference.ReferenceRunner(model(identity, [value("x", T.BFLOAT16)], [value("y", T.BFLOAT16)]))
    x = np.array([1, 2.5], ml_dtypes.bfloat16)
    (y,) = runner.run(["y"], {"x": runner.inputs[0].check(x)})
    assert (y.dtype, bytes(y.data)) == ("bfloat16", x.tobytes())


def test_declared_sequences_and_defaults():
    default = onnx.numpy_helper.from_array(np.ones(1, "f4"), "b")
    sequence = h.make_tensor_sequence_value_info("s", T.FLOAT, None)
    nodes = [h.make_node("SequenceConstruct", ["x", "b"], ["s"])]
    runner = reference.ReferenceRunner(model(nodes, [value("x"), value("b", shape=(1,))], [sequence], [default]))
    assert [each.name for each in runner.inputs] == ["x"]
    assert [each.name for each in runner.optional] == ["b"]
    assert [each.optional for each in runner.inputs] == [False]
    (found,) = runner.run(["s"], {"x": np.zeros(1, "f4")})
    assert [each.tolist() for each in found] == [[0], [1]]


def test_an_invalid_model_is_onnxruntimes_error():
    broken = model([h.make_node("Conjure", ["x"], ["y"])], [value("x")], [value("y")])
    with pytest.raises(ModelError, match=r"the model cannot be loaded: .*Conjure"):
        onnx_module(broken)(np.ones(1, "f4"))
