"""Devices by OpenCL: PoCL's, and those of a driver that says nonsense."""

import pytest

from rpcsys.server.devices import board, opencl
from rpcsys.server.devices.describing import TYPES
from rpcsys.server.devices.reading import MAX_FOUND
from tests.server.devices import fakes


def test_gpus_come_first_and_what_is_not_told_is_empty(tmp_path):
    found = opencl.find(fakes.library(tmp_path, "libOpenCL.so.1", fakes.OPENCL))
    rest = {"runtime": "OpenCL 3.0 fake", "driver": ""}
    gpu = {"title": "a GPU", "memory": 2 << 30, "type": "gpu", **rest}
    assert found == [gpu, {"title": "a CPU", "memory": 1 << 30, "type": "cpu", **rest}]


def test_a_count_of_billions_and_texts_without_an_end_are_cut(tmp_path):
    found = opencl.find(fakes.library(tmp_path, "libOpenCL.so.1", fakes.OPENCL, "-DCOUNT=4000000000u", "-DGARBAGE"))
    assert len(found) == MAX_FOUND
    assert all(len(each["title"]) == 1024 for each in found)


@pytest.mark.parametrize(("status", "found"), [(-1001, True), (-6, False)])
def test_a_loader_without_a_driver_has_no_device_and_a_failure_is_told(tmp_path, status, found):
    names = ("clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo")
    rest = "\n".join(f"int {name}() {{ return -1; }}" for name in names)
    path = fakes.library(tmp_path, "libOpenCL.so.1", f"int clGetPlatformIDs() {{ return {status}; }}\n{rest}")
    if found:
        assert opencl.find(path) == []
        return
    with pytest.raises(OSError, match=f"status {status}"):
        opencl.find(path)


def test_this_machines_devices():
    path = board.drivers().get("opencl")
    if path is None:
        pytest.skip("this machine has no OpenCL; Debian: apt-get install pocl-opencl-icd")
    found = opencl.find(path)
    assert found
    assert all(each["type"] in TYPES for each in found)
    assert all(each["title"] and each["memory"] and each["runtime"].startswith("OpenCL ") for each in found)
