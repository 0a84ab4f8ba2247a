"""Exports a tree of modules as one shared library; runs on a desktop machine.

A tree without native code needs no compiler: the ELF file is written directly, for any target. With native code the
target's compiler links it with an object file that is written directly, too: weights never become source code.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Iterator, Optional, Union

from rpcsys.errors import UsageError
from rpcsys.ffi.module import LIBRARY_BIN, LIBRARY_CTX
from rpcsys.module import elf, elfwriter, tree
from rpcsys.module import toolchain as toolchains
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Module, walk
from rpcsys.module.sources import Sources, link, write
from rpcsys.module.strip_names import stripped

Path = Union[str, os.PathLike[str]]

_numbers = itertools.count()  # for temporary names: two threads may write to the same path


def export_library(module: Module, path: Path, toolchain: Optional[Path] = None, *, strip_names: bool = False) -> None:
    """Write ``module`` and all modules that it imports as one shared library.

    `load_module` reads the tree back, and so does TVM after ``import rpcsys.tvm``. The file appears at ``path``
    complete or not at all; the same tree gives the same bytes. ``toolchain`` is the target: a name
    (``aarch64-linux-gnu``) or the path of a CMake toolchain file; None is this machine.

    ``strip_names`` removes all readable names of operators and tensors from the file, except the root's inputs and
    outputs. Functions keep their names, and compiled code keeps the text that it contains.

    Raises `UsageError` for a module that cannot be saved, an unknown target, a missing compiler, code that does not
    compile, and a path that cannot be written to.
    """
    name = None if toolchain is None else os.fspath(toolchain)
    target = elf.here() if name is None else toolchains.target(name)[1:]
    machine = elfwriter.MACHINES.get(target)
    if machine is None:
        known = ", ".join(f"{name} ({bits})" for name, bits in elfwriter.MACHINES)
        raise UsageError("no libraries are written for {} with {} bits; known are {}".format(*target, known))
    if strip_names:
        module = stripped(module)
    sources = list(_native(module))
    pieces = tree.save(module)
    size = sum(memoryview(piece).nbytes for piece in pieces)
    make = elfwriter.object_file if sources else elfwriter.shared_library
    try:
        head = make(machine, LIBRARY_BIN, LIBRARY_CTX, size)
    except ValueError as error:
        raise UsageError(f"the model is too large: {error}") from None
    with _replacing(os.fspath(path)) as temporary:
        if sources:
            link(sources, temporary, [head, *pieces], name)
        else:
            write(temporary, [head, *pieces])


def _native(root: Module) -> Iterator[Sources]:
    """The modules that become the library's own code."""
    for module in walk(root):
        if isinstance(module, Sources):
            yield module
        elif module.kind == LIBRARY and module.names():
            how = "put the file into the tree as a module of kind rpcsys.library"
            raise UsageError(f"native functions that are linked already cannot be linked into another library; {how}")


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """A temporary name beside ``path`` to write to; it is renamed at the end. Raises `UsageError` if that fails."""
    path = os.path.realpath(path)  # a link stays one
    if os.path.exists(path) and not (
        os.path.isfile(path) or os.path.isdir(path)
    ):  # renamed onto a device, a file would take its place
        raise UsageError(f"{path} cannot be written: it is no file; give another name")
    name = f".{os.path.basename(path)}.{os.getpid()}-{next(_numbers)}"
    temporary = os.path.join(os.path.dirname(path), name)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
