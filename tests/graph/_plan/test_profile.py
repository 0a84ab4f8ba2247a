"""The seconds and bytes of nodes, and the encoded bytes of their tensors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys.errors import ModelError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._plan import profile as profiling
from rpcsys.graph._plan.profile import encoded_bytes, profile, read_profile
from rpcsys.module.kinds.onnx_model import read
from rpcsys.wire import encoding
from tests.graph.running import chain, make, node, numbers, values


def test_every_node_has_its_time_and_every_tensor_its_size() -> None:
    flow = Dataflow(read(chain(3)))
    found = profile(flow, {"x": numbers(2, 3)})
    assert len(found.seconds) == 3
    assert all(0 < seconds < 1 for seconds in found.seconds)
    assert found.nbytes == {"t1": 24, "t2": 24, "y": 24}


def test_a_body_counts_with_its_node() -> None:
    then = helper.make_graph([node("Neg", "x", "a"), node("Add", "a x", "b")], "then", [], values("b"))
    other = helper.make_graph([node("Relu", "x", "c")], "else", [], values("c"))
    branch = helper.make_node("If", ["flag"], ["t"], then_branch=then, else_branch=other)
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    flow = Dataflow(read(make([branch, node("Neg", "t", "y")], [*values("x"), flag], values("y"))))
    found = profile(flow, {"x": numbers(2, 3), "flag": np.asarray(True)})
    assert len(found.seconds) == 2
    assert found.nbytes == {"t": 24, "y": 24}


def test_sequences_and_strings_have_no_size() -> None:
    nodes = [
        node("SequenceConstruct", "x x", "s"),
        node("SequenceAt", "s one", "y"),
        node("Identity", "words", "said"),
        node("Shape", "words", "n"),
    ]
    words = helper.make_tensor_value_info("words", TensorProto.STRING, [2])
    outputs = [
        *values("y"),
        helper.make_tensor_value_info("said", TensorProto.STRING, [2]),
        helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
    ]
    model = make(nodes, [*values("x"), words], outputs, weights={"one": np.asarray(1)})
    found = profile(Dataflow(read(model)), {"x": numbers(2, 3), "words": np.array(["a", "bc"], object)})
    assert found.nbytes.keys() <= {"y", "n"}
    assert found.nbytes["y"] == 24


def test_the_fastest_run_of_a_node_counts_and_foreign_events_do_not() -> None:
    flow = Dataflow(read(chain(2)))
    events = [
        {"name": "session_initialization", "dur": 1, "args": {}},
        {"name": "rpcsys#0_fence_before", "dur": 1, "args": {}},
        {"name": "rpcsys#0_kernel_time", "dur": 30, "args": {"output_type_shape": [{"float": [4]}]}},
        {"name": "rpcsys#0_kernel_time", "dur": 20, "args": {"output_type_shape": [{"float": [4]}]}},
        {"name": "inner_kernel_time", "dur": 1, "args": {}},
    ]
    found = read_profile(flow, events)
    assert found.seconds == pytest.approx([20e-6, 0])
    assert found.nbytes == {"t1": 16}


@pytest.mark.parametrize("array", [numbers(3, 2, 1), numbers(2, 3).astype("int64"), np.array(["a"], object)])
def test_inputs_that_do_not_fit_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ModelError, match="does not run with these inputs"):
        profile(Dataflow(read(_strict())), {"x": array})


def _strict() -> onnx.ModelProto:
    weights = {"w": numbers(3, 2)}
    return make([node("MatMul", "x w", "y")], values("x"), values("y", shape=(2, 2)), weights=weights)


def flow() -> Dataflow:
    """A float, an int64 and a sequence are made from ``x``."""
    nodes = [
        node("Relu", "x", "t"),
        node("Cast", "t", "n", to=7),
        node("SequenceConstruct", "t t", "s"),
        node("SequenceLength", "s", "k"),
        node("Add", "n k", "y"),
    ]
    return Dataflow(read(make(nodes, values("x"), values("y", dtype=7))))


@pytest.mark.parametrize("how", ["float16", "int8", "zlib", "int8+zlib"])
@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_encoded_bytes_are_those_of_a_runs_arrays(how: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_AT_ONCE", at_once)
    x = np.repeat(numbers(2, 1), 3, axis=1)
    found = encoded_bytes(flow(), {"t": 24, "n": 48, "y": 48}, {"x": x}, how)
    assert found["x"] == len(encoding.encode(x, how).data)
    assert found["t"] == len(encoding.encode(np.maximum(x, 0), how).data)
    assert found["n"] == (48 if "zlib" not in how else found["n"]) <= 48
    assert found.keys() == {"x", "t", "n", "y"}
