"""rpcsys in TVM: its loader loads our libraries after ``import rpcsys.tvm``; `offload` divides a Relax module; `Runner`
measures the candidates of TVM's tuner.

``tvm.runtime.load_module("model.so")`` then loads a library of ours, and one of TVM's that holds modules of ours.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import tvm_ffi  # noqa: F401 - it loads the libtvm_ffi that TVM uses

from rpcsys.errors import UsageError
from rpcsys.module.tvm_loader import register

if TYPE_CHECKING:
    from rpcsys.result_store import ResultStore
    from rpcsys.tvm.relax_offload import RelaxOffload, offload
    from rpcsys.tvm.runner import Runner

__all__ = ["RelaxOffload", "ResultStore", "Runner", "offload", "register"]

#: Public names -> their modules, and what these need.
_HOMES = {
    **dict.fromkeys(("RelaxOffload", "offload"), ("rpcsys.tvm.relax_offload", "an offload needs TVM and graphs")),
    "ResultStore": ("rpcsys.result_store", "results need SQLite"),
    "Runner": ("rpcsys.tvm.runner", "a runner needs TVM and psutil"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562). Raises `UsageError` where a package is missing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rpcsys.tvm' has no attribute {name!r}")
    home, needs = _HOMES[name]
    try:
        value = globals()[name] = getattr(importlib.import_module(home), name)
    except ImportError as error:
        raise UsageError(f"{needs} ({error}); pip install 'rpcsys[graph,tvm]'") from None
    return value


register()
