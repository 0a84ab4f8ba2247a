"""A stage's inputs and outputs as modules tell them: dicts with name, dtype, and shape where it is known."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from rpcsys.graph._ir.stage import Stage
from rpcsys.graph._ir.tensor_info import TensorInfo

TensorSpec: TypeAlias = dict[str, Any]


class Signature(NamedTuple):
    """What a stage takes and gives; inputs with a default left out."""

    inputs: list[TensorSpec]
    outputs: list[TensorSpec]


def signature_of(stage: Stage) -> Signature:
    """The signature of a stage."""
    return Signature(
        [tensor_spec(tensor) for tensor in stage.inputs if tensor.required],
        [tensor_spec(tensor) for tensor in stage.outputs],
    )


def tensor_spec(tensor: TensorInfo) -> TensorSpec:
    """A tensor as modules tell it."""
    value: TensorSpec = {"name": tensor.name, "dtype": tensor.dtype}
    if tensor.shape is not None:
        value["shape"] = list(tensor.shape)
    return value
