"""ONNX models on OpenVINO's CPU, by the package openvino."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("openvino")

from rpcsys.errors import ModelError, RemoteArgumentError
from rpcsys.graph import samples
from rpcsys.module import export_library, load_module, onnx_module
from tests.live import deployed
from tests.module.onnx_models import W, product

DEVICE = "openvino:CPU"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_a_network_is_equal_to_onnxruntime(name: str, tmp_path: Path) -> None:
    model, path = samples.light_model(name), tmp_path / "net.so"
    export_library(onnx_module(model, device=DEVICE, threads=1), path)
    module = load_module(path)
    assert (module.device, module.runtime) == (DEVICE, "openvino")
    inputs = samples.random_inputs(module.inputs)
    expected = onnx_module(model, threads=1).run(inputs)
    for output, array in module.run(inputs).items():
        assert np.abs(array - expected[output]).max() < 1e-4
    assert [each.name for each in tmp_path.iterdir()] == ["net.so"]


def test_place_overrides_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    export_library(onnx_module(product(), device=DEVICE), path)
    assert load_module(path, device="cpu:0").runtime == "onnxruntime"
    with pytest.raises(ModelError, match=r"model\.so is for openvino:NPU, and OpenVINO here has openvino:CPU"):
        load_module(path, device="openvino:NPU")


def test_a_file_and_several_threads(tmp_path: Path) -> None:
    samples.save(product(), tmp_path / "model.onnx")
    module = load_module(tmp_path / "model.onnx", device=DEVICE)
    wrong = []

    def run(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((3, 300)).astype("f4")
        for _ in range(20):
            wrong.extend([seed] * (not np.allclose(module(x), x @ W, rtol=1e-3, atol=1e-3)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    with pytest.raises(RemoteArgumentError, match="wants float32"):
        module(np.zeros((3, 300)))


def test_a_scalar_stays_one(tmp_path: Path) -> None:
    module = load_module(deployed.endless_model(tmp_path / "loop.onnx"), device=DEVICE)
    assert module.inputs[0]["shape"] == []
    assert int(module(np.int64(11))) == 11
