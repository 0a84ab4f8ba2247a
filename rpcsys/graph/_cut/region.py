"""Which nodes of a model are meant: by name, by operator, or by a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._ir.dataflow import Dataflow

#: Nodes of a model: their names (or those of tensors they make), or a function that tells of each whether it is meant.
Region: TypeAlias = Iterable[str] | Callable[[ir.Node], bool]


def operators(*names: str) -> Callable[[ir.Node], bool]:
    """All nodes of these operators: ``operators("Conv", "com.microsoft::Gelu")``, as a region."""
    wanted = {tuple(name.rpartition("::")[::2]) for name in names}

    def supported(node: ir.Node) -> bool:
        return (node.domain, node.op_type) in wanted

    return supported


def chosen(flow: Dataflow, region: Region) -> set[int]:
    """The nodes that ``region`` means. Raises `UsageError` for a name that no node has."""
    if callable(region):
        return {index for index, node in enumerate(flow.nodes) if region(node)}
    named: dict[str, int] = {}
    for index, node in enumerate(flow.nodes):
        named.update((value.name, index) for value in node.outputs if value.name)
    named.update((node.name, index) for index, node in enumerate(flow.nodes) if node.name)
    names = [region] if isinstance(region, str) else list(region)
    for name in names:
        if name not in named:
            raise UsageError(f"no node of the model is called {name!r}, and none makes a tensor of that name")
    return {named[name] for name in names}
