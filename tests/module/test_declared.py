"""What a model's file declares of its inputs, and arrays that fit it or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import module
from rpcsys.errors import UsageError
from rpcsys.module import declared
from rpcsys.module.declared import Input, check_inputs, inputs_of

onnx = pytest.importorskip("onnx")
helper, TYPES = onnx.helper, onnx.TensorProto


def value(name: str, elements: int = TYPES.FLOAT, shape: Any = (1, 4)) -> Any:
    return helper.make_tensor_value_info(name, elements, shape)


def saved(path: Path, inputs: list[Any], weights: tuple[Any, ...] = (), ir_version: int = 10) -> Path:
    node = helper.make_node("Identity", [inputs[0].name], ["out"])
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("out")], list(weights))
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=ir_version).SerializeToString())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sequence = helper.make_tensor_sequence_value_info("q", TYPES.FLOAT, None)
    maybe = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2])))
    inputs = [
        value("x"), value("n", TYPES.INT64, ["batch", None, 3]), value("s", TYPES.STRING, [None]),
        value("any", TYPES.FLOAT, None), value("b", TYPES.BFLOAT16, [2]), sequence, maybe, value("w"),
    ]  # fmt: skip
    return saved(tmp_path / "m.onnx", inputs, (onnx.numpy_helper.from_array(np.zeros((1, 4), "f"), "w"),))


def test_an_onnx_model_declares_its_inputs(model: Path) -> None:
    assert inputs_of(model) == [
        Input("x", "float32", (1, 4)),
        Input("n", "int64", (None, None, 3)),
        Input("s", "strings", (None,)),
        Input("any", "float32", ()),
        Input("b"),
        Input("q"),
        Input("o", needed=False),
        Input("w", "float32", (1, 4), needed=False),
    ]


def test_a_library_declares_those_of_its_root(tmp_path: Path) -> None:
    pytest.importorskip("onnx_ir")
    pytest.importorskip("onnxruntime")
    source = saved(tmp_path / "m.onnx", [value("x"), value("n", TYPES.INT64, ["batch", 3])])
    module.export_library(module.onnx_module(source), tmp_path / "m.so")
    assert inputs_of(tmp_path / "m.so") == [Input("x", "float32", (1, 4)), Input("n", "int64", (None, 3))]


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ([{"name": "x", "dtype": "float32", "shape": [-1, "n", 3]}], [Input("x", "float32", (None, None, 3))]),
        ([{"name": "x", "dtype": "optional(x)"}, {"name": "y", "dtype": "seq(tensor(float))", "shape": []}],
         [Input("x", needed=False), Input("y")]),
        ([{"name": "x"}], [Input("x")]),
        (None, None),
        ("x", None),
    ],
)  # fmt: skip
def test_the_list_of_a_library(listed: Any, found: Any) -> None:
    assert declared._of_library(listed) == found


FITS: dict[str, Any] = {
    "x": np.zeros((1, 4), "float32"), "n": np.zeros((5, 6, 3), ">i8"), "s": np.array(["a"]),
    "any": np.float32(1), "b": np.zeros(7), "q": np.zeros(1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"w": np.ones((1, 4), "float32")}, None),
        ({"z": np.zeros(1)}, "the model has no input 'z'; it has 'x', 'n', 's', 'any', 'b', 'q', 'o', 'w'"),
        ({"x": None}, "input 'x' is missing; the model wants 'x', 'n', 's', "),
        ({"x": np.zeros((1, 5), "float32")}, r"input 'x' wants float32 \[1, 4\], and got float32 \[1, 5\]$"),
        ({"x": np.zeros((1, 4))}, r"and got float64 \[1, 4\]; convert it with .astype\('float32'\)$"),
        ({"n": np.zeros((5, 6), "int64")}, r"input 'n' wants int64 \[\?, \?, 3\], and got int64 \[5, 6\]$"),
        ({"s": np.zeros(1)}, r"'s' wants strings \[\?\], and got float64 \[1\]; convert it with .astype\('str'\)$"),
        ({"w": np.ones(3, "float32")}, "input 'w' wants float32"),
    ],
)
def test_arrays_are_checked(model: Path, change: dict[str, Any], message: str | None) -> None:
    arrays = {name: array for name, array in {**FITS, **change}.items() if array is not None}
    if message is None:
        check_inputs(model, arrays)
        return
    with pytest.raises(UsageError, match=message):
        check_inputs(model, arrays)


def test_a_file_that_cannot_be_read_declares_nothing(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:50])
    (tmp_path / "text.so").write_text("no library")
    for name in ("empty.onnx", "cut.onnx", "text.so", "none.onnx", "none.so"):
        assert inputs_of(tmp_path / name) is None
        check_inputs(tmp_path / name, {"x": np.zeros(1)})


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_read_or_declare_nothing(noise: bytes, at: int) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", shape=["n", 4])], [value("y")])
    whole = helper.make_model(graph).SerializeToString()
    for data in (noise, whole[:at] + noise + whole[at:]):
        try:
            found = list(declared._of_model(memoryview(data)))
        except (IndexError, ValueError):
            continue
        assert all(isinstance(each.name, str) and len(each.shape) <= len(data) for each in found)
