"""Tensors that pairs of functions or modules encode: both halves, as stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import UsageError
from rpcsys.graph._build.codec import Codec
from rpcsys.graph._ir.stage import Signature
from rpcsys.module import Module
from rpcsys.module import graph as graph_module

SIGNATURE = Signature([{"name": "x", "dtype": "float32"}, {"name": "n"}], [{"name": "y", "dtype": "float32"}])


def halved(array: Any) -> Any:
    return array.astype("f2")


def doubled(array: Any) -> Any:
    return array.astype("f4")


def part(x: Any, n: Any) -> Any:
    assert x.dtype == "f4"
    return x + n


def test_the_wire_has_named_encodings_and_pairs_are_stages() -> None:
    codec = Codec(graph.Remote("f", encode={"x": (halved, doubled), "y": "int8"}), SIGNATURE)
    assert codec.ways == {"y": "int8"}
    assert list(codec.pairs) == ["x"]
    assert codec.crossing.inputs == [{"name": "x.encoded"}, {"name": "n"}]
    assert codec.crossing.outputs == SIGNATURE.outputs
    stages = codec.here("far", Module("f", {"main": part}))
    assert [(stage.name, list(stage.inputs), list(stage.outputs)) for stage in stages] == [
        ("far: encode x", ["x"], ["x.encoded"]),
        ("far", ["x.encoded", "n"], ["y"]),
    ]


def test_both_sides_together_are_the_stage() -> None:
    pair = (halved, doubled)
    codec = Codec(graph.Remote("f", encode={"x": pair, "y": pair}), SIGNATURE)
    there = codec.there("far", Module("f", {"main": part}))
    assert [value["name"] for value in there.inputs] == ["x.encoded", "n"]
    whole = graph_module(codec.here("far", there), *SIGNATURE)
    x = np.linspace(0, 1, 7, dtype="f4")
    assert np.array_equal(whole(x, 1), (x.astype("f2").astype("f4") + 1).astype("f2").astype("f4"))


def test_without_pairs_nothing_is_added() -> None:
    codec = Codec(graph.Remote("f", encode="float16"), SIGNATURE)
    module = Module("f", {"main": part})
    assert codec.there("far", module) is module
    assert [stage.name for stage in codec.here("far", module)] == ["far"]
    assert codec.ways == {"x": "float16", "y": "float16"}


def test_a_module_in_a_pair_is_used_as_it_is() -> None:
    module = Module("f", {"main": halved})
    assert Codec(graph.Remote("f", encode={"x": (module, doubled)}), SIGNATURE).pairs["x"].encode is module


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        ({"z": (halved, doubled)}, "no tensor 'z' to encode; there are n, x, y"),
        ({"z": "int8"}, "no tensor 'z' to encode"),
        ({"x": (halved,)}, "the name of an encoding, or a pair"),
        ({"x": 7}, "the name of an encoding, or a pair"),
        ({"x": ("int8", "float16")}, "the name of an encoding, or a pair"),
    ],
)
def test_invalid_encodings_are_refused(encode: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Codec(graph.Remote("f", encode=encode), SIGNATURE)
