"""Devices by CUDA and by HIP, whose drivers are played by small libraries."""

import pytest

from rpcsys.server import versions
from rpcsys.server.devices import cuda
from tests.server.devices import fakes


@pytest.mark.parametrize(("kind", "runtime"), [("cuda", "CUDA 12.4"), ("rocm", "ROCm 6.0.32830")])
def test_name_memory_and_versions(tmp_path, monkeypatch, kind, runtime):
    monkeypatch.setattr(versions, "driver", lambda: "535.129.03")
    hip = kind == "rocm"
    path = fakes.library(tmp_path, "driver.so", fakes.CUDA, "-DSTATUS=0", *(["-DHIP"] if hip else []))
    found = cuda.find_rocm(path) if hip else cuda.find(path)
    rest = {"runtime": runtime, "driver": "" if hip else "535.129.03"}
    assert found == [{"title": "first", "memory": 10 << 30, **rest}, {"title": "second", "memory": 11 << 30, **rest}]


def test_a_driver_without_a_device_and_one_that_fails(tmp_path):
    assert cuda.find(fakes.library(tmp_path, "none.so", fakes.CUDA, "-DSTATUS=100")) == []
    with pytest.raises(OSError, match="cuInit failed with status 803"):
        cuda.find(fakes.library(tmp_path, "old.so", fakes.CUDA, "-DSTATUS=803"))
