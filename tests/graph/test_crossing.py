"""What arrays weigh once they are encoded."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from rpcsys.errors import NotSupported, UsageError
from rpcsys.graph import crossing
from rpcsys.graph.crossing import check, coded, encoded_bytes
from rpcsys.graph.flow import Flow
from rpcsys.module.kinds.onnx_model import read
from rpcsys.wire import encoding
from tests.graph.running import make, node, numbers, values


def flow() -> Flow:
    """A float, an int64 and a sequence are made of ``x``."""
    nodes = [
        node("Relu", "x", "t"),
        node("Cast", "t", "n", to=7),
        node("SequenceConstruct", "t t", "s"),
        node("SequenceLength", "s", "k"),
        node("Add", "n k", "y"),
    ]
    return Flow(read(make(nodes, values("x"), values("y", dtype=7))))


@pytest.mark.parametrize("how", ["float16", "int8", "zlib", "int8+zlib"])
@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_bytes_are_those_of_the_arrays_that_a_run_makes(
    how: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossing, "_AT_ONCE", at_once)
    x = np.repeat(numbers(2, 1), 3, axis=1)
    found = encoded_bytes(flow(), {"t": 24, "n": 48, "y": 48}, {"x": x}, how)
    assert found["x"] == len(encoding.encode(x, how).data)
    assert found["t"] == len(encoding.encode(np.maximum(x, 0), how).data)
    assert found["n"] == (48 if "zlib" not in how else found["n"]) <= 48
    assert found.keys() == {"x", "t", "n", "y"}


def module(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> mock.MagicMock:
    made = mock.MagicMock()
    made.inputs, made.outputs = inputs, outputs
    return made


def test_only_what_it_applies_to_is_encoded() -> None:
    floats, ints = {"name": "a", "dtype": "float32"}, {"name": "b", "dtype": "int64"}
    sequence = {"name": "c", "dtype": "seq(tensor(float))"}
    remote = module([floats, ints, sequence], [ints, floats])
    coded(remote, "float16")(numbers(2), np.arange(2), [numbers(2)])
    remote["main"].encoding.assert_called_once_with({"1": "float16"})
    (first, second, third), _ = remote["main"].encoding().call_args
    assert isinstance(first, encoding.Encoded)
    assert isinstance(second, np.ndarray)
    assert isinstance(third, list)
    assert coded(remote, "") is remote


def test_a_device_that_cannot_decode_is_said() -> None:
    session = mock.MagicMock()
    session.info = {"capabilities": {"encodings": ["zlib"]}}
    check(session, "zlib", "key:edge")
    check(session, "", "key:edge")
    with pytest.raises(NotSupported, match="key:edge cannot decode int8"):
        check(session, "int8+zlib", "key:edge")
    with pytest.raises(UsageError, match="no encoding"):
        check(session, "gif", "key:edge")
