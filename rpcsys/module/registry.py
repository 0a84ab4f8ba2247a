"""Which code saves and loads modules of which kind: our own kinds, a program's, and those that other packages bring.

A package brings a kind by an entry point of the group ``rpcsys.kinds``, whose name is the kind's and whose object is a
`Kind` (a Python module will do). It is imported when the first module of its kind is met.
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
from rpcsys.module.layout import LIBRARY, Buffer, FormatError
from rpcsys.module.module import Module

GROUP = "rpcsys.kinds"


class File(NamedTuple):
    """A mapped file. The mapping lasts for as long as anybody has a view of it."""

    path: str  # empty for one that nobody else can open: it is in memory alone, or was removed
    mapping: mmap.mmap
    view: memoryview

    @classmethod
    def map(cls, path: str) -> File:
        """Map the file at ``path``, for reading. Raises OSError, `ElfError` for an empty one."""
        mapping = elf.mapped(path)
        real = os.path.realpath(path)
        return cls(real if os.path.isfile(real) else "", mapping, memoryview(mapping))

    def place(self, data: memoryview) -> int:
        """Where in the file the bytes of ``data``, a view of it, begin."""
        from rpcsys.ffi.memory import address_of  # ctypes: not for a library whose modules need no place

        return address_of(data) - address_of(self.view)


class Context(NamedTuple):
    """What a loader may need to know of the file its bytes are from."""

    name: str  # what messages call the file
    library: Callable[[], Module]  # the module of the library's own functions (kind ``_lib``); a new one each time
    allow_pickle: bool = False  # whether Python code in the file may run
    file: Optional[File] = None  # the mapped file, where the bytes are views of one


class Kind(Protocol):
    """What saves and loads the modules of one kind."""

    def save_to_bytes(self, module: Module, offset: int) -> Sequence[Buffer]:
        """The module's own bytes, in pieces, to stand at ``offset`` of a blob on a page. Raises `UsageError`.

        At least one byte: TVM's loader takes none for a file that is cut off.
        """

    def load_from_bytes(self, data: memoryview, context: Context) -> Module:
        """The module; its imports are attached later. Raises `FormatError`; other exceptions become a `ModelError`."""


#: Our own kinds, each in the file of its name below ``kinds``, and the packages that loading one takes.
_BUILTIN: Dict[str, Tuple[str, ...]] = {
    "rpcsys.onnx": ("numpy", "onnxruntime"),
    "rpcsys.python": ("cloudpickle",),
    **{f"rpcsys.{kind}": () for kind in ("graph", "group", "library", "params", "remote")},
}
_registered: Dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
    """Have modules of the kind ``name`` saved and loaded by ``kind``, in the place of any other."""
    _registered[name] = kind


def find(name: str) -> Kind:
    """What saves and loads modules of that kind. Raises `FormatError` where nobody knows it."""
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
    """The packages that loading a module of that kind takes; those of another package's kinds came with it."""
    return _BUILTIN[name] if name in _BUILTIN and name not in _registered else ()


@functools.lru_cache(maxsize=None)
def _brought() -> Dict[str, Any]:
    """The kinds of other packages: name -> entry point."""
    files = (os.path.join(glob.escape(folder or os.curdir), "*.dist-info", "entry_points.txt") for folder in sys.path)
    if not any(_mentions(path) for pattern in files for path in glob.glob(pattern)):
        return {}
    from importlib import metadata  # a megabyte of modules: not for a board whose packages bring no kind

    found: Any = metadata.entry_points()
    group = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    return {entry.name: entry for entry in group}


def _mentions(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return GROUP in file.read()
    except (OSError, ValueError):
        return False
