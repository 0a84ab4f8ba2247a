"""Finds the code that saves and loads modules of a kind: rpcsys's kinds, a program's, and those of other packages.

A package adds a kind by an entry point of the group ``rpcsys.kinds``: its name is the kind's, its object a `Kind` (a
Python module is possible). The entry point is imported at the first module of its kind.
"""

from __future__ import annotations

import functools
import glob
import importlib
import mmap
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from rpcsys.module import elf
from rpcsys.module.formats import FORMATS
from rpcsys.module.layout import LIBRARY, Buffer, FormatError
from rpcsys.module.module import Module

GROUP = "rpcsys.kinds"


class File(NamedTuple):
    """A mapped file. The mapping lasts as long as any view of it exists."""

    path: str  # empty if other processes cannot open it: it is in memory only, or was removed
    mapping: mmap.mmap
    view: memoryview

    @classmethod
    def map(cls, path: str) -> File:
        """Map the file at ``path`` for reading. Raises OSError, `ElfError` if it is empty."""
        mapping = elf.mapped(path)
        real = os.path.realpath(path)
        return cls(real if os.path.isfile(real) else "", mapping, memoryview(mapping))

    def place(self, data: memoryview) -> int:
        """The offset in the file at which ``data``, a view of it, begins."""
        from rpcsys.ffi.memory import address_of  # it imports ctypes, which a library without offsets does not need

        return address_of(data) - address_of(self.view)


class Context(NamedTuple):
    """Facts for a loader about the file that its bytes are from."""

    name: str  # the file's name in messages
    library: Callable[[], Module]  # makes a module of the library's own functions (kind ``_lib``), a new one each time
    allow_pickle: bool = False  # whether Python code in the file may run
    file: Optional[File] = None  # the mapped file, if the bytes are views of one
    device: str = ""  # where the model is to run, "" for where it says itself
    threads: int = 0  # of one call, 0 for as many as it says itself


class Kind(Protocol):
    """Saves and loads the modules of one kind."""

    def save_to_bytes(self, module: Module, offset: int) -> Sequence[Buffer]:
        """The module's own bytes, in pieces, to write at ``offset`` of a page-aligned blob. Raises `UsageError`.

        At least one byte: TVM's loader treats an empty module as a truncated file.
        """

    def load_from_bytes(self, data: memoryview, context: Context) -> Module:
        """Load the module; its imports are attached later. Raises `FormatError`; others become a `ModelError`."""


#: rpcsys's kinds, each in the file of its name below ``kinds``, with the packages that loading one needs.
_BUILTIN: Dict[str, Tuple[str, ...]] = {
    **{each.kind: each.packages for each in FORMATS.values()},
    "rpcsys.python": ("cloudpickle",),
    **{f"rpcsys.{kind}": () for kind in ("graph", "group", "library", "params", "remote")},
}
_registered: Dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
    """Let ``kind`` save and load modules of the kind ``name``, instead of any other code."""
    _registered[name] = kind


def find(name: str) -> Kind:
    """The code that saves and loads modules of that kind. Raises `FormatError` for an unknown kind."""
    if name in _registered:
        return _registered[name]
    if name in _BUILTIN:
        kind: Any = importlib.import_module(name.replace("rpcsys.", "rpcsys.module.kinds."))
    elif name in _brought():
        kind = _brought()[name].load()
    else:
        listed = ", ".join(known())
        raise FormatError(f"holds a module of kind {name[:200]!r}, which nothing here can load; known are {listed}")
    return kind  # type: ignore[no-any-return]


def known() -> List[str]:
    """All kinds with a loader, ``_lib`` among them, sorted."""
    return sorted({LIBRARY, *_BUILTIN, *_registered, *_brought()})


def needs(name: str) -> Tuple[str, ...]:
    """The packages that loading a module of that kind needs; a kind of another package needs none beside its own."""
    return _BUILTIN[name] if name in _BUILTIN and name not in _registered else ()


@functools.lru_cache(maxsize=None)
def _brought() -> Dict[str, Any]:
    """The kinds of other packages: name -> entry point."""
    files = (os.path.join(glob.escape(folder or os.curdir), "*.dist-info", "entry_points.txt") for folder in sys.path)
    if not any(_mentions(path) for pattern in files for path in glob.glob(pattern)):
        return {}
    from importlib import metadata  # a megabyte of modules: skipped on a board whose packages add no kind

    found: Any = metadata.entry_points()
    group = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    return {entry.name: entry for entry in group}


def _mentions(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return GROUP in file.read()
    except (OSError, ValueError):
        return False
