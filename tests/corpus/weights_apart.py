"""Models with weights in files of their own: several thresholds, files and offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from tests.corpus.by_onnxruntime import SHAPE, network
from tests.graph.running import numbers

Feeds = dict[str, Any]


def _apart(folder: Path, location: Callable[[onnx.TensorProto], str], threshold: int, align: int = 0) -> Feeds:
    """Weights of more than ``threshold`` bytes go into the file ``location(weight)``, at multiples of ``align``."""
    model = network()
    for weight in model.graph.initializer:
        data = onnx.numpy_helper.to_array(weight).tobytes()
        if len(data) <= threshold:
            continue
        path = folder / location(weight)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(b"\xff" * (-file.tell() % (align or 1)))
            place = {"location": location(weight), "offset": file.tell(), "length": len(data)}
            file.write(data)
        weight.ClearField("float_data")
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in place.items():
            weight.external_data.add(key=key, value=str(value))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return {"x": numbers(*SHAPE)}


def one_file(folder: Path) -> Feeds:
    """All weights in one file."""
    return _apart(folder, lambda weight: "model.onnx.data", 0)


def larger_ones(folder: Path) -> Feeds:
    """Weights of more than 64 bytes in a file, the others in the model."""
    return _apart(folder, lambda weight: "weights.bin", 64)


def many_files(folder: Path) -> Feeds:
    """A file for each weight, in a folder beside the model."""
    return _apart(folder, lambda weight: f"weights/{weight.name}", 0)


def offsets(folder: Path) -> Feeds:
    """Weights at multiples of a page, with bytes between them that are no weights."""
    return _apart(folder, lambda weight: "pages.bin", 0, 4096)
