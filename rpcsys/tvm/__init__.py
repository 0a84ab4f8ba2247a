"""rpcsys in TVM: its loader loads our libraries after ``import rpcsys.tvm``; `offload` divides a Relax module.

``tvm.runtime.load_module("model.so")`` then loads a library of ours, and one of TVM's that holds modules of ours.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import tvm_ffi  # noqa: F401 - it loads the libtvm_ffi that TVM uses

from rpcsys.errors import UsageError
from rpcsys.module.tvm_loader import register

if TYPE_CHECKING:
    from rpcsys.tvm.relax_offload import RelaxOffload, offload

__all__ = ["RelaxOffload", "offload", "register"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562). Raises `UsageError` where a package is missing."""
    if name not in ("RelaxOffload", "offload"):
        raise AttributeError(f"module 'rpcsys.tvm' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module("rpcsys.tvm.relax_offload"), name)
    except ImportError as error:
        raise UsageError(f"an offload needs TVM and graphs ({error}); pip install 'rpcsys[graph,tvm]'") from None
    return value


register()
