"""A model in a folder that inference servers load: Triton by config.pbtxt, OpenVINO by its place, MLServer by JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.graph._ir.stage import Stage
from rpcsys.graph._ir.tensor_info import TensorInfo
from rpcsys.wire.inference import NAMES

_PLATFORM = "onnxruntime_onnx"


def write_model(folder: str | os.PathLike[str], name: str, version: str, stage: Stage) -> None:
    """Write the stage as ``FOLDER/NAME/VERSION/model.onnx``, and its description beside.

    MLServer itself runs no ONNX: its variable MLSERVER_MODEL_IMPLEMENTATION says what does.
    Raises `UsageError` for a tensor that has no form in the servers' protocol, and where nothing can be written.
    """
    place = Path(folder, name)
    inputs = [_described(tensor) for tensor in stage.inputs if tensor.required]
    outputs = [_described(tensor) for tensor in stage.outputs]
    settings = {
        "name": name,
        "platform": _PLATFORM,
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"uri": f"./{version}/model.onnx", "version": version},
    }
    try:
        (place / version).mkdir(parents=True, exist_ok=True)
        stage.save(place / version / "model.onnx")
        (place / "config.pbtxt").write_text(_config(name, inputs, outputs), encoding="utf-8")
        (place / "model-settings.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror or error}") from None


def _described(tensor: TensorInfo) -> dict[str, Any]:
    """A tensor in the protocol's form, with -1 for a free extent. Raises `UsageError`."""
    if tensor.dtype not in NAMES or tensor.shape is None:
        why = "no rank that is known" if tensor.dtype in NAMES else f"the type {tensor.dtype}"
        raise UsageError(f"inference servers take no tensor like {tensor.name!r}, which has {why}")
    shape = [extent if isinstance(extent, int) else -1 for extent in tensor.shape]
    return {"name": tensor.name, "datatype": NAMES[tensor.dtype], "shape": shape}


def _config(name: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> str:
    """The text of config.pbtxt: https://docs.nvidia.com/deeplearning/triton-inference-server, model configuration."""
    lines = [f"name: {json.dumps(name)}", f'platform: "{_PLATFORM}"', "max_batch_size: 0"]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        lines += [f"{kind} {{ {_fields(tensor)} }}" for tensor in tensors]
    return "\n".join([*lines, ""])


def _fields(tensor: dict[str, Any]) -> str:
    datatype = {"BYTES": "STRING"}.get(tensor["datatype"], tensor["datatype"])
    shape = f"dims: {tensor['shape']}" if tensor["shape"] else "dims: [1] reshape: { shape: [] }"
    return f"name: {json.dumps(tensor['name'])} data_type: TYPE_{datatype} {shape}"
