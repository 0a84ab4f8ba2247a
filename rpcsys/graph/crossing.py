"""Stages on a device whose arrays cross encoded, and the bytes that takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rpcsys.client import RemoteModule, Session
from rpcsys.errors import ModelError, NotSupported, UsageError, ValueNotSupported, one_line
from rpcsys.graph.flow import Flow
from rpcsys.graph.optimise import open_session
from rpcsys.module.kinds.onnx_session import Runner
from rpcsys.wire import dtypes, encoding
from rpcsys.wire.tensor import as_tensor

#: Bytes of tensors that are looked at in one run of a model, about.
_AT_ONCE = 1 << 26


def check(session: Session, how: str, name: str) -> None:
    """Raise `NotSupported` if the device, called ``name``, cannot encode like that; `UsageError` if nothing can."""
    wanted = set(filter(None, encoding.steps(how))) if how else set()
    missing = wanted.difference(session.info.get("capabilities", {}).get("encodings") or ())
    if missing:
        raise NotSupported(
            f"{name} cannot decode {', '.join(sorted(missing))}; there: pip install 'rpcsys[zstd]' (with numpy), or "
            "encode otherwise"
        )


def coded(module: RemoteModule, how: str, **options: Any) -> Callable[..., Any]:
    """``module``, to be called with these options, and those arrays encoded both ways that ``how`` applies to; "" for none."""
    if not how:
        return functools.partial(module, **options) if options else module
    sent = [_applies(how, value) for value in module.inputs]
    returned = {str(place): how for place, value in enumerate(module.outputs) if _applies(how, value)}
    function = module["main"].encoding(returned)

    def call(*args: Any) -> Any:
        pairs = zip(args, sent, strict=True)
        return function(*[encoding.encode(arg, how) if applies else arg for arg, applies in pairs], **options)

    return call


def _applies(how: str, value: Mapping[str, Any]) -> bool:
    dtype = str(value.get("dtype"))
    return dtype in dtypes.ITEM_BYTES and encoding.applies(how, dtype)


def encoded_bytes(
    flow: Flow, nbytes: Mapping[str, int], feeds: Mapping[str, Any], how: str
) -> dict[str, int]:
    """Bytes of tensors as ``how`` has them, by name, found by running the model: of those in ``nbytes``, and the inputs.

    Where ``how`` does not apply to one, its own.

    Raises
    ------
    ModelError : the model does not run with these inputs
    """
    model = flow.model.clone()
    made = {value.name: value for node in model.graph for value in node.outputs if value.name in nbytes}
    given = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(value for name, value in made.items() if name not in given)
    runner = Runner(open_session(model, "basic"))
    checked = {value.name: value.check(feeds[value.name]) for value in runner.inputs}
    found = {name: _encoded(value, how) for name, value in feeds.items()}
    for names in _portions(made, nbytes):
        try:
            values = runner.run(list(names), checked)
        except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
            raise ModelError(
                f"the model does not run with these inputs: {one_line(error, 300)}", type="ModelError"
            ) from None
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
