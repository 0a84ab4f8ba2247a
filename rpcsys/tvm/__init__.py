"""rpcsys in TVM: its loader loads our libraries after ``import rpcsys.tvm``; `offload` divides a Relax module.

``tvm.runtime.load_module("model.so")`` then loads a library of ours, and one of TVM's that holds modules of ours.
"""

from __future__ import annotations

import tvm_ffi  # noqa: F401 - it loads the libtvm_ffi that TVM uses

from rpcsys.module.tvm_loader import register

__all__ = ["register"]

register()
