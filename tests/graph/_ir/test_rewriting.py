from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph import samples
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.rewriting import check_division, optimised
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import assert_same, chain, make, names, node, numbers, ops, run, run_stages, values


def convolutions(length: int = 4) -> onnx.ModelProto:
    """Conv and Relu in turn, with weights."""
    nodes, weights, last = [], {}, "x"
    for i in range(length):
        weights[f"w{i}"] = numbers(2, 2, 1, 1, seed=i)
        nodes += [node("Conv", f"{last} w{i}", f"c{i}"), node("Relu", f"c{i}", f"r{i}")]
        last = f"r{i}"
    nodes.append(node("Neg", last, "y"))
    return make(nodes, values("x", shape=(1, 2, 4, 4)), values("y", shape=(1, 2, 4, 4)), weights=weights)


def function_in_a_chain() -> onnx.ModelProto:
    inner = [node("Relu", "a", "q"), node("Tanh", "q", "r"), node("Neg", "r", "b")]
    own = helper.make_function("my", "F", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
    nodes = [node("Abs", "x", "t"), helper.make_node("F", ["t"], ["u"], domain="my"), node("Sin", "u", "y")]
    return make(nodes, values("x"), values("y"), functions=[own], domains={"my": 1})


def half(model: onnx.ModelProto, by: str) -> onnx.ModelProto:
    module = pytest.importorskip({"onnxruntime": "onnxruntime.transformers.float16"}.get(by, f"{by}.float16"))
    return module.convert_float_to_float16(onnx.ModelProto.FromString(model.SerializeToString()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("by", ["onnxruntime", "onnxconverter_common"])
@pytest.mark.parametrize("cut", [2, 4, "r1", ["c1", "r2"]])
def test_a_cut_of_a_float16_model_stays_where_it_was(by: str, cut: Any) -> None:
    model = half(convolutions(), by)
    plain = graph.split(model, cut)
    exact = graph.split(model, cut, exact=True)

    def work(stages: graph.Stages) -> list[list[str]]:
        return [[op for op in ops(stage) if op != "Cast"] for stage in stages]

    assert work(exact) == work(plain)
    assert [names(stage.outputs) for stage in exact] == [names(stage.outputs) for stage in plain]
    feeds = {"x": numbers(1, 2, 4, 4).astype(np.float16)}
    assert_same(run_stages(exact, feeds), run(model, feeds))


def merged_pairs() -> onnx.ModelProto:
    """A Conv and a MatMul, each with a node behind it that onnxruntime makes part of it."""
    weights = {"w": numbers(2, 2, 1, 1), **{name: np.abs(numbers(2)) + 1 for name in "sbmv"}, "k": numbers(4, 4)}
    nodes = [
        node("Relu", "x", "r"), node("Conv", "r w", "c"), node("BatchNormalization", "c s b m v", "n"),
        node("Relu", "n", "q"), node("Reshape", "q to", "t"), node("MatMul", "t k", "p"), node("Add", "p d", "a"),
        node("Relu", "a", "y"),
    ]  # fmt: skip
    weights |= {"to": np.array([8, 4]), "d": numbers(4)}
    return make(nodes, values("x", shape=(1, 2, 4, 4)), values("y", shape=(8, 4)), weights=weights)


@pytest.mark.parametrize("cut", [2, 3, 4, 6, 7])
def test_a_float16_model_is_cut_where_a_float32_model_is(cut: int) -> None:
    """Also where onnxruntime makes two nodes one: the cut between them moves in front of it."""
    full, halved = merged_pairs(), half(merged_pairs(), "onnxruntime")
    wanted = graph.split(full, cut, exact=True)
    stages = graph.split(halved, cut, exact=True)
    assert [[op for op in ops(stage) if op != "Cast"] for stage in stages] == [ops(stage) for stage in wanted]
    assert names(stages[0].outputs) == names(wanted[0].outputs)
    feeds = {"x": numbers(1, 2, 4, 4).astype(np.float16)}
    assert_same(run_stages(stages, feeds), run(halved, feeds))


def test_a_float16_model_has_the_same_bits_as_a_whole() -> None:
    """Optimised once more, its stages' weights would become constants, and Gemm would add in another order."""
    nodes = [node("Relu", "x", "r"), node("Gemm", "r w b", "g"), node("Softmax", "g", "y")]
    weights = {"w": numbers(2048, 100), "b": numbers(100, seed=1)}
    made = make(nodes, values("x", shape=(1, 2048)), values("y", shape=(1, 100)), weights=weights)
    converter = pytest.importorskip("onnxruntime.transformers.float16")
    model = converter.convert_float_to_float16(made, keep_io_types=True)
    feeds = {"x": numbers(1, 2048, seed=2)}
    stages = graph.split(model, "r", exact=True)
    assert_same({"y": graph.build(stages)(feeds["x"])}, run(model, feeds))


@pytest.mark.slow
@pytest.mark.parametrize("keep_io_types", [False, True])
def test_a_real_network_in_float16(keep_io_types: bool) -> None:
    converter = pytest.importorskip("onnxruntime.transformers.float16")
    model = converter.convert_float_to_float16(samples.light_model("resnet50"), keep_io_types=keep_io_types)
    x = numbers(1, 3, 224, 224).astype(np.float32 if keep_io_types else np.float16)
    feeds = {model.graph.input[0].name: x}
    (expected,) = run(model, feeds).values()
    casts = int(keep_io_types)  # in front of the same nodes
    for cut in (22 + casts, 89 + casts):
        exact, plain = (graph.split(model, cut, exact=exact) for exact in (True, False))
        assert names(exact[1].inputs) == names(plain[1].inputs)
        np.testing.assert_array_equal(graph.build(exact)(x), expected)


def test_a_region_of_a_float16_model_is_found_again() -> None:
    model = half(convolutions(), "onnxruntime")
    stages = graph.partition(model, ["r1", "c2"], exact=True)
    assert [op for op in ops(stages["region"]) if op != "Cast"] == ["Relu", "Conv"]
    feeds = {"x": numbers(1, 2, 4, 4).astype(np.float16)}
    assert_same(run_stages(stages, feeds), run(model, feeds))


@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_a_quantised_model_is_cut_where_it_was_asked(tmp_path: Path, form: str) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(convolutions(), tmp_path / "m.onnx")
    feeds = {"x": numbers(1, 2, 4, 4)}

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        given = iter([feeds])

        def get_next(self) -> Any:
            return next(self.given, None)

    if form == "dynamic":
        quantization.quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx")
    else:
        how = quantization.QuantFormat[form]
        quantization.quantize_static(tmp_path / "m.onnx", tmp_path / "q.onnx", Reader(), quant_format=how)
    model = onnx.load(tmp_path / "q.onnx")
    for cut in range(1, len(model.graph.node)):
        try:
            plain = graph.split(model, cut)
        except UsageError:
            continue  # constants alone on one side
        exact = graph.split(model, cut, exact=True)
        convolutions_of = [[sum("Conv" in op for op in ops(stage)) for stage in stages] for stages in (exact, plain)]
        assert convolutions_of[0] == convolutions_of[1], cut
        assert_same(run_stages(exact, feeds), run(model, feeds))


def test_a_node_that_onnxruntime_copies_keeps_its_name_once(tmp_path: Path) -> None:
    """A DequantizeLinear with two takers becomes two; onnxruntime loads no model with two nodes of one name."""
    scale = {"s": np.float32(0.1), "w": numbers(2, 2, 1, 1)}
    nodes = [
        node("QuantizeLinear", "x s", "q", name="q"), node("DequantizeLinear", "q s", "d", name="d"),
        node("Relu", "d", "r", name="r"), node("Conv", "d w", "c", name="c"), node("Add", "r c", "y", name="y"),
    ]  # fmt: skip
    model = make(nodes, values("x", shape=(1, 2, 4, 4)), values("y", shape=(1, 2, 4, 4)), weights=scale)
    stages = graph.split(model, "r", exact=True)
    called = [each.name for stage in stages for each in stage.model.graph]
    assert "d" in called
    assert len(set(called)) == len(called) > len(nodes)
    feeds = {"x": numbers(1, 2, 4, 4)}
    assert_same({"y": graph.build(stages)(feeds["x"])}, run(model, feeds))


def test_a_node_stays_where_it_was_if_the_one_behind_it_is_left_out() -> None:
    """What makes the output of the model then has the output's name."""
    nodes = [node("Neg", "x", "a"), node("Relu", "a", "b"), node("Identity", "b", "y"), node("Abs", "a", "z")]
    stages = graph.split(make(nodes, values("x"), values("y", "z")), 2, exact=True)
    assert [ops(stage) for stage in stages] == [["Neg", "Relu"], ["Abs"]]
    assert names(stages[0].outputs) == ["y", "a"]


@pytest.mark.parametrize(("cut", "kept"), [(1, ["Abs"]), (2, ["Abs", "Relu", "Tanh", "Neg"])])
def test_what_a_function_holds_stays_with_its_call(cut: int, kept: list[str]) -> None:
    model = function_in_a_chain()
    stages = graph.split(model, cut, exact=True)
    assert ops(stages[0]) == kept
    assert_same(run_stages(stages, {"x": numbers(2, 3)}), run(model, {"x": numbers(2, 3)}))


def test_marked_stages_survive_equal_nodes() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("Relu", "x", "c"), node("Add", "b c", "y")]
    model = make(nodes, values("x"), values("y"))
    marked = graph.annotate(model, {0: ["a", "b"], 1: ["c", "y"]})
    stages = graph.partition(marked, graph.annotated(), exact=True)
    assert [ops(stage) for stage in stages] == [["Relu", "Neg"], ["Add"]]


def test_nodes_and_tensors_keep_their_names() -> None:
    old = Dataflow(read(half(chain(), "onnxruntime")))
    new, origins = optimised(old)
    found = {item.name: names(item.outputs) for item, origin in zip(new.nodes, origins, strict=True) if origin}
    assert {name: found[name] for name in ("n0", "n1", "n2")} == {"n0": ["t1"], "n1": ["t2"], "n2": ["t3"]}


def test_a_division_through_nodes_that_became_others_is_refused() -> None:
    old = Dataflow(read(chain()))
    new = Dataflow(read(make([node("Softmax", "x", "s"), node("Neg", "s", "y")], values("x"), values("y"))))
    check_division(old, [0, 0, 0, 1], new, [[], [3]], [0, 1])
    with pytest.raises(UsageError, match="no exact division there: onnxruntime makes 'n0' part of Softmax") as caught:
        check_division(old, [0, 0, 1, 1], new, [[], [3]], [1, 1])
    assert str(caught.value).endswith("divide elsewhere, or pass exact=False")
    with pytest.raises(UsageError, match="makes 'n2' part of Softmax"):
        check_division(old, [0, 0, 0, 1], new, [[2], [3]], [1, 1])
