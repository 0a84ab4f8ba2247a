from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rpcsys.cli import serve
from tests.cli.conftest import Command
from tests.live.deployed import onnx_model

FP32 = {"name": "x", "datatype": "FP32"}


def test_the_printed_line_fits_the_model() -> None:
    url = "http://127.0.0.1:8000/v2/models/m"
    small = serve._curl(url, [{**FP32, "shape": [-1, 3]}])
    assert small == (
        'curl -d \'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0, 0, 0]}]}\' '
        "http://127.0.0.1:8000/v2/models/m/infer"
    )
    assert '"data": [""]' in serve._curl(url, [{"name": "s", "datatype": "BYTES", "shape": [1]}])
    large = serve._curl(url, [{**FP32, "shape": [-1, 3, 224, 224]}])
    assert large.startswith("head -c 602112 /dev/zero | curl -H 'Inference-Header-Content-Length: 0' ")
    for inputs in (
        [{**FP32, "shape": [100]}, {**FP32, "shape": [100]}],
        [{**FP32, "shape": [-1, -1, 100]}],
        [{"name": "s", "datatype": "BYTES", "shape": [100]}],
        [{"name": "b", "datatype": "BF16", "shape": [2]}],
    ):
        assert serve._curl(url, inputs) == f"curl {url}"


def test_files_that_are_no_models_are_refused_before_anything_starts(rpcsys: Command, tmp_path: Path) -> None:
    (tmp_path / "model.txt").touch()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        onnx_model(tmp_path / folder / "same.onnx", 2.0)
    for files, message in (
        (["no.onnx"], "no such model: no.onnx"),
        (["model.txt"], "model.txt: this serves models and libraries (.onnx, .tflite"),
        (["a/same.onnx", "b/same.onnx"], "a/same.onnx and b/same.onnx would both be same: leave out one"),
        ([], "Missing argument"),
    ):
        done = rpcsys("serve", *files)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_printed_line_calls_the_model_and_nothing_is_left(tmp_path: Path, number: int) -> None:
    onnx_model(tmp_path / "scale.onnx", 2.0)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "rpcsys", "serve", "--port", "0", "--grpc-port", "0", "scale.onnx"]
    pipe: Any = subprocess.PIPE
    served = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        assert served.stdout is not None
        line = next((line for line in served.stdout if line.startswith("curl ")), "")
        assert line, served.stderr.read()
        called = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(called.stdout)["outputs"][0]["data"] == [0.0]
        served.send_signal(number)
        assert served.wait(30) == 0, served.stderr.read()
        deadline = time.monotonic() + 20
        while list((tmp_path / "tmp").iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not list((tmp_path / "tmp").iterdir())
    finally:
        served.kill()
        served.communicate()
