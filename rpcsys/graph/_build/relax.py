"""Stages compiled by TVM's Relax, for a device that has TVM's runtime and nothing else.

The library is in TVM's own format, with the weights as constants; ``main`` takes the stage's inputs in their order.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError, one_line
from rpcsys.graph._build.targets import Tvm
from rpcsys.graph._ir import models
from rpcsys.graph._ir.stage import Stage
from rpcsys.module import library
from rpcsys.module import toolchain as toolchains
from rpcsys.module.kinds.library import LibraryModule


def compiled(stage: Stage, target: Tvm) -> LibraryModule:
    """The stage as a library for ``target``.

    Raises `UsageError` if TVM is not installed or does not know an operator or the target, or without a compiler for it.
    """
    try:
        import tvm
        from tvm.relax.frontend.onnx import from_onnx
    except ImportError as error:
        raise UsageError(
            f"TVM compiles the stage, and cannot be imported ({error}); pip install 'rpcsys[tvm]'"
        ) from None
    chain = toolchains.find(target.toolchain) if target.toolchain else None
    dtypes = {tensor.name: tensor.dtype for tensor in stage.inputs}
    try:
        with tempfile.TemporaryDirectory(prefix="rpcsys-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names it does not keep; they are known here
            program = from_onnx(models.to_proto(stage.model), dtype_dict=dtypes)
            kind = target.target if isinstance(target.target, str) else dict(target.target)
            executable = tvm.compile(program, target=tvm.target.Target(kind))
            path = Path(folder, f"{stage.name}.so")
            executable.export_library(str(path), **_linker(chain))
            return library(path.read_bytes(), name=path.name, target=chain.name if chain else "")
    except Exception as error:  # noqa: BLE001 - TVM raises any of Python's classes, and its own
        raise UsageError(f"TVM cannot compile {stage.name}: {one_line(error, 400)}") from None


def _linker(chain: toolchains.Toolchain | None) -> dict[str, Any]:
    """How TVM is told which compiler links."""
    if chain is None:
        return {}
    from tvm.support import cc

    program, *options = chain.command(cxx=True)
    return {"fcompile": cc.cross_compiler(program, options=options)}
