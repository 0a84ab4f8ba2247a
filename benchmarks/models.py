"""The network of the inference benchmark: squeezenet with seeded random weights, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SQUEEZENET = "squeezenet.onnx"
INPUT_SHAPE = (1, 3, 224, 224)
INPUT_BYTES = 4 * 3 * 224 * 224
OUTPUT_BYTES = 4 * 1000


def model_input() -> Any:
    """The picture that goes in: float32, 602,112 bytes."""
    import numpy as np

    return np.random.default_rng(0).random(INPUT_SHAPE, "float32")


def write_squeezenet(folder: Path) -> Path:
    """Write the model into the folder. Raises UsageError without onnx."""
    import onnx

    from rpcsys.graph import samples

    path = folder / SQUEEZENET
    onnx.save(samples.light_model("squeezenet"), path)
    return path
