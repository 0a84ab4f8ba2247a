"""Models put together with `onnx.helper`: control flow, sequences, strings, maps, element types that numpy lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.graph.running import make, node, numbers, values

INT64, BOOL, STRING, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING, TensorProto.FLOAT
Feeds = dict[str, Any]


def _saved(folder: Path, model: onnx.ModelProto) -> None:
    onnx.save(model, folder / "model.onnx")


def _at_opset(version: int, nodes: Any, inputs: Any, outputs: Any, **more: Any) -> onnx.ModelProto:
    """As `make`, at another opset."""
    return make(nodes, inputs, outputs, domains={"": version}, **more)


def branches(folder: Path) -> Feeds:
    """If, with a value of the main graph and a weight in each branch."""
    weight = numpy_helper.from_array(numbers(3, seed=1), "v")
    then = helper.make_graph([node("Mul", "a v", "b")], "then", [], values("b"), [weight])
    other = helper.make_graph([node("Sub", "a x", "c")], "else", [], values("c"))
    nodes = [
        node("Tanh", "x", "a"), node("If", "flag", "d", then_branch=then, else_branch=other), node("Neg", "d", "y"),
    ]  # fmt: skip
    _saved(folder, make(nodes, [*values("x"), *values("flag", shape=(), dtype=BOOL)], values("y")))
    return {"x": numbers(2, 3), "flag": np.array(True)}


def loop(folder: Path) -> Feeds:
    """Loop with a carried and a scanned output, and an If inside that reads the main graph."""
    then = helper.make_graph([node("Add", "carried w", "t")], "then", [], values("t"))
    other = helper.make_graph([node("Mul", "carried a", "e")], "else", [], values("e"))
    body = helper.make_graph(
        [
            node("Identity", "go", "on"), node("Equal", "i two", "at"),
            node("If", "at", "more", then_branch=then, else_branch=other),
            node("ReduceMax", "more", "most", keepdims=0),
        ],
        "body", [*values("i", shape=(), dtype=INT64), *values("go", shape=(), dtype=BOOL), *values("carried")],
        [*values("on", shape=(), dtype=BOOL), *values("more"), *values("most", shape=())],
    )  # fmt: skip
    nodes = [node("Sigmoid", "x", "a"), node("Loop", "n yes a", "last all", body=body), node("Neg", "last", "y")]
    weights = {"yes": np.array(True), "two": np.array(2), "w": numbers(2, 3, seed=2)}
    inputs = [*values("x"), *values("n", shape=(), dtype=INT64)]
    _saved(folder, make(nodes, inputs, [*values("y"), *values("all", shape=(None,))], weights=weights))
    return {"x": numbers(2, 3), "n": np.array(4)}


def scan(folder: Path) -> Feeds:
    """Scan: a sum that runs along the rows."""
    body = helper.make_graph(
        [node("Add", "before row", "after"), node("Identity", "after", "out")], "body",
        values("before", "row", shape=(3,)), values("after", "out", shape=(3,)),
    )  # fmt: skip
    nodes = [
        node("Abs", "x", "a"), node("Scan", "zero a", "sum rows", body=body, num_scan_inputs=1),
        node("Div", "rows sum", "y"),
    ]  # fmt: skip
    _saved(folder, make(nodes, values("x"), values("y"), weights={"zero": np.zeros(3, np.float32)}))
    return {"x": numbers(2, 3)}


def sequences(folder: Path) -> Feeds:
    """A sequence that goes from node to node and is an output."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    nodes = [
        node("Relu", "x", "a"), node("SplitToSequence", "a", "s", axis=0, keepdims=1),
        node("SequenceInsert", "s x", "t"), node("ConcatFromSequence", "t", "y", axis=0),
    ]  # fmt: skip
    outputs = [helper.make_value_info("t", sequence), *values("y", shape=(None, 3))]
    _saved(folder, make(nodes, values("x"), outputs))
    return {"x": numbers(2, 3)}


def sequence_input(folder: Path) -> Feeds:
    """A sequence as an input."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [None, 3]))
    nodes = [node("SequenceAt", "s one", "a"), node("SequenceLength", "s", "n"), node("Neg", "a", "y")]
    outputs = [*values("y", shape=(None, 3)), *values("n", shape=(), dtype=INT64)]
    _saved(folder, make(nodes, [helper.make_value_info("s", sequence)], outputs, weights={"one": np.array(1)}))
    return {"s": [numbers(1, 3), numbers(2, 3, seed=1)]}


def optional(folder: Path) -> Feeds:
    """An optional that one node makes and another opens."""
    kind = helper.make_tensor_type_proto(FLOAT, [2, 3])
    nodes = [
        node("Neg", "x", "a"), helper.make_node("Optional", ["a"], ["o"], type=kind),
        node("OptionalGetElement", "o", "b"), node("Relu", "b", "y"),
    ]  # fmt: skip
    _saved(folder, make(nodes, values("x"), values("y")))
    return {"x": numbers(2, 3)}


def strings(folder: Path) -> Feeds:
    """Strings in, strings between nodes, strings and numbers out."""
    nodes = [
        node("StringNormalizer", "words", "plain", case_change_action="LOWER", locale="C"),
        node("StringConcat", "plain ending", "said"), node("StringSplit", "said", "parts counts", delimiter="-"),
    ]  # fmt: skip
    outputs = [
        *values("said", shape=(None,), dtype=STRING), *values("parts", shape=(None, None), dtype=STRING),
        *values("counts", shape=(None,), dtype=INT64),
    ]  # fmt: skip
    weights = {"ending": np.array(["-end"], object)}
    model = _at_opset(20, nodes, values("words", shape=(None,), dtype=STRING), outputs, weights=weights)
    _saved(folder, model)
    return {"words": np.array(["Grüße", "a-B", ""], object)}


def labels(folder: Path) -> Feeds:
    """LabelEncoder from strings to numbers and back."""
    nodes = [
        node("LabelEncoder", "words", "k", domain="ai.onnx.ml", keys_strings=["a", "b"], values_int64s=[3, 5]),
        node("Abs", "k", "m"),
        node("LabelEncoder", "m", "y", domain="ai.onnx.ml", keys_int64s=[3, 5], values_strings=["three", "five"]),
    ]
    inputs, outputs = (values(name, shape=(None,), dtype=STRING) for name in ("words", "y"))
    _saved(folder, make(nodes, inputs, outputs, domains={"ai.onnx.ml": 3}))
    return {"words": np.array(["a", "b", "a", "none"], object)}


def maps(folder: Path) -> Feeds:
    """Ends in ZipMap: a dict for each row."""
    nodes = [
        node("Relu", "x", "r"), node("Softmax", "r", "p"),
        node("ZipMap", "p", "y", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]  # fmt: skip
    rows = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, None))
    outputs = [helper.make_value_info("y", helper.make_sequence_type_proto(rows))]
    _saved(folder, make(nodes, values("x"), outputs, domains={"ai.onnx.ml": 3}))
    return {"x": numbers(2, 3)}


def map_input(folder: Path) -> Feeds:
    """DictVectorizer takes a map."""
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, None))
    nodes = [
        node("DictVectorizer", "d", "a", domain="ai.onnx.ml", string_vocabulary=["one", "two"]), node("Neg", "a", "y"),
    ]  # fmt: skip
    inputs = [helper.make_value_info("d", kind)]
    _saved(folder, make(nodes, inputs, values("y", shape=(None, None)), domains={"ai.onnx.ml": 1}))
    return {"d": {"one": 1.5, "two": -2.0}}


def functions(folder: Path) -> Feeds:
    """Functions of the model's own, one inside another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = [node("Exp", "i", "e"), node("Add", "e i", "o")]
    outer = [node("Inner", "i", "a", domain="own"), node("Inner", "a", "o", domain="own")]
    bodies = {"Inner": inner, "Outer": outer}
    made = [helper.make_function("own", name, ["i"], ["o"], body, opsets) for name, body in bodies.items()]
    nodes = [node("Neg", "x", "a"), node("Outer", "a", "b", domain="own"), node("Abs", "b", "y")]
    _saved(folder, make(nodes, values("x"), values("y"), functions=made, domains={"own": 1}))
    return {"x": numbers(2, 3)}


def bfloat16(folder: Path) -> Feeds:
    """bfloat16 from end to end."""
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [3, 3], numbers(3, 3, seed=1).ravel())
    nodes = [
        node("Cast", "x", "f", to=FLOAT), node("Cast", "w", "v", to=FLOAT), node("MatMul", "f v", "g"),
        node("Cast", "g", "h", to=TensorProto.BFLOAT16), node("Cast", "h", "k", to=FLOAT), node("Neg", "k", "n"),
        node("Cast", "n", "y", to=TensorProto.BFLOAT16),
    ]  # fmt: skip
    model = make(nodes, *(values(name, dtype=TensorProto.BFLOAT16) for name in "xy"))
    model.graph.initializer.append(weight)
    _saved(folder, model)
    return {"x": numbers(2, 3).astype(ml_dtypes.bfloat16)}


def float8(folder: Path) -> Feeds:
    """float8 between nodes, and weights of four bits."""
    weight = helper.make_tensor("w", TensorProto.INT4, [3], [-3, 2, 7])
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"), node("DequantizeLinear", "q scale zero", "d"),
        node("DequantizeLinear", "w scale", "v"), node("Mul", "d v", "y"),
    ]  # fmt: skip
    model = _at_opset(21, nodes, values("x"), values("y"), weights={"scale": np.float32(0.25)})
    model.graph.initializer.extend([weight, helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])])
    _saved(folder, model)
    return {"x": numbers(2, 3)}


def old_weights(folder: Path) -> Feeds:
    """IR version 3: weights are inputs, too; and a constant part."""
    nodes = [node("Exp", "w", "k"), node("Add", "x k", "a"), node("Mul", "a w", "y")]
    weights = {"w": numbers(2, 3, seed=1)}
    _saved(folder, make(nodes, values("x", "w"), values("y"), weights=weights, ir_version=3))
    return {"x": numbers(2, 3)}


def equal_nodes(folder: Path) -> Feeds:
    """Nodes that onnxruntime merges or leaves out: equal ones, Identity, Dropout, two Casts that undo each other."""
    nodes = [
        node("Relu", "x", "a"), node("Relu", "x", "b"), node("Identity", "b", "c"), node("Dropout", "c", "d"),
        node("Cast", "d", "e", to=TensorProto.DOUBLE), node("Cast", "e", "f", to=FLOAT), node("Add", "a f", "y"),
    ]  # fmt: skip
    _saved(folder, make(nodes, values("x"), values("y", "c")))
    return {"x": numbers(2, 3)}


def sparse(folder: Path) -> Feeds:
    """A sparse weight."""
    where = numpy_helper.from_array(np.array([1, 5]), "")
    weight = helper.make_sparse_tensor(numpy_helper.from_array(np.float32([2, 3]), "w"), where, [2, 3])
    model = make([node("Neg", "x", "a"), node("Add", "a w", "b"), node("Abs", "b", "y")], values("x"), values("y"))
    model.graph.sparse_initializer.append(weight)
    _saved(folder, model)
    return {"x": numbers(2, 3)}
