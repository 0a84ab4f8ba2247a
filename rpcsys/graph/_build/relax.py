"""Compiles programs with TVM's Relax. Importing this file does not import TVM."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError, one_line
from rpcsys.graph._build import schedules
from rpcsys.graph._build.targets import Tvm
from rpcsys.module import library
from rpcsys.module import toolchain as toolchains
from rpcsys.module.kinds.library import LibraryModule


def compiled(program: Callable[[], Any], target: Tvm, name: str) -> LibraryModule:
    """The library of the Relax module that ``program`` makes. Raises `UsageError`, in one line."""
    chain = toolchains.find(target.toolchain) if target.toolchain else None
    with explained(name), tempfile.TemporaryDirectory(prefix="rpcsys-") as folder:
        path = Path(folder, f"{name}.so")
        executable(program(), target).export_library(str(path), **_linker(chain))
        return library(path.read_bytes(), name=path.name, target=chain.name if chain else "")


def executable(program: Any, target: Tvm) -> Any:
    """TVM's executable of a Relax module. Raises any of TVM's errors."""
    import tvm

    kind = target.target if isinstance(target.target, str) else dict(target.target)
    compiled_for = tvm.target.Target(kind)
    return tvm.compile(program, target=compiled_for, relax_pipeline=schedules.pipeline(compiled_for))


def with_plain_names(program: Any) -> Any:
    """The program with parameters of ``main`` named by numbers: a name such as ``gpu_0/data`` is none in OpenCL's C."""
    from tvm import relax

    main = program["main"]
    named = [relax.Var(f"input{place}", old.ty) for place, old in enumerate(main.params)]
    body = main.bind_params(dict(zip(main.params, named, strict=True))).body
    program.update_func(
        program.get_global_var("main"), relax.Function(named, body, main.ret_ty, main.is_pure, main.attrs)
    )
    return program


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn TVM's errors into a `UsageError` of one line, which names what is compiled."""
    try:
        import tvm  # noqa: F401
    except ImportError as error:
        why = f"cannot be imported ({error}); pip install 'rpcsys[tvm]'"
        raise UsageError(f"TVM compiles {name}, and {why}") from None
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - TVM raises any of Python's classes, and its own
        raise UsageError(f"TVM cannot compile {name}: {one_line(error, 400)}") from None


def _linker(chain: toolchains.Toolchain | None) -> dict[str, Any]:
    """The options of TVM's export that choose the linker."""
    if chain is None:
        return {}
    from tvm.support import cc

    program, *options = chain.command(cxx=True)
    return {"fcompile": cc.cross_compiler(program, options=options)}
