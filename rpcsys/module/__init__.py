"""Models as trees of modules: make them, load each from one file, and run them.

Nothing is imported before it is used: a board imports only what its model needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpcsys import part

# `remote` imports from layers above this package, so it is not listed here; loading finds it by its kind.
if TYPE_CHECKING:
    from rpcsys.module.export import export_library as export_library
    from rpcsys.module.inspection import inspect as inspect
    from rpcsys.module.kinds.graph import Stage as Stage
    from rpcsys.module.kinds.graph import graph as graph
    from rpcsys.module.kinds.group import group as group
    from rpcsys.module.kinds.library import library as library
    from rpcsys.module.kinds.onnx import onnx_module as onnx_module
    from rpcsys.module.kinds.onnx_model import weights_of as weights_of
    from rpcsys.module.kinds.params import params as params
    from rpcsys.module.kinds.python import python as python
    from rpcsys.module.loading import load_module as load_module
    from rpcsys.module.module import Module as Module
    from rpcsys.module.module import walk as walk
    from rpcsys.module.registry import register as register
    from rpcsys.module.sources import Sources as Sources

#: The module of each public name.
_HOMES = {
    "Module": "module", "Sources": "sources", "Stage": "kinds.graph", "export_library": "export",
    "graph": "kinds.graph", "group": "kinds.group", "inspect": "inspection", "library": "kinds.library",
    "load_module": "loading", "onnx_module": "kinds.onnx", "params": "kinds.params", "python": "kinds.python",
    "register": "registry", "remote": "kinds.remote", "walk": "module", "weights_of": "kinds.onnx_model",
}  # fmt: skip
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rpcsys.module' has no attribute {name!r}")
    value = globals()[name] = getattr(part("rpcsys.module." + _HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
