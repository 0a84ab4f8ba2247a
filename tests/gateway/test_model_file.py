"""What a model's file says, without onnx and onnxruntime."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rpcsys import module
from rpcsys.errors import ModelError, UsageError
from rpcsys.gateway.model_file import about_model

VALUE = helper.make_tensor_value_info


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two inputs and a weight that is listed among them; outputs of each kind."""
    inputs = [
        VALUE("x", TensorProto.FLOAT, ["n", 3, None]),
        VALUE("w", TensorProto.FLOAT, [3]),
        VALUE("s", TensorProto.STRING, ["n"]),
    ]
    outputs = [
        VALUE("y", TensorProto.BFLOAT16, [2]),
        VALUE("z", TensorProto.INT64, []),
        helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, ["n"]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    graph = helper.make_graph([], "g", inputs, outputs, [weight])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_an_onnx_file_says_its_inputs_and_outputs(model: Path) -> None:
    assert about_model(str(model)) == {
        "kind": "rpcsys.onnx",
        "inputs": [
            {"name": "x", "dtype": "float32", "shape": [None, 3, None]},
            {"name": "s", "dtype": "strings", "shape": [None]},
        ],
        "outputs": [
            {"name": "y", "dtype": "bfloat16", "shape": [2]},
            {"name": "z", "dtype": "int64", "shape": []},
            {"name": "q", "dtype": "unknown", "shape": []},
        ],
    }


def test_a_library_says_those_of_its_root(tmp_path: Path) -> None:
    row = {"dtype": "float32", "shape": ["n", 2]}
    stage = module.Stage("main", module.python({"main": abs}), ["x"], ["y"])
    graph = module.graph([stage], [{"name": "x", **row}], [{"name": "y", **row}])
    module.export_library(graph, tmp_path / "m.so")
    assert about_model(str(tmp_path / "m.so")) == {
        "kind": "rpcsys.graph",
        "inputs": [{"name": "x", "dtype": "float32", "shape": [None, 2]}],
        "outputs": [{"name": "y", "dtype": "float32", "shape": [None, 2]}],
    }
    module.export_library(module.python({"main": abs}), tmp_path / "plain.so")
    about = about_model(str(tmp_path / "plain.so"))
    assert (about["kind"], about["inputs"], about["outputs"]) == ("rpcsys.python", None, None)


@pytest.mark.parametrize(
    ("name", "content"), [("m.onnx", b""), ("m.onnx", b"\xff" * 9), ("m.onnx", b"\x08\x07"), ("m.so", b"x")]
)
def test_a_file_that_is_no_model_is_said_to_be_none(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        about_model(str(tmp_path / name))


@pytest.mark.parametrize("name", ["m.onnx", "m.so"])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        about_model(str(tmp_path / name))


@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_any_bytes_are_a_model_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    inputs = [VALUE("x", TensorProto.FLOAT, ["n", 3])]
    whole = helper.make_model(helper.make_graph([], "g", inputs, inputs)).SerializeToString()
    at %= len(whole)
    path.write_bytes(whole[:at] + data + whole[at + len(data) :])
    try:
        about = about_model(str(path))
    except ModelError:
        return
    assert all(type(each["name"]) is str for each in about["inputs"] + about["outputs"])


@pytest.mark.parametrize("suffix", [".tflite", ".xml", ".vmfb", ".pte"])
def test_other_formats_are_put_into_a_library(suffix: str) -> None:
    with pytest.raises(ModelError, match=rf"m\{suffix}: only its runtime reads such a file; put it into a library"):
        about_model(f"/nowhere/m{suffix}")
