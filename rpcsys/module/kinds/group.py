"""Kind ``rpcsys.group``: modules side by side, with no function of its own. What it imports is found through it."""

from __future__ import annotations

from typing import Iterable, Sequence

from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context

KIND = "rpcsys.group"


def group(modules: Iterable[Module]) -> Module:
    """One module that imports these."""
    return Module(KIND, imports=modules)


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """A group is what it imports: no bytes."""
    return []


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """A group, its imports to be attached. Raises `FormatError`."""
    if len(data):
        raise FormatError("is broken (a group of modules has bytes)")
    return group(())
