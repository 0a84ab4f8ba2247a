"""What stages take and give, as modules tell it."""

from __future__ import annotations

from rpcsys import graph
from rpcsys.graph.ends import ends_of
from tests.graph.running import make, node, values


def test_names_types_and_shapes() -> None:
    network = make(
        [node("Tanh", "x", "h"), node("Neg", "h", "y")], values("x", shape=("n", 3)), values("y", shape=None)
    )
    first, second = graph.split(network, ["h"])
    assert ends_of(first).inputs == [{"name": "x", "dtype": "float32", "shape": ["n", 3]}]
    assert (
        ends_of(first).outputs
        == ends_of(second).inputs
        == [{"name": "h", "dtype": "float32", "shape": ["n", 3]}]
    )
    assert [value["name"] for value in ends_of(second).outputs] == ["y"]
