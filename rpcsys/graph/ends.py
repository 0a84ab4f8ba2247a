"""Inputs and outputs of stages as modules tell them: dicts with name, dtype, and shape where it is known."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from rpcsys.graph.stage import Stage
from rpcsys.graph.types import TensorInfo

Value: TypeAlias = dict[str, Any]


class Ends(NamedTuple):
    """What a stage takes and gives; inputs with a default left out."""

    inputs: list[Value]
    outputs: list[Value]


def ends_of(stage: Stage) -> Ends:
    """The ends of a stage."""
    return Ends(
        [described(tensor) for tensor in stage.inputs if tensor.required],
        [described(tensor) for tensor in stage.outputs],
    )


def described(tensor: TensorInfo) -> Value:
    """A tensor as modules tell it."""
    value: Value = {"name": tensor.name, "dtype": tensor.dtype}
    if tensor.shape is not None:
        value["shape"] = list(tensor.shape)
    return value
