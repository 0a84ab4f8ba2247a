"""Damaged libraries: loading gives an error of one sentence, and the process lives."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import module
from rpcsys.module import container
from tests.device_files import ROOT
from tests.native import FUNCTIONS

#: Loads and runs each file, and prints a line before and after, so that the file that ends a process is known.
LOAD = """
import json, sys
import numpy as np
from rpcsys.errors import RpcsysError
from rpcsys.module import load_module
for path in sys.argv[1:]:
    print("next", flush=True)
    try:
        with load_module(path) as model:
            model(np.ones((2, 32), "float32"))
        error_text = ""
    except RpcsysError as error:
        error_text = str(error)
    print(json.dumps(error_text), flush=True)
"""
COUNT = 150


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of a native function and an ONNX model, with weights of its own and shared ones."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 32]) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(np.ones((32, 32), "f4") / 32, name) for name in ("own", "shared")]
    nodes = [helper.make_node("MatMul", ["x", "own"], ["h"]), helper.make_node("MatMul", ["h", "shared"], ["y"])]
    network = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:], weights), ir_version=10)
    shared = module.params({"shared": np.ones((32, 32), "f4") / 32})
    stages = [
        module.Stage("twice", module.Sources([FUNCTIONS]), ["x"], ["h"], "double_it", [("float32", [2, 32])]),
        module.Stage("dense", module.onnx_module(network, params=shared), ["h"], ["y"]),
    ]
    value = {"dtype": "float32", "shape": [2, 32]}
    root = module.graph(stages, [{"name": "x", **value}], [{"name": "y", **value}], params=shared)
    path = tmp_path_factory.mktemp("corrupt") / "model.so"
    module.export_library(root, path)
    return path


def outcomes(paths: list[Path]) -> list[str]:
    """The error of loading each file in a separate process; empty for a file that was loaded and run."""
    command = [sys.executable, "-c", LOAD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110, check=False)
    lines = [line for line in done.stdout.splitlines() if line != "next"]
    ended_at = paths[min(len(lines), len(paths) - 1)]
    assert done.returncode == 0, f"the process ended ({done.returncode}) at {ended_at}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in lines]


def test_damaged_modules_never_end_the_process(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    place = container.read(str(library)).elf.place("__tvm_ffi__library_bin")
    assert place is not None
    size = 8 + int.from_bytes(data[place.start : place.start + 8], "little")
    rng = random.Random(11)
    paths = []
    for number in range(COUNT):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            # Half of the damage goes to the lengths and the JSON.
            at = place.start + (rng.randrange(700) if rng.random() < 0.5 else rng.randrange(size))
            damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        paths.append(tmp_path / f"damaged{number}.so")
        paths[-1].write_bytes(damaged)
    errors = outcomes([library, *paths])
    assert errors[0] == ""
    assert sum(map(bool, errors)) > COUNT / 10
    assert not [line for line in errors if "\n" in line or len(line) > 2000]


def test_a_truncated_library_never_ends_the_process(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    paths = []
    for number, length in enumerate(random.Random(3).sample(range(len(data)), 60)):
        paths.append(tmp_path / f"cut{number}.so")
        paths[-1].write_bytes(data[:length])
    assert all(outcomes(paths))
