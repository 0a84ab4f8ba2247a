"""Kind ``rpcsys.group``: modules side by side, without functions of its own. It finds the functions of its imports."""

from __future__ import annotations

from typing import Iterable, Sequence

from rpcsys.module import packed
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context

KIND = "rpcsys.group"


class GroupModule(Module):
    """Modules side by side."""

    def __init__(self, modules: Iterable[Module] = (), listed: Sequence[str] = ()) -> None:
        super().__init__(KIND, imports=modules)
        #: The imports' functions at the time of saving: TVM reads this list before it loads the imports.
        self.listed = list(listed)


def group(modules: Iterable[Module]) -> GroupModule:
    """Make one module that imports these."""
    return GroupModule(modules)


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """The names of the functions in its imports; a group stores nothing else."""
    return packed.pack({"functions": module.functions}, [], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """Load a group; its imports are attached later. Raises `FormatError`."""
    about, _ = packed.unpack(data)
    names = about.get("functions")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError("is broken (a group of modules lists no functions)")
    return GroupModule((), names)
