from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._ir import models
from rpcsys.module.kinds.onnx_model import read
from tests.graph.running import assert_same, chain, make, node, numbers, run, values


def with_weights() -> onnx.ModelProto:
    return make([node("Add", "x w", "y")], values("x"), values("y"), weights={"w": numbers(2, 3)})


def test_every_form_of_a_model_is_read_alike(tmp_path: Path) -> None:
    proto = with_weights()
    onnx.save(proto, tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    forms = (proto, proto.SerializeToString(), str(path), path, ir.from_proto(proto))
    first, *others = (models.to_bytes(read(given)) for given in forms)
    assert others == [first] * 4
    assert_same(run(onnx.load_from_string(first), {"x": numbers(2, 3)}), run(proto, {"x": numbers(2, 3)}))


def test_reading_does_not_change_a_model() -> None:
    given = ir.from_proto(chain())
    before = ir.to_proto(given).SerializeToString()
    graph.annotate(given, {0: ["n0"]})
    graph.split(given, 2)
    assert ir.to_proto(given).SerializeToString() == before


@pytest.mark.parametrize("given", ["nowhere.onnx", Path("nowhere.onnx"), b"no model"])
def test_an_invalid_model_is_an_error_of_one_line(given: str | bytes) -> None:
    with pytest.raises(UsageError, match=r"cannot be read as an ONNX model") as caught:
        read(given)
    assert "\n" not in str(caught.value)


def test_large_weights_go_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_weights()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((200, 3), np.float32), "w"))
    graph.save(model, tmp_path / "small.onnx")
    monkeypatch.setattr(models, "EMBEDDED_BYTES", 1000)
    graph.save(model, tmp_path / "large.onnx", embedded_bytes=1000)
    assert {path.name for path in tmp_path.iterdir()} == {"small.onnx", "large.onnx", "large.onnx.data"}
    loaded = onnx.load(tmp_path / "large.onnx")
    assert (onnx.numpy_helper.to_array(loaded.graph.initializer[0]) == 1).all()
    with pytest.raises(UsageError, match="does not fit into one file; save it instead"):
        models.to_bytes(read(model))


def test_weights_in_files_stay_there(tmp_path: Path) -> None:
    model = make(
        [node("Add", "x w", "a"), node("Mul", "a v", "y")],
        values("x"),
        values("y"),
        weights={"w": numbers(2, 3), "v": numbers(2, 3, seed=1)},
    )
    feeds = {"x": numbers(2, 3, seed=2)}
    expected = run(model, feeds)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    stages = graph.split(path, 1)
    tensors = [value.const_value for stage in stages for value in stage.model.graph.initializers.values()]
    assert [tensor.name for tensor in tensors] == ["w", "v"]
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    stages.save(tmp_path / "elsewhere")
    (tmp_path / "weights").rename(tmp_path / "gone")
    first = run(onnx.load(tmp_path / "elsewhere" / "stage0.onnx"), feeds)
    second = run(onnx.load(tmp_path / "elsewhere" / "stage1.onnx"), first)
    assert_same(second, expected)
