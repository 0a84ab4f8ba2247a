"""Copies a tree of modules without names that describe it, for a library that is given to others.

Tensors, stages and carried libraries are renamed. Functions keep their names, because callers use them.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, Callable, Dict, Iterable, List

from rpcsys.errors import UsageError
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Module, walk


class Names:
    """New names for old: equal names get equal new names; names in ``kept`` stay."""

    def __init__(self, kept: Iterable[str]) -> None:
        self.kept = frozenset(kept)
        self._given: Dict[str, str] = {}
        self._unused = (name for number in itertools.count() if (name := f"t{number}") not in self.kept)

    def __call__(self, name: str) -> str:
        """The new name for ``name``. An empty name, which ONNX uses for an omitted tensor, stays empty."""
        if not name or name in self.kept:
            return name
        if name not in self._given:
            self._given[name] = next(self._unused)
        return self._given[name]

    def all(self, names: Iterable[str]) -> List[str]:
        return [self(name) for name in names]

    def keys(self, named: Dict[str, Any]) -> Dict[str, Any]:
        return {self(name): value for name, value in named.items()}

    def values(self, described: Iterable[Dict[str, Any]]) -> List[Dict[str, Any]]:
        """Descriptions of inputs or outputs, with their new names."""
        return [{**value, "name": self(value["name"])} for value in described]


def stripped(root: Module) -> Module:
    """A copy without names but those of the root's inputs and outputs. Raises `UsageError` for an unknown kind."""
    described = root.describe()
    names = Names(value["name"] for value in [*described["inputs"], *described["outputs"]])
    modules = list(walk(root))
    for module in modules:
        if module.kind not in _COPIES:
            raise UsageError(f"a module of kind {module.kind!r} cannot be exported without its names")
    copies = {id(module): _COPIES[module.kind](module, names) for module in modules}
    for module in modules:
        copies[id(module)].attach(copies[id(child)] for child in module.imports)
    return copies[id(root)]


def _graph(module: Any, names: Names) -> Any:
    stages = [
        {**stage, "name": f"s{number}", "inputs": names.all(stage["inputs"]), "outputs": names.all(stage["outputs"])}
        for number, stage in enumerate(module.graph["stages"])
    ]
    weights = names.all(module.graph["weights"])
    described = {"inputs": names.values(module.inputs), "outputs": names.values(module.outputs), "weights": weights}
    return type(module)({**module.graph, **described, "stages": stages})


def _onnx(module: Any, names: Names) -> Any:
    from rpcsys.module.kinds import onnx_names  # imports onnx: only for trees with such a model

    model = module.model
    renamed = model._replace(
        proto=onnx_names.renamed(bytes(model.proto), names),
        weights=names.keys(model.weights),
        shared=names.keys(model.shared),
        inputs=names.values(model.inputs),
        outputs=names.values(model.outputs),
        deflated=True,
    )
    return type(module)(lambda: renamed)


def _remote(module: Any, names: Names) -> Any:
    encode = names.keys(module.encode)
    return type(module)(module.endpoint, names.values(module.inputs), names.values(module.outputs), encode=encode)


#: Kind -> a function that copies one of its modules with other names, without its imports.
_COPIES: Dict[str, Callable[[Any, Names], Module]] = {
    LIBRARY: lambda module, names: copy.copy(module),
    "rpcsys.graph": _graph,
    "rpcsys.group": lambda module, names: type(module)(),
    "rpcsys.library": lambda module, names: type(module)(module.data, {**module.about, "name": "a library"}),
    "rpcsys.onnx": _onnx,
    "rpcsys.params": lambda module, names: type(module)(names.keys(module.tensors), module.file),
    "rpcsys.remote": _remote,
}
