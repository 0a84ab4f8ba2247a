"""Models of torch's exporters, where torch is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.graph.running import numbers

Feeds = dict[str, Any]


def _exported(folder: Path, *, dynamo: bool) -> Feeds:
    torch = pytest.importorskip("torch", reason="torch is not installed here: it takes 200 MB")
    if dynamo:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed here")
    torch.manual_seed(0)
    layers = torch.nn
    network = layers.Sequential(layers.Linear(4, 8), layers.ReLU(), layers.LayerNorm(8), layers.Linear(8, 3)).eval()
    example = torch.from_numpy(numbers(2, 4))
    names = {"input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(network, (example,), str(folder / "model.onnx"), dynamo=dynamo, **names)
    return {"x": numbers(2, 4)}


def by_tracing(folder: Path) -> Feeds:
    """The older exporter."""
    return _exported(folder, dynamo=False)


def by_dynamo(folder: Path) -> Feeds:
    """The newer exporter."""
    return _exported(folder, dynamo=True)
