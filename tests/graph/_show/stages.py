"""Stages to be shown."""

from __future__ import annotations

from rpcsys import graph
from tests.graph.running import make, node, numbers, values


def three_stages() -> graph.Stages:
    model = make(
        [
            node("Add", "x w", "a<b", name="first"),
            node("Neg", "a<b", "c"),
            node("NonZero", "c", "n"),
            node("Mul", "a<b c", "y"),
        ],
        values("x"),
        [*values("y"), *values("n", shape=(2, None), dtype=7)],
        weights={"w": numbers(2, 3)},
    )
    return graph.split(model, [1, 3])
