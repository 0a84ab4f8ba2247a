"""Stages of one model on the CPU, on OpenCL and in OpenVINO, as one library: equal to the whole, and what is copied."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import ModelError
from rpcsys.module import Module, export_library, load_module, placement
from tests import opencl_here
from tests.opencl_here import DEVICE

onnx = pytest.importorskip("onnx")
pytest.importorskip("openvino")

X = np.random.default_rng(1).standard_normal((4, 64)).astype("f4")


@pytest.fixture(autouse=True, scope="module")
def opencl() -> None:
    opencl_here.load()


@pytest.fixture(scope="module")
def stages() -> Any:
    """A network of three layers, one in each stage."""
    h, rng = onnx.helper, np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for layer in range(3):
        weight = rng.standard_normal((64, 64)).astype("f4") / 8
        weights.append(onnx.numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(h.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"]))
        nodes.append(h.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        name = f"r{layer}"
    ends = [h.make_tensor_value_info(each, 1, [4, 64]) for each in ("x", name)]
    made = h.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    model = h.make_model(made, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    return graph.split(model, ["r0", "r1"])


@pytest.fixture(scope="module")
def expected(stages: Any) -> np.ndarray:
    return graph.build(stages)(X)


def loaded(stages: Any, targets: Mapping[str, Any], path: Path) -> Module:
    export_library(graph.build(stages, targets), path)
    return load_module(path)


OPENCL, OPENVINO = graph.Tvm("opencl"), "openvino:CPU"


@pytest.mark.parametrize(
    ("targets", "devices", "there", "back"),
    [
        ({"stage1": OPENCL}, ("cpu:0", DEVICE), 1, 1),
        ({"stage1": "tvm:opencl", "stage2": OPENCL}, ("cpu:0", DEVICE), 1, 1),
        ({"stage0": graph.Tvm("opencl", device=DEVICE)}, (DEVICE, "cpu:0"), 1, 1),
        ({"stage1": graph.OnnxRuntime(device=OPENVINO), "stage2": OPENCL}, ("cpu:0", OPENVINO, DEVICE), 1, 1),
    ],
)
def test_stages_on_devices(
    stages: Any, expected: np.ndarray, tmp_path: Path, targets: Any, devices: Any, there: int, back: int
) -> None:
    module = loaded(stages, targets, tmp_path / "model.so")
    assert module.devices == devices
    figures = placement.queue(DEVICE).figures
    before = (figures.copied_in, figures.copied_out)
    result = placement.on_host(module(X))
    assert np.abs(result - expected).max() < 1e-4
    assert (figures.copied_in - before[0], figures.copied_out - before[1]) == (there, back)


def test_several_threads_take_turns(stages: Any, expected: np.ndarray, tmp_path: Path) -> None:
    module = loaded(stages, {"stage1": OPENCL}, tmp_path / "model.so")
    module(X)
    seen = len(placement.runs())
    wrong: list[int] = []

    def run(number: int) -> None:
        for _ in range(10):
            wrong.extend([number] * (not np.allclose(placement.on_host(module(X)), expected, atol=1e-4)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    runs = sorted(placement.runs()[seen:], key=lambda run: run.began)
    for device in module.devices:
        own = [run for run in runs if run.device == device]
        assert all(one.ended <= other.began for one, other in itertools.pairwise(own))


def test_another_kind_of_device_is_refused_when_it_is_loaded(stages: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    export_library(graph.build(stages["stage0"], graph.Tvm("opencl", device="opencl:77")), path)
    with pytest.raises(ModelError, match="there is no opencl:77"):
        load_module(path)
