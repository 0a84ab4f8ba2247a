"""A model beyond protobuf's 2 GB is cut without reading its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from onnx import TensorProto, save

from tests.graph.running import make, node, values

ROWS = 1 << 14
WEIGHT_BYTES = ROWS * ROWS * 4  # 1 GiB
COUNT = 3

#: Cuts the model and prints the memory it took: reading a weight takes a gigabyte.
CUT = """
import json, resource, sys, time
from rpcsys import graph
graph.split(sys.argv[1], [1])
def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = used()
stages = graph.split(sys.argv[1], [1, 2])
print(json.dumps({
    "kB": used() - before,
    "weights": [stage.weight_bytes for stage in stages],
    "crossing": [tensor.text() for stage in stages for tensor in stage.outputs],
}))
"""


def test_a_model_of_three_gigabytes_is_cut_in_place(tmp_path: Path) -> None:
    model = make(
        [node("MatMul", f"t{i} w{i}", f"t{i + 1}") for i in range(COUNT)],
        values("t0", shape=("n", ROWS)),
        values(f"t{COUNT}", shape=("n", ROWS)),
    )
    for i in range(COUNT):
        weight = model.graph.initializer.add(name=f"w{i}", dims=[ROWS, ROWS], data_type=TensorProto.FLOAT)
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights"), ("offset", i * WEIGHT_BYTES), ("length", WEIGHT_BYTES)):
            weight.external_data.add(key=key, value=str(value))
    save(model, tmp_path / "model.onnx")
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(COUNT * WEIGHT_BYTES)  # a sparse file: it takes no space on the disk
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(tmp_path / "model.onnx")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["weights"] == [WEIGHT_BYTES] * COUNT
    assert told["crossing"] == [f"float32[n, {ROWS}]"] * COUNT
    assert told["kB"] < 50_000
