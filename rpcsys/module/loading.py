"""Loads a module from a file; selects the loader by the kind of file.

The packages that a kind needs are imported when the first file of that kind is loaded. Files are mapped: pages that are
never read take no memory.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple, Union

from rpcsys.errors import ModelError, UsageError, one_line
from rpcsys.module import elf, registry, tree
from rpcsys.module.formats import FORMATS, how_to_install, suffix
from rpcsys.module.layout import FormatError
from rpcsys.module.module import Module
from rpcsys.module.registry import Context, File
from rpcsys.wire.device_names import check_threads, parse

if TYPE_CHECKING:
    from rpcsys.module.container import Container

#: Ending of a file -> the packages needed to load it.
SUFFIXES: Dict[str, Tuple[str, ...]] = {**{ending: each.packages for ending, each in FORMATS.items()}, ".so": ()}
_NAMED = 12  # functions that a message names


def load_module(
    path: Union[str, os.PathLike[str]], *, allow_pickle: bool = False, device: str = "", threads: int = 0
) -> Module:
    """Load a model from a file, with all modules that it imports: a library (``.so``), or a model of `FORMATS`.

    ``device``: where it runs, such as ``"opencl:0"``; by default where the file says, else on the CPU. ``threads`` of
    one call, for a model whose runtime has them; by default (0) what the file says, else one for each CPU.
    ``allow_pickle``: whether to load Python functions in the file (kind ``rpcsys.python``); they can run any code.
    Raises `UsageError` if the file does not exist, `ModelError`, in one line, if it cannot be loaded.
    """
    text = os.fspath(path)
    if not os.path.isfile(text):
        raise UsageError(f"{text}: there is no such file")
    return load_file(text, os.path.basename(text), allow_pickle=allow_pickle, device=device, threads=threads)


def load_file(path: str, name: str, *, allow_pickle: bool = False, device: str = "", threads: int = 0) -> Module:
    """Load the model at ``path``; messages call it ``name``. Raises `ModelError`, in one line.

    Raises `UsageError` for a ``device`` that is no name of one, and for a number of ``threads`` out of range.
    """
    check_threads(threads)
    path, device = _absolute(path), str(parse(device)) if device else ""
    if path.endswith(".so"):
        return load_library(path, name, allow_pickle=allow_pickle, device=device, threads=threads)
    if not suffix(path):
        raise ModelError("{}: no loader for this kind of file; known are {}".format(name, ", ".join(SUFFIXES)))
    loaded: Module = _kind_of(suffix(path), name).load(path, name, device, threads)
    return loaded


def _kind_of(ending: str, name: str) -> Any:
    """The module of Python that loads such files. Raises `ModelError` without the packages that it needs."""
    kind = FORMATS[ending].kind
    why = ""
    for each in (kind, FORMATS[".xml"].kind) if ending == ".onnx" else (kind,):  # OpenVINO reads ONNX's format, too
        try:
            return importlib.import_module(each.replace("rpcsys.", "rpcsys.module.kinds."))
        except ImportError as error:
            why = why or one_line(error)
    raise ModelError(f"{name} cannot be loaded: {how_to_install(kind)} ({why})")


def load_library(path: str, name: str, *, allow_pickle: bool = False, device: str = "", threads: int = 0) -> Module:
    """`load_file` for a shared library, whatever the ending of its path."""
    from rpcsys.module import container
    from rpcsys.module.kinds import native

    path = _absolute(path)
    try:
        file = File.map(path)
        inside = container.parse(file.mapping)
    except (elf.ElfError, FormatError) as error:
        raise ModelError(f"{name} {error}") from None
    if inside.older:
        _check_older(inside, name)
    elif set(inside.kinds).isdisjoint(registry.known()):  # TVM loads files whose kinds are all unknown here
        _refuse_threads(name, threads)
        return native.load(path, name, inside.kinds, device)
    elif inside.records[0].kind not in registry.known():  # and those whose root is its own; it asks us for ours
        from rpcsys.module import tvm_loader

        _refuse_threads(name, threads)
        ours = tvm_loader.loading(name, allow_pickle=allow_pickle)
        return native.load(path, name, inside.kinds, device, by_tvm=ours)
    native.check(inside.elf, name)
    context = Context(name, lambda: native.load_own(path, name, inside.elf), allow_pickle, file, device, threads)
    return tree.load(inside.records, context)


def _refuse_threads(name: str, threads: int) -> None:
    if threads:
        raise ModelError(f"{name} {tree.NO_THREADS}")


def _absolute(path: str) -> str:
    """``path`` from any working folder: parts of a file are opened at their first use."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _check_older(inside: Container, name: str) -> None:
    """Raise `ModelError` if a library in the layout before tvm-ffi holds what only its time could load or call."""
    since = f"{name} is in the layout that TVM had before tvm-ffi, and"
    for kind in inside.kinds:
        if kind not in registry.known():
            known = ", ".join(registry.known())
            text = f"{since} holds a module of kind {kind[:200]!r}, which nothing here can load; known are {known}"
            raise ModelError(f"{text}; compile it again with a newer TVM")
    other = inside.older_functions()
    if other:
        named = ", ".join(other[:_NAMED]) + (", …" if len(other) > _NAMED else "")
        text = f"{since} its functions have the calling convention of that time ({named})"
        raise ModelError(f"{text}; compile it again with a newer TVM")


def kinds(installed: Callable[[str], bool]) -> List[str]:
    """The kinds that can be loaded with the packages for which ``installed`` returns true."""
    return [kind for kind in registry.known() if all(map(installed, registry.needs(kind)))]
