"""Which of onnxruntime's providers runs a model on a device."""

from __future__ import annotations

import pytest

from rpcsys.module.kinds import onnx_providers
from rpcsys.module.kinds.onnx_providers import Provider

OPENVINO = "is for openvino:CPU, which needs OpenVINOExecutionProvider of onnxruntime"
HAS = ["CUDAExecutionProvider", "MIGraphXExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("device", "provider"),
    [
        ("cuda:1", Provider("CUDAExecutionProvider", {"device_id": "1"})),
        ("rocm:0", Provider("MIGraphXExecutionProvider", {"device_id": "0"})),
        ("openvino:GPU.0", Provider("OpenVINOExecutionProvider", {"device_type": "GPU.0"})),
        ("npu:0", None),
        ("opencl:0", None),
    ],
)
def test_find(device: str, provider: Provider | None) -> None:
    assert onnx_providers.find(device, HAS) == provider
    assert bool(onnx_providers.complaint(device, HAS)) == (provider is None)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:0", "is for cuda:0, which needs CUDAExecutionProvider, and onnxruntime here has CPUExecutionProvider"),
        (
            "opencl:0",
            "is for opencl:0, and onnxruntime runs no models there; compile it for that with TVM (tvm:opencl)",
        ),
        ("openvino:CPU", f"{OPENVINO}, or the package openvino; type: python3 -m pip install openvino"),
        ("", ""),
    ],
)
def test_complaint(device: str, words: str) -> None:
    assert onnx_providers.complaint(device, HAS[-1:]) == words


def test_checked() -> None:
    assert [onnx_providers.checked(name) for name in ("cpu", "cuda", "openvino:NPU")] == ["", "cuda:0", "openvino:NPU"]
    with pytest.raises(ValueError, match="is no name of a device"):
        onnx_providers.checked("gpu0")


def test_listed() -> None:
    assert onnx_providers.listed({}, HAS) == ["CPUExecutionProvider"]
    assert onnx_providers.listed({"providers": ["A"]}, HAS) == ["A"]
    found = onnx_providers.listed({"device": "cuda:1"}, HAS)
    assert found == [("CUDAExecutionProvider", {"device_id": "1"}), "CPUExecutionProvider"]
