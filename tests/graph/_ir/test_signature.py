"""What stages take and give, as modules tell it."""

from __future__ import annotations

from rpcsys import graph
from rpcsys.graph._ir.signature import signature_of
from tests.graph.running import make, node, values


def test_names_types_and_shapes() -> None:
    network = make(
        [node("Tanh", "x", "h"), node("Neg", "h", "y")], values("x", shape=("n", 3)), values("y", shape=None)
    )
    first, second = graph.split(network, ["h"])
    assert signature_of(first).inputs == [{"name": "x", "dtype": "float32", "shape": ["n", 3]}]
    assert (
        signature_of(first).outputs
        == signature_of(second).inputs
        == [{"name": "h", "dtype": "float32", "shape": ["n", 3]}]
    )
    assert [value["name"] for value in signature_of(second).outputs] == ["y"]
