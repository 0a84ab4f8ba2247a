"""What clients see of a model, from what its host says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpcsys.gateway.batching import joinable
from rpcsys.gateway.calls import Batching, DeclaredTensor, ModelView
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.wire.inference import NAMES


def described(name: str, hello: ReplicaHello, batching: Batching | None, target: int) -> ModelView:
    """The view of model ``name``, whose host has said ``hello``. ``target`` as in `ModelView`.

    A model whose inputs and outputs the protocol cannot describe takes no calls, for the view's ``reason``.
    """
    inputs, outputs = _tensors(hello.inputs), _tensors(hello.outputs)
    return ModelView(
        name,
        version=_number(hello.version),
        whole_version=hello.version,
        kind=hello.kind,
        inputs=inputs,
        outputs=outputs,
        target=target,
        batching=batching if joinable(inputs, outputs) else None,
        reason=_reason(hello, inputs, outputs),
    )


def _tensors(values: Sequence[Mapping[str, Any]] | None) -> tuple[DeclaredTensor, ...]:
    return tuple(
        DeclaredTensor(str(value["name"]), str(value.get("dtype") or "unknown"), tuple(value.get("shape") or ()))
        for value in values or ()
    )


def _number(version: str) -> str:
    """A deployment's number without zeros; another version as it is, 1 for none."""
    number = version.partition("-")[0]
    return str(int(number)) if number.isdecimal() and number.isascii() else version or "1"


def _reason(hello: ReplicaHello, inputs: Iterable[DeclaredTensor], outputs: Iterable[DeclaredTensor]) -> str:
    if hello.inputs is None or not hello.outputs:  # a plain library of functions says that it has none
        return "its inputs and outputs are not described; call it with rpcsys.connect(…, serve=NAME)"
    for what, tensors in ("input", inputs), ("output", outputs):
        for tensor in tensors:
            if tensor.dtype not in NAMES:
                return f"{what} '{tensor.name}' is of type {tensor.dtype}, which the protocol does not have"
    return ""
