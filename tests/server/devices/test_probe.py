"""The process that asks one driver."""

import json
import os

import pytest

from rpcsys.server.sandbox import launch
from tests.server.devices import fakes


@pytest.mark.parametrize("works", [True, False])
def test_it_writes_what_was_found_or_the_error(tmp_path, works):
    path = fakes.library(tmp_path, "driver.so", fakes.OPENVINO) if works else str(tmp_path / "absent.so")
    settings = {"module": "openvino", "function": "find", "arguments": [path], "parent": os.getpid()}
    reading, writing = os.pipe()
    pid = launch.start("rpcsys.server.devices.probe", settings, writing, "rpcsys-devices")
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = json.load(pipe)
    assert os.waitpid(pid, 0)[1] == 0
    if works:
        assert [each["number"] for each in answer["found"]] == ["CPU", "GPU.0"]
    else:
        assert "absent.so" in answer["error"]
