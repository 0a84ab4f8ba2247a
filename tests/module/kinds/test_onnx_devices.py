"""Arrays of onnxruntime in a device's memory; the memory here is the host's, under the name of a device."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from rpcsys.module import onnx_module, placement
from rpcsys.module.kinds import onnx_providers
from rpcsys.module.kinds.onnx_devices import OrtArray
from tests.graph.running import make, node, values
from tests.module.onnx_models import W, product

DEVICE = "cuda:3"


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnx_providers.MEMORIES, "cuda", "cpu")
    monkeypatch.setitem(onnx_providers._PROVIDERS, "cuda", {"CPUExecutionProvider": ""})


def test_what_lies_there_is_not_copied() -> None:
    module, x = onnx_module(product(), device=DEVICE), np.ones((2, 300), "f4")
    module._ready()._memory = ("cpu", 0)  # the host has one memory
    figures = placement.queue(DEVICE).figures
    before = (figures.copied_in, figures.copied_out)
    result = module(x)
    assert isinstance(result, OrtArray)
    assert (result.device, result.shape, result.nbytes) == (DEVICE, (2, 200), 1600)
    again = module(OrtArray(type(result.value).ortvalue_from_numpy(x), DEVICE))
    assert (figures.copied_in, figures.copied_out) == (before[0] + 1, before[1])
    assert np.array_equal(placement.on_host(result), placement.on_host(again))
    assert np.allclose(result.to_host(), x @ W, rtol=1e-4, atol=1e-4)
    assert (figures.copied_in, figures.copied_out) == (before[0] + 1, before[1] + 2)


def test_a_scalar_stays_one() -> None:
    module = onnx_module(make([node("Neg", "x", "y")], values("x", shape=()), values("y", shape=())), device=DEVICE)
    module._ready()._memory = ("cpu", 0)
    assert placement.on_host(module(np.float32(11))).shape == ()
