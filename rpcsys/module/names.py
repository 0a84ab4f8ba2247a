"""A tree of modules without the names that tell what is in it: for a library that is given away."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Dict, Iterable, List

from rpcsys.errors import UsageError
from rpcsys.module import registry
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Module, walk


class Names:
    """New names for old: the same for the same wherever it stands, and none for what is kept.

    Attributes
    ----------
    kept : names that stay
    """

    def __init__(self, kept: Iterable[str]) -> None:
        self.kept = frozenset(kept)
        self._given: Dict[str, str] = {}
        self._numbers = itertools.count()

    def __call__(self, name: str) -> str:
        """The name in the place of ``name``. No name, as ONNX has it for what is left out, stays none."""
        if not name or name in self.kept:
            return name
        if name not in self._given:
            self._given[name] = next(new for number in self._numbers if (new := f"t{number}") not in self.kept)
        return self._given[name]

    def values(self, described: Iterable[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Inputs or outputs as they are described, by their new names."""
        return [{**value, "name": self(value["name"])} for value in described]


def replaced(root: Module) -> Module:
    """A copy of the tree in which only the names of the root's inputs and outputs are left.

    Shared modules stay shared, and no weight is copied. Functions keep their names: whoever calls them knows those.
    Raises `UsageError` for a module of a kind that does not say how.
    """
    described = root.describe()
    names = Names(value["name"] for value in [*described["inputs"], *described["outputs"]])
    copies = {id(module): _copy(module, names) for module in walk(root)}
    for module in walk(root):
        copies[id(module)].attach(copies[id(child)] for child in module.imports)
    return copies[id(root)]


def _copy(module: Module, names: Names) -> Module:
    if module.kind == LIBRARY:
        return copy.copy(module)
    rename = getattr(registry.find(module.kind), "rename", None)
    if rename is None:
        raise UsageError(f"a module of kind {module.kind!r} cannot be exported without its names")
    renamed: Module = rename(module, names)
    return renamed
