"""A model's inputs and outputs by name."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional

from rpcsys.errors import RemoteArgumentError


def not_by_name(inputs: Any, names: Iterable[str]) -> str:
    """The complaint about inputs that are not given by name; empty for those that are. ``names``: of the inputs."""
    if isinstance(inputs, Mapping):
        return ""
    example = next(iter(names), "x")
    return f"inputs are given by name, such as {{{example!r}: array}}, not as {type(inputs).__name__}"


def inputs_by_name(inputs: Any, known: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    """The inputs of a run, of a model with these ``known``. Raises `RemoteArgumentError`."""
    complaint = not_by_name(inputs, (value["name"] for value in known))
    if complaint:
        raise RemoteArgumentError(f"{complaint}; or call the module itself with arrays by place")
    return dict(inputs)


def output_names(outputs: Any) -> Optional[List[str]]:
    """The names of the wanted outputs; a text is one of them. Raises `RemoteArgumentError`."""
    if outputs is None or isinstance(outputs, str):
        return None if outputs is None else [outputs]
    try:
        return list(outputs)
    except TypeError:
        text = f"outputs are given as a list of names, such as ['y'], not as {type(outputs).__name__}"
        raise RemoteArgumentError(f"{text}; leave them out for all of them") from None
