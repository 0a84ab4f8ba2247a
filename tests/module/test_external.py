"""The files with a model's weights: those that an ONNX model names, found without protobuf, and OpenVINO's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import TensorProto as T  # noqa: E402 - only where onnx is
from onnx import helper as h  # noqa: E402

from rpcsys.errors import UsageError  # noqa: E402
from rpcsys.module import external  # noqa: E402


def outside(name: str, location: str, **more: object) -> T:
    tensor = T(name=name, data_type=T.FLOAT, dims=(2,), data_location=T.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def everywhere() -> onnx.ModelProto:
    """A model with a tensor in a file of its own wherever ONNX lets one be."""

    def constant(name: str) -> onnx.NodeProto:
        return h.make_node("Constant", [], [name], value=outside(name, f"{name}.bin"))

    body = h.make_graph([constant("in_body")], "body", [], [], [outside("weight_of_body", "weight_of_body.bin")])
    several = h.make_node("Any", [], ["s"], domain="ours")
    several.attribute.append(h.make_attribute("tensors", [outside("listed", "listed.bin")]))
    several.attribute.append(h.make_attribute("graphs", [h.make_graph([constant("in_graphs")], "g", [], [])]))
    sparse = onnx.SparseTensorProto(values=outside("values", "values.bin"), indices=outside("indices", "indices.bin"))
    held = h.make_attribute("sparse", sparse)
    several.attribute.append(held)
    branch = h.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    function = h.make_function("ours", "F", [], ["o"], [constant("in_function")], [h.make_opsetid("", 21)])
    weights = [outside("w", "w.bin", offset=4, length=8), outside("v", "sub/v.bin")]
    graph = h.make_graph([constant("in_node"), branch, several], "main", [], [], weights, sparse_initializer=[sparse])
    model = h.make_model(graph, functions=[function])
    model.training_info.add().algorithm.initializer.append(outside("trained", "trained.bin"))
    return model


NAMES = {
    "w.bin", "sub/v.bin", "in_node.bin", "in_body.bin", "weight_of_body.bin", "listed.bin", "in_graphs.bin",
    "values.bin", "indices.bin", "in_function.bin", "trained.bin",
}  # fmt: skip


def named(model: bytes) -> list[external.Place]:
    return list(external.places_in(memoryview(model)))


def saved(folder: Path, *tensors: T) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(h.make_model(h.make_graph([], "g", [], [], tensors)).SerializeToString())
    return path


def test_a_tensor_is_found_wherever_it_is() -> None:
    model = everywhere().SerializeToString()
    assert {place.location for place in named(model)} == NAMES
    assert external.Place("w.bin", 4, 8) in named(model)


def test_a_tensor_inside_the_model_names_no_file() -> None:
    tensor = onnx.numpy_helper.from_array(np.zeros(2, np.float32), "location")
    tensor.external_data.add(key="location", value="w.bin")  # without data_location it means nothing
    assert named(h.make_model(h.make_graph([], "g", [], [], [tensor])).SerializeToString()) == []


@given(st.integers(0, 2000))
def test_a_model_that_is_cut_off_is_read_as_far_as_it_goes(length: int) -> None:
    assert {place.location for place in named(everywhere().SerializeToString()[:length])} <= NAMES


@given(st.binary(max_size=200), st.integers(0, 2000))
def test_any_bytes_are_read_without_an_error(noise: bytes, at: int) -> None:
    model = everywhere().SerializeToString()
    named(noise)
    named(model[:at] + noise + model[at:])


def test_messages_deep_inside_each_other_are_left() -> None:
    inner = b""
    for _ in range(200):  # a graph in an attribute of a node of a graph
        for tag in (0x32, 0x2A, 0x0A):
            size, prefix = len(inner), bytearray([tag])
            while size > 0x7F:
                prefix.append(size & 0x7F | 0x80)
                size >>= 7
            inner = bytes(prefix) + bytes([size]) + inner
    assert named(inner) == []


def test_files_are_found_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, outside("a", "w.bin", length=8), outside("b", "./w.bin", offset=8), outside("c", "in/c.bin"))
    (tmp_path / "in").mkdir()
    for name, size in (("w.bin", 16), ("in/c.bin", 8)):
        (tmp_path / name).write_bytes(bytes(size))
    assert [Path(each.path) for each in external.files_of(path)] == [tmp_path / "w.bin", tmp_path / "in/c.bin"]
    monkeypatch.chdir(tmp_path)
    assert [Path(each.path) for each in external.files_of("m.onnx")] == [tmp_path / "w.bin", tmp_path / "in/c.bin"]
    assert external.files_of("m.so") == []


@pytest.mark.parametrize("content", [b"", b"no model, but a location"])
def test_what_is_no_model_names_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert external.files_of(path) == []


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (outside("w", "w.bin"), r"^m.onnx keeps weights in 'w.bin', and /.* has no such file: put it there, or save "),
        (outside("w", "folder"), r"'folder', and /.* has no such file"),
        (outside("w", "short", length=8), r"'short', which has 3 bytes, not 8: it was cut off, or belongs to another"),
        (outside("w", "short", offset=9), r"which has 3 bytes, not 9"),
        (outside("w", "../w.bin"), r"'\.\./w.bin', which is not in the model's folder: save the model again, with its"),
        (outside("w", "in/../../w.bin"), r"which is not in the model's folder"),
        (outside("w", "/etc/passwd"), r"'/etc/passwd', which is not in the model's folder"),
        (outside("w", ""), r"which is not in the model's folder"),
        (outside("w", "a\u202eb"), r"'a\\u202eb', which is not in the model's folder"),
    ],
)
def test_a_file_that_cannot_be_had_is_an_error_of_one_line(tmp_path: Path, tensor: T, error: str) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=error) as caught:
        external.files_of(saved(tmp_path, tensor))
    assert "\n" not in str(caught.value)


def test_bytes_lie_in_no_folder(tmp_path: Path) -> None:
    external.check_alone(saved(tmp_path).read_bytes(), "m.onnx")
    with pytest.raises(UsageError, match=r"^m.onnx keeps weights in 'w.bin', and bytes lie in no folder: give"):
        external.check_alone(saved(tmp_path, outside("w", "w.bin")).read_bytes(), "m.onnx")


def test_the_weights_of_openvinos_models_lie_beside_them(tmp_path: Path) -> None:
    path, weights = tmp_path / "m.xml", tmp_path / "m.bin"
    path.write_bytes(b'<net><layers><layer id="0" type="Parameter"/></layers></net>')
    assert external.files_of(path) == []
    weights.touch()
    assert external.files_of(path) == [external.DataFile("m.bin", str(weights))]
    weights.unlink()
    path.write_bytes(b'<net><layers><layer id="0" type="Const"/></layers></net>')
    with pytest.raises(
        UsageError, match=r"^m\.xml keeps its weights in 'm\.bin', and .* has no such file: put it there"
    ):
        external.files_of(path)
    with pytest.raises(UsageError, match=r"^m\.xml keeps its weights in a \.bin file, and bytes lie in no folder"):
        external.check_alone(path.read_bytes(), "m.xml")
    path.unlink()
    with pytest.raises(UsageError, match="cannot read"):
        external.files_of(path)
