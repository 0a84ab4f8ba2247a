"""Which operators a target has, as a region: what `partition` can give it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from rpcsys.errors import UsageError
from rpcsys.graph._build.targets import OnnxRuntime, Target, Tvm, target_of
from rpcsys.graph._ir.models import bodies


def supported(target: Target | str) -> Callable[[ir.Node], bool]:
    """All nodes whose operators ``target`` has, for `partition`: usually with ``several=True``.

    TVM tells what its importer converts, onnxruntime which kernels a provider has. A node with bodies is taken if all
    that is in them can be. That an operator is known does not promise every type and attribute of it.

    Raises
    ------
    UsageError : a target that has no list of operators, or TVM or onnxruntime is not installed
    """
    chosen = target_of(target)
    if isinstance(chosen, Tvm):
        known = _tvm_operators()
    elif isinstance(chosen, OnnxRuntime):
        known = _onnxruntime_operators(chosen.provider)
    else:
        raise UsageError("only TVM and onnxruntime have a list of operators; graph.operators(...) takes one of yours")

    def has(node: ir.Node) -> bool:
        inner = (each for body in bodies(node) for each in body)
        return (node.domain, node.op_type) in known and all(map(has, inner))

    return has


def _tvm_operators() -> Collection[tuple[str, str]]:
    try:
        from tvm.relax.frontend.onnx import onnx_frontend
    except ImportError as error:
        raise UsageError(f"TVM cannot be imported ({error}); pip install 'rpcsys[tvm]'") from None
    table = getattr(onnx_frontend, "_get_convert_map", None)  # the importer has no public list
    if table is None:
        raise UsageError("this version of TVM does not tell its operators; graph.operators(...) takes a list of yours")
    return {("", name) for name in table()}


def _onnxruntime_operators(provider: str) -> Collection[tuple[str, str]]:
    try:
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise UsageError(f"onnxruntime cannot be imported ({error}); pip install 'rpcsys[graph]'") from None
    return {(kernel.domain, kernel.op_name) for kernel in state.get_all_opkernel_def() if kernel.provider == provider}
