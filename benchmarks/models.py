"""The models of the cases: networks with seeded random weights, their input, and a compiled function."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

SQUEEZENET = "squeezenet.onnx"
RESNET50 = "resnet50.onnx"
ADD_LIBRARY = "add.so"
ADD_FUNCTION = "add_one"
CANDIDATE_LIBRARY, CANDIDATE_BYTES = "candidate.so", 1024  # a tuner's candidate: the same function, of 256 elements
INPUT_SHAPE = (1, 3, 224, 224)
INPUT_BYTES = 4 * 3 * 224 * 224
OUTPUT_BYTES = 4 * 1000


def model_input() -> Any:
    """The input image: float32, 602,112 bytes."""
    import numpy as np

    return np.random.default_rng(0).random(INPUT_SHAPE, "float32")


def write_squeezenet(folder: Path) -> Path:
    """Write the model into the folder. Raises UsageError without onnx."""
    import onnx

    from rpcsys.graph import samples

    path = folder / SQUEEZENET
    onnx.save(samples.light_model("squeezenet"), path)
    return path


def written_resnet50(path: str) -> Path:
    """The network at ``path``; written if it does not exist. Raises UsageError without onnx."""
    import onnx

    from rpcsys.graph import samples

    if not Path(path).exists():
        onnx.save(samples.light_model("resnet50"), path)
    return Path(path)


def written_identity(path: Path, width: int) -> Path:
    """A network that returns its input, float32 [n, width], at ``path``. Raises ModuleNotFoundError without onnx."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def compiled_add(path: str, size: int) -> Path:
    """The library with ``add_one(x, y)``, y = x + 1 over ``size`` bytes of float32; compiled if it does not exist.

    A separate process compiles: LLVM's threads and memory stay out of the measured process.
    Raises ModuleNotFoundError without tvm.
    """
    library = Path(path)
    if not library.exists():
        if importlib.util.find_spec("tvm") is None:
            raise ModuleNotFoundError("tvm, which compiles the function, is not installed", name="tvm")
        subprocess.run([sys.executable, "-m", "benchmarks.models", path, str(size)], check=True)
    return library


def write_add(path: str, size: int) -> None:
    """Compile the function with TVM and LLVM into ``path``."""
    import tvm
    from tvm import te

    x = te.placeholder((size // 4,), "float32", name="x")
    y = te.compute(x.shape, lambda i: x[i] + 1.0, name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", ADD_FUNCTION)
    tvm.compile(tvm.IRModule({ADD_FUNCTION: function}), target="llvm").export_library(path)


if __name__ == "__main__":
    write_add(sys.argv[1], int(sys.argv[2]))
