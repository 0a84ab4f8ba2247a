"""OpenVINO's own models, two files each: equal to OpenVINO's own Python; and ONNX models without onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openvino")

import openvino

from rpcsys.errors import ModelError
from rpcsys.graph import samples
from rpcsys.module import load_module
from tests.device_files import ROOT
from tests.module import runtime_models as models
from tests.module.onnx_models import product


@pytest.mark.parametrize("name", models.CASES)
def test_outputs_are_those_of_openvino(name: str, tmp_path: Path) -> None:
    path = models.written(name, ".xml", tmp_path)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    wanted = openvino.Core().compile_model(path, "CPU", settings)(models.given(name))
    module = load_module(path)
    found = module(*models.given(name))
    for place, array in enumerate(found if isinstance(found, tuple) else (found,)):
        np.testing.assert_array_equal(array, wanted[place])


def test_outputs_of_all_kinds_belong_to_their_caller(tmp_path: Path) -> None:
    from openvino import opset13 as ops

    x = ops.parameter([4, 3], np.float32, name="x")
    double = ops.multiply(x, np.float32(2))
    nodes = [
        x, double, double, ops.constant(np.arange(3, dtype=np.int64)), ops.reduce_sum(x, [0, 1], keep_dims=False),
        ops.greater(x, np.float32(1)), ops.slice(x, [0], [0], [1], [0]), ops.non_zero(x, "i64"),
    ]  # fmt: skip
    openvino.save_model(openvino.Model(nodes, [x], "kinds"), tmp_path / "kinds.xml", compress_to_fp16=False)
    own = openvino.Core().compile_model(tmp_path / "kinds.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    module = load_module(tmp_path / "kinds.xml")
    given = [np.zeros((4, 3), "f4"), np.arange(12, dtype="f4").reshape(4, 3), np.ones((4, 3), "f4")]
    found = [module(one) for one in given]
    for one, arrays in zip(given, found, strict=True):
        wanted = own([one])
        for place, array in enumerate(arrays):
            np.testing.assert_array_equal(array, wanted[place])
            assert (array.dtype, array.shape) == (wanted[place].dtype, wanted[place].shape)
            array[...] = 0  # it is written to, and belongs to no other call


def test_a_device_of_openvino(tmp_path: Path) -> None:
    path = models.written("both", ".xml", tmp_path)
    assert load_module(path, device="openvino:CPU").device == "openvino:CPU"
    with pytest.raises(ModelError, match=r"both\.xml is for openvino:NPU, and OpenVINO here has openvino:CPU"):
        load_module(path, device="openvino:NPU")
    with pytest.raises(ModelError, match=r"both\.xml is for cuda:0, and OpenVINO's devices are named like openvino"):
        load_module(path, device="cuda:0")


def test_weights_that_are_missing_or_of_another_model(tmp_path: Path) -> None:
    path = models.written("perceptron", ".xml", tmp_path)
    path.with_suffix(".bin").write_bytes(b"\0" * 8)
    with pytest.raises(ModelError, match=r"perceptron\.xml cannot be loaded by OpenVINO: [^\n]*Incorrect weights"):
        load_module(path)
    path.with_suffix(".bin").unlink()
    with pytest.raises(ModelError, match=r"perceptron\.xml cannot be loaded by OpenVINO: [^\n]*cannot be found"):
        load_module(path)


_WITHOUT = """
import sys
sys.modules["onnxruntime"] = None
import numpy
from rpcsys.module import load_module
module = load_module(sys.argv[1])
print(module.kind, module.runtime, module(numpy.ones((2, 300), "f4")).shape)
"""


def test_an_onnx_model_runs_where_onnxruntime_is_not_installed(tmp_path: Path) -> None:
    samples.save(product(), tmp_path / "model.onnx")
    words = [sys.executable, "-c", _WITHOUT, tmp_path / "model.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.startswith("rpcsys.openvino OpenVINO (2, "), done.stderr
