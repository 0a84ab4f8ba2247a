"""Bytes that tensors take once they are encoded."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._plan import encoded_size
from rpcsys.graph._plan.encoded_size import encoded_bytes
from rpcsys.module.kinds.onnx_model import read
from rpcsys.wire import encoding
from tests.graph.running import make, node, numbers, values


def flow() -> Dataflow:
    """A float, an int64 and a sequence are made of ``x``."""
    nodes = [
        node("Relu", "x", "t"),
        node("Cast", "t", "n", to=7),
        node("SequenceConstruct", "t t", "s"),
        node("SequenceLength", "s", "k"),
        node("Add", "n k", "y"),
    ]
    return Dataflow(read(make(nodes, values("x"), values("y", dtype=7))))


@pytest.mark.parametrize("how", ["float16", "int8", "zlib", "int8+zlib"])
@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_bytes_are_those_of_the_arrays_that_a_run_makes(
    how: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoded_size, "_AT_ONCE", at_once)
    x = np.repeat(numbers(2, 1), 3, axis=1)
    found = encoded_bytes(flow(), {"t": 24, "n": 48, "y": 48}, {"x": x}, how)
    assert found["x"] == len(encoding.encode(x, how).data)
    assert found["t"] == len(encoding.encode(np.maximum(x, 0), how).data)
    assert found["n"] == (48 if "zlib" not in how else found["n"]) <= 48
    assert found.keys() == {"x", "t", "n", "y"}
