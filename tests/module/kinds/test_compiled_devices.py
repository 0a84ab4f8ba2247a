"""Which device a library is compiled for, and where it may run."""

from __future__ import annotations

import pytest

from rpcsys.errors import ModelError
from rpcsys.module.kinds import compiled_devices

RELAX = "relax.VMExecutable"


@pytest.mark.parametrize(
    ("kinds", "device"),
    [([], ""), ([RELAX], ""), (["opencl", RELAX], "opencl:0"), ([RELAX, "hip"], "rocm:0"), (["rpcsys.graph"], "")],
)
def test_default(kinds: list[str], device: str) -> None:
    assert compiled_devices.default(kinds) == device
    assert compiled_devices.chosen("", kinds, [], "m.so") == device


@pytest.mark.parametrize(
    ("device", "kinds", "undefined", "found"),
    [
        ("cpu:0", [], [], ""),
        ("opencl:1", ["opencl"], [], "opencl:1"),
        ("cuda", [], ["malloc", "cudaLaunchKernel"], "cuda:0"),
        ("cuda:1", [], ["cuLaunchKernel"], "cuda:1"),
        ("opencl:0", [], ["clSetKernelArg"], "opencl:0"),
    ],
)
def test_a_device_that_it_runs_on(device: str, kinds: list[str], undefined: list[str], found: str) -> None:
    assert compiled_devices.chosen(device, kinds, undefined, "m.so") == found


@pytest.mark.parametrize(
    ("device", "kinds", "undefined", "words"),
    [
        ("cuda:0", ["opencl"], [], "m.so is compiled for opencl, not for cuda:0; compile it for the target cuda"),
        ("cpu:0", ["opencl"], [], "m.so is compiled for opencl, not for cpu:0"),
        ("opencl:0", [], ["clock", "malloc"], "m.so is compiled for the CPU, not for opencl:0"),
        ("opencl:0", [RELAX], ["clSetKernelArg"], "m.so is compiled for the CPU, not for opencl:0"),
        ("npu:0", [], ["cudaMalloc"], "m.so is compiled for the CPU, not for npu:0"),
    ],
)
def test_a_device_that_it_is_not_compiled_for(device: str, kinds: list[str], undefined: list[str], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        compiled_devices.chosen(device, kinds, undefined, "m.so")
    assert "\n" not in str(caught.value)
