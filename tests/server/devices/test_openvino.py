"""OpenVINO's devices, by a small library that plays its own."""

from rpcsys.server.devices import openvino
from tests.server.devices import fakes


def test_its_own_names_titles_and_memory(tmp_path):
    found = openvino.find(fakes.library(tmp_path, "libopenvino_c.so", fakes.OPENVINO))
    assert found == [
        {"number": "CPU", "title": "a CPU", "memory": 0, "runtime": "OpenVINO 2026.4.1"},
        {"number": "GPU.0", "title": "a GPU", "memory": 1024, "runtime": "OpenVINO 2026.4.1"},
    ]
