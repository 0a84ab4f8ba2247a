"""From a tree of modules to one shared library, on a desk.

A tree without native code needs no compiler: the ELF file is written as it is, for any target. With native code the
target's compiler links it with an object file that is written likewise, so that no weight ever passes through source.
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

_numbers = itertools.count()  # two threads may write to the same place: each has a name of its own until it is done


def export_library(module: Module, path: Path, toolchain: Optional[Path] = None, *, strip_names: bool = False) -> None:
    """Write ``module``, with all that it imports, as one shared library.

    `load_module` gives the tree back, and so does TVM's once ``rpcsys.tvm`` is imported. The file at ``path`` appears
    whole or not at all; the same tree gives the same bytes. ``toolchain`` says what it is for: a name
    (``aarch64-linux-gnu``) or the path of a CMake toolchain file; None is this machine.

    ``strip_names`` leaves no name of an operator or a tensor that can be read in the file, but those of the root's
    inputs and outputs; functions keep theirs, and so does what compiled code says of itself.

    Raises `UsageError` for a module that cannot be saved, an unknown target, a compiler that is not here, code that
    does not compile, and a place that cannot be written to.
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
    """The modules that are to be the library's own code."""
    for module in walk(root):
        if isinstance(module, Sources):
            yield module
        elif module.kind == LIBRARY and module.names():
            how = "put the file into the tree as a module of kind rpcsys.library"
            raise UsageError(f"native functions that are linked already cannot be linked into another library; {how}")


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
    """A name beside ``path`` to write to; it takes its place in the end. Raises `UsageError` where it cannot."""
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
