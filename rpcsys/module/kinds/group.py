"""Kind ``rpcsys.group``: modules side by side, with no function of its own. What it imports is found through it."""

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
        #: The functions of what it imports, as they were when it was saved: TVM asks for them before it loads those.
        self.listed = list(listed)


def group(modules: Iterable[Module]) -> GroupModule:
    """One module that imports these."""
    return GroupModule(modules)


def save_to_bytes(module: Module, offset: int) -> Sequence[Buffer]:
    """A group is what it imports; saved is what can be found through it."""
    return packed.pack({"functions": module.functions}, [], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """A group, its imports to be attached. Raises `FormatError`."""
    about, _ = packed.unpack(data)
    names = about.get("functions")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError("is broken (a group of modules lists no functions)")
    return GroupModule((), names)
