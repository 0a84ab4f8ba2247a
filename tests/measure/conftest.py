"""A session, and models that are compared in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import measuring
from rpcsys.client import Session
from tests.device import Device


@pytest.fixture(scope="module")
def shared_session() -> Iterator[Session]:
    with Device() as device, device.session() as session:
        yield session


@pytest.fixture(scope="session")
def spin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of two functions, ``base`` and ``slower`` by 2 %."""
    return measuring.compiled(tmp_path_factory.mktemp("spin"))


@pytest.fixture(scope="session")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Models of one matrix each, 64 by 64: x A and x B."""
    np, onnx = pytest.importorskip("numpy"), pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import helper, numpy_helper

    folder, paths = tmp_path_factory.mktemp("models"), []
    for name in ("old", "new"):
        weight = np.full((64, 64), 0.5 if name == "old" else 0.25, "float32")
        ends = [helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, [4, 64]) for each in ("x", "y")]
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = helper.make_graph([node], name, ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
        opset = [helper.make_opsetid("", 17)]
        paths.append(folder / f"{name}.onnx")
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opset), paths[-1])
    return paths[0], paths[1]
