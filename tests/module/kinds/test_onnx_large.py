"""A model beyond protobuf's 2 GB: exported and loaded without being in memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.device_files import ROOT

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto as T  # noqa: E402 - only where onnx is
from onnx import helper as h  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS, WIDTH = 10_000, 64_000  # float32: 2.56 GB
PEAK_MB = """
def peak_mb():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
def anonymous_mb():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))
"""
EXPORT = (
    PEAK_MB
    + """
import json, sys
from rpcsys import module
module.export_library(module.onnx_module(sys.argv[1]), sys.argv[2])
print(json.dumps(anonymous_mb()))
"""
)
RUN = (
    PEAK_MB
    + """
import json, sys
import numpy as np
from rpcsys import module
model = module.load_module(sys.argv[1])
rows = model(np.array([0, 7777, 9999]))
print(json.dumps([peak_mb(), rows[:, 0].tolist(), rows[:, -1].tolist()]))
"""
)


def run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_over_two_gigabytes(tmp_path):
    weight = T(name="w", data_type=T.FLOAT, dims=(ROWS, WIDTH), data_location=T.EXTERNAL)
    size = 4 * ROWS * WIDTH
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(size))):
        weight.external_data.add(key=key, value=value)
    with (tmp_path / "weights").open("wb") as file:  # a sparse file: only non-zero parts take space
        file.truncate(size)
        for row, column in ((7777, 0), (9999, WIDTH - 1)):
            file.seek(4 * (row * WIDTH + column))
            file.write(b"\0\0\x80\x3f")  # 1.0
    model = h.make_model(
        h.make_graph(
            [h.make_node("Gather", ["w", "i"], ["y"])],
            "table",
            [h.make_tensor_value_info("i", T.INT64, ["n"])],
            [h.make_tensor_value_info("y", T.FLOAT, ["n", WIDTH])],
            [weight],
        ),
        ir_version=10,
        opset_imports=[h.make_opsetid("", 21)],
    )
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert run(EXPORT, tmp_path / "model.onnx", tmp_path / "model.so") < 300
    assert (tmp_path / "model.so").stat().st_size > 2.5e9
    peak, first, last = run(RUN, tmp_path / "model.so")
    assert peak < 300
    assert (first, last) == ([0, 1, 0], [0, 0, 1])
