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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"nonsense", "^what was given cannot be read as an ONNX model: "),
        ("/nowhere/m.onnx", "^'/nowhere/m.onnx' cannot be read as an ONNX model: No such file or directory; check the"),
        ("/", "^'/' cannot be read as an ONNX model: Is a directory; check the path$"),
        ("", "^what was given cannot be read as an ONNX model: No such file or directory; check the path$"),
        (
            None,
            "^what was given cannot be read as an ONNX model: it is NoneType; give a path, bytes, or a model of onnx",
        ),
        (bytearray(b"x"), "it is bytearray; give a path, bytes, or a model of onnx or onnx-ir$"),
    ],
)
def test_an_invalid_model_is_refused(given, words):
    with pytest.raises(UsageError, match=words) as caught:
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


def zip_map():
    """A classifier's end: an array of two columns, given as one dict for each row."""
    nodes = [
        h.make_node("Relu", ["x"], ["r"]),
        h.make_node("ZipMap", ["r"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 5]),
    ]
    numbers = h.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    rows = h.make_sequence_type_proto(h.make_map_type_proto(onnx.TensorProto.INT64, numbers))
    graph = h.make_graph(nodes, "g", [value("x", shape=[None, 2])], [h.make_value_info("y", rows)])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17), h.make_opsetid("ai.onnx.ml", 3)], ir_version=10)


def test_an_output_may_be_a_map():
    model = zip_map()
    before = model.SerializeToString()
    read = onnx_model.read(model)
    assert model.SerializeToString() == before
    assert read.graph.outputs[0].meta[onnx_model.MAP_TYPE] == "seq(map(int64,tensor(float32)))"
    assert onnx_model.parts(model).outputs == [{"name": "y", "dtype": "seq(map(int64,tensor(float32)))", "shape": []}]


def test_an_input_that_is_a_map_is_refused():
    model = zip_map()
    model.graph.input[0].type.CopyFrom(h.make_map_type_proto(onnx.TensorProto.STRING, model.graph.input[0].type))
    with pytest.raises(UsageError, match=r"input 'x' is map\(strings,tensor\(float32\)\), and maps can only be"):
        onnx_model.read(model)


def test_the_innermost_reason_is_shown():
    model = product()
    model.graph.output[0].type.tensor_type.elem_type = 77
    with pytest.raises(UsageError, match=r"cannot be read as an ONNX model: .*77"):
        onnx_model.read(model)


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_weights_are_written_out(places):
    values = onnx.numpy_helper.from_array(np.float32([2, 3]), "w")
    sparse = h.make_sparse_tensor(values, onnx.numpy_helper.from_array(np.array(places)), [2, 3])
    x, y = value("x", shape=[2, 3]), value("y", shape=[2, 3])
    model = made([h.make_node("Add", ["x", "w"], ["y"])], [x], [y])
    model.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(onnx_module(model)(np.zeros((2, 3), "f4")), [[0, 2, 0], [0, 0, 3]])
    assert len(model.graph.sparse_initializer) == 1
    del model.graph.sparse_initializer[0].dims[:]
    with pytest.raises(UsageError, match="cannot be read as an ONNX model"):
        onnx_module(model)


def test_nodes_in_any_order():
    nodes = [h.make_node("Neg", ["a"], ["y"]), h.make_node("Abs", ["x"], ["a"])]
    model = made(nodes, [value("x")], [value("y")])
    assert [node.op_type for node in onnx_model.read(model).graph] == ["Abs", "Neg"]
    with pytest.raises(UsageError, match=r"nodes are not in the order in which they run: call model.graph.sort\(\)$"):
        onnx_model.read(ir.from_proto(model))
    nodes[1].input[0] = "y"
    with pytest.raises(UsageError, match="a node takes what is made of its own results"):
        onnx_model.read(made(nodes, [value("x")], [value("y")]))


def test_a_value_that_nothing_makes_is_named():
    model = made([h.make_node("Add", ["x", "w"], ["y"])], [value("x")], [value("y")])
    for given in (model, ir.from_proto(model)):
        with pytest.raises(UsageError, match=r"^the model is broken: Add takes 'w', and nothing in it makes that$"):
            onnx_model.read(given)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            h.make_optional_type_proto(h.make_tensor_type_proto(onnx.TensorProto.STRING, [])),
            "optional(tensor(strings))",
        ),
        (h.make_tensor_type_proto(77, []), "tensor(unknown)"),
        (onnx.TypeProto(), ""),
    ],
)
def test_a_type_as_text(kind, text):
    assert onnx_model.type_text(kind) == text
