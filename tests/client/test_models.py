"""What is sent of a model, and in which order; the files are loaded in a session's process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper as h  # noqa: E402 - only where onnx is

from rpcsys.client import models  # noqa: E402
from rpcsys.errors import UsageError  # noqa: E402
from tests.device import Device  # noqa: E402

WEIGHTS = {"small": np.float32(range(4)), "large": np.linspace(0, 1, 4000, dtype=np.float32).reshape(1000, 4)}


def model() -> onnx.ModelProto:
    """``y = x * large + small``, with a weight on each side of every size threshold."""
    value = h.make_tensor_value_info
    return h.make_model(
        h.make_graph(
            [h.make_node("Mul", ["x", "large"], ["m"]), h.make_node("Add", ["m", "small"], ["y"])], "g",
            [value("x", 1, [4])], [value("y", 1, [1000, 4])],
            [onnx.numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
        ),
        ir_version=10, opset_imports=[h.make_opsetid("", 21)],
    )  # fmt: skip


def in_two_files(folder: Path) -> Path:
    """The model, with weights at offsets of two files, one in a folder of its own."""
    path, proto = folder / "m.onnx", model()
    (folder / "in").mkdir(parents=True)
    for tensor, location, offset in zip(proto.graph.initializer, ("a.bin", "in/b.bin"), (0, 64), strict=True):
        (folder / location).write_bytes(bytes(offset) + tensor.raw_data)
        for key, value in (("location", location), ("offset", offset), ("length", len(tensor.raw_data))):
            tensor.external_data.add(key=key, value=str(value))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(proto.SerializeToString())
    return path


X = np.float32([1, 2, 3, 4])
Y = X * WEIGHTS["large"] + WEIGHTS["small"]


def test_the_model_comes_last(tmp_path: Path) -> None:
    path = in_two_files(tmp_path)
    size = path.stat().st_size
    assert models.parts(path, "sub/other.onnx") == [
        models.ModelFile(str(tmp_path / "a.bin"), "sub/a.bin", 16),
        models.ModelFile(str(tmp_path / "in/b.bin"), "sub/in/b.bin", 16064),
        models.ModelFile(path, "sub/other.onnx", size),
    ]
    assert models.parts(b"ELF", "m.so") == [models.ModelFile(b"ELF", "m.so", 3)]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the file 'a.bin' of its weights would both be a.bin there"):
        models.parts(in_two_files(tmp_path), "a.bin")


def test_openvinos_weights_have_the_name_of_their_model(tmp_path: Path) -> None:
    path, weights = tmp_path / "m.xml", tmp_path / "m.bin"
    path.touch()
    weights.write_bytes(bytes(5))
    assert models.parts(path, "sub/other.xml") == [
        models.ModelFile(str(weights), "sub/other.bin", 5),
        models.ModelFile(path, "sub/other.xml", 0),
    ]
    with pytest.raises(UsageError, match="bytes lie in no folder"):
        models.parts(b'<layer type="Const"/>', "m.xml")


def test_bytes_that_name_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^m.onnx keeps weights in 'a.bin', and bytes lie in no folder"):
        models.parts(in_two_files(tmp_path).read_bytes(), "m.onnx")


@pytest.mark.parametrize("cached", [False, True])
def test_a_session_loads_a_model_with_its_files(tmp_path: Path, cached: bool) -> None:
    path = in_two_files(tmp_path / "here")
    job = {"cache": [str(tmp_path / "cache"), 1 << 20]} if cached else {}
    for _ in range(2):  # the second time they may come from the cache
        said: list[tuple[int, ...]] = []
        with Device(**job) as device, device.session() as session:
            loaded = session.load_module(path, progress=lambda *both, said=said: said.append(both))
            assert session.listdir() == ["a.bin", "in", "m.onnx"]
            assert np.array_equal(loaded(X), Y)
        total = 16 + 16064 + path.stat().st_size
        assert said == sorted(said)
        assert said[-1] == (total, total)


def test_nothing_is_sent_of_a_model_without_its_files(tmp_path: Path) -> None:
    path = in_two_files(tmp_path)
    (tmp_path / "in/b.bin").unlink()
    with Device() as device, device.session() as session:
        with pytest.raises(UsageError, match=r"^m.onnx keeps weights in 'in/b.bin', and .* has no such file"):
            session.load_module(path)
        assert session.listdir() == []
