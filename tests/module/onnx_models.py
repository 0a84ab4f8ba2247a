"""ONNX models for tests, of one or a few nodes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper
from onnx import helper as h


def value(name, dtype=TensorProto.FLOAT, shape=("n",)):
    return h.make_tensor_value_info(name, dtype, shape)


def made(nodes, inputs, outputs, initializers=(), **more):
    graph = h.make_graph(nodes, "test", inputs, outputs, list(initializers))
    return h.make_model(graph, **{"ir_version": 10, "opset_imports": [h.make_opsetid("", 21)], **more})


def weight(name, array):
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


W = np.random.default_rng(0).standard_normal((300, 200)).astype("f4")


def product(array=W, name="w"):
    rows, columns = array.shape
    return made(
        [h.make_node("MatMul", ["x", name], ["y"])],
        [value("x", shape=("n", rows))], [value("y", shape=("n", columns))], [weight(name, array)],
    )  # fmt: skip
