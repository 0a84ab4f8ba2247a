"""Kind ``rpcsys.openvino``: a model as OpenVINO has it, an ``.xml`` file with its weights in a ``.bin`` file beside it.

An ``.onnx`` file is one, too, where onnxruntime is not installed. Without a device a model runs on OpenVINO's CPU.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, List, Sequence

import numpy as np
import openvino

from rpcsys.errors import ModelError
from rpcsys.module.kinds import onnx_openvino, runtime_model
from rpcsys.module.kinds.onnx_openvino import OpenVinoRunner
from rpcsys.module.kinds.runtime_model import ModelFiles, RuntimeFunction, RuntimeModule, RuntimeProfiler
from rpcsys.wire.device_names import OPENVINO, parse

KIND = "rpcsys.openvino"
_CPU = f"{OPENVINO}:CPU"


def _open(files: ModelFiles, device: str, threads: int) -> Dict[str, RuntimeFunction]:
    return {"main": _function(_compiled(files, device, threads))}


def _profiler(files: ModelFiles, device: str, threads: int, name: str) -> RuntimeProfiler:
    runner = _compiled(files, device, threads, profile=True)
    assert runner.counters is not None
    return RuntimeProfiler(_function(runner), runner.counters.runs)


def _compiled(files: ModelFiles, device: str, threads: int, **more: Any) -> OpenVinoRunner:
    device = device or _CPU
    if parse(device).kind != OPENVINO:
        raise ModelError(f"is for {device}, and OpenVINO's devices are named like {OPENVINO}:CPU and {OPENVINO}:GPU")
    complaint = onnx_openvino.complaint(device)
    if complaint:
        raise ModelError(complaint)
    options = {"device": device, "threads": threads, **more} if threads else {"device": device, **more}
    return onnx_openvino.compiled(_read(files), options)


def _function(runner: OpenVinoRunner) -> RuntimeFunction:
    names = [value.name for value in runner.inputs]
    run = functools.partial(_run, runner, names, [value.name for value in runner.outputs])
    return RuntimeFunction(runner.inputs, runner.outputs, run)


def _read(files: ModelFiles) -> openvino.Model:
    core = onnx_openvino.core()
    if files.paths:
        return core.read_model(files.paths[0])
    model, *weights = files.inside
    # A copy, which OpenVINO owns: it does not keep an array that it shares.
    array = np.frombuffer(weights[0] if weights and len(weights[0]) else b"\0", "uint8")
    return core.read_model(bytes(model), openvino.Tensor(array, shared_memory=False))


def _run(runner: OpenVinoRunner, inputs: Sequence[str], outputs: List[str], args: List[object]) -> List[object]:
    return runner.run(outputs, dict(zip(inputs, args)))


_RUNTIME = runtime_model.ModelRuntime(KIND, "OpenVINO", _open, profiler=_profiler)
save_to_bytes = runtime_model.save_to_bytes
load_from_bytes = functools.partial(runtime_model.load_from_bytes, _RUNTIME)


def load(path: str, name: str, device: str = "", threads: int = 0) -> RuntimeModule:
    """Load the model at ``path``, with the weights beside it; messages call it ``name``. Raises `ModelError`."""
    weights = os.path.splitext(path)[0] + ".bin"
    paths = [path, weights] if path.endswith(".xml") and os.path.isfile(weights) else [path]
    return runtime_model.load(_RUNTIME, paths, name, device, threads)
