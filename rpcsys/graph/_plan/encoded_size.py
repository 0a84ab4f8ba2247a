"""Bytes that a model's tensors take once they are encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpcsys.errors import UsageError, ValueNotSupported
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.graph._ir.ort import open_session, run
from rpcsys.wire import encoding
from rpcsys.wire.tensor import as_tensor

#: Bytes of tensors that are looked at in one run of a model, about.
_AT_ONCE = 1 << 26


def encoded_bytes(flow: Dataflow, nbytes: Mapping[str, int], feeds: Mapping[str, Any], how: str) -> dict[str, int]:
    """Bytes of the tensors in ``nbytes`` and of the inputs, by name, encoded as ``how`` says; the model is run for it.

    A tensor that ``how`` does not apply to has its own.

    Raises
    ------
    ModelError : the model does not run with these inputs
    """
    model = flow.model.clone()
    made = {value.name: value for node in model.graph for value in node.outputs if value.name in nbytes}
    given = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(value for name, value in made.items() if name not in given)
    session = open_session(model)
    found = {name: _encoded(value, how) for name, value in feeds.items()}
    for names in _portions(made, nbytes):
        values = run(session, names, feeds)
        found.update((name, _encoded(value, how)) for name, value in zip(names, values, strict=True))
    return found


def _portions(names: Iterable[str], nbytes: Mapping[str, int]) -> Iterable[Sequence[str]]:
    """The names in groups of about `_AT_ONCE` bytes."""
    portion: list[str] = []
    for name in names:
        portion.append(name)
        if sum(nbytes[each] for each in portion) > _AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion


def _encoded(value: Any, how: str) -> int:
    tensor = as_tensor(value)
    if tensor is None:
        return 0
    try:
        made = encoding.encode(value, how)
    except (UsageError, ValueNotSupported):  # what cannot be encoded so crosses as it is
        made = tensor
    return len(made.data if isinstance(made, encoding.Encoded) else tensor.data)
