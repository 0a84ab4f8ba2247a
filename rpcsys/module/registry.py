"""Which code saves and loads modules of which kind: our own kinds, a program's, and those that other packages bring.

A package brings a kind by an entry point of the group ``rpcsys.kinds``, whose name is the kind's and whose object has
two functions (a Python module will do)::

    save_to_bytes(module, offset) -> pieces     bytes-like, end to end; they will stand at ``offset`` of a blob on a page
                                                (one byte at least: TVM's loader takes none for a file that is cut off)
    load_from_bytes(data, context) -> Module    data: a memoryview of the file; imports are attached later

Nothing of another package is imported before a module of its kind is met.
"""

from __future__ import annotations

import functools
import glob
import importlib
import mmap
import os
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple

from rpcsys.module.layout import LIBRARY, Buffer, FormatError
from rpcsys.module.module import Module

GROUP = "rpcsys.kinds"


class File(NamedTuple):
    """A mapped file. The mapping lasts for as long as anybody has a view of it.

    ``path`` is empty for one that has no name, so that nobody else can open it: it is in memory alone, or was removed.
    """

    path: str
    mapping: mmap.mmap
    view: memoryview

    @classmethod
    def map(cls, path: str) -> File:
        """Map the file at ``path``, for reading. Raises OSError, `FormatError` for an empty one."""
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise FormatError("is an empty file")
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        real = os.path.realpath(path)
        return cls(real if os.path.isfile(real) else "", mapping, memoryview(mapping))

    def place(self, data: memoryview) -> int:
        """Where in the file the bytes of ``data``, a view of it, begin."""
        from rpcsys.ffi.memory import address_of  # ctypes: not for a library whose modules need no place

        return address_of(data) - address_of(self.view)


class Context(NamedTuple):
    """What a loader may need to know of the file its bytes are from.

    Attributes
    ----------
    name : what the file is called in messages
    library : the module of the library's own functions (kind ``_lib``); a new one each time
    allow_pickle : whether Python code in the file may run
    file : the mapped file, where the bytes are views of one
    """

    name: str
    library: Callable[[], Module]
    allow_pickle: bool = False
    file: Optional[File] = None


class Kind(Protocol):
    """What saves and loads the modules of one kind."""

    def save_to_bytes(self, module: Module, offset: int) -> Sequence[Buffer]:
        """The module's own bytes, in pieces. Raises `UsageError` for what cannot be saved."""

    def load_from_bytes(self, data: memoryview, context: Context) -> Module:
        """The module. Raises `FormatError`, `ModelError`; other exceptions become a `ModelError`."""


class _Builtin(NamedTuple):
    home: str
    needs: Tuple[str, ...] = ()


#: Our own kinds, where their code is, and the packages that loading one takes.
_BUILTIN: Dict[str, _Builtin] = {
    "rpcsys.graph": _Builtin("rpcsys.module.kinds.graph"),
    "rpcsys.group": _Builtin("rpcsys.module.kinds.group"),
    "rpcsys.library": _Builtin("rpcsys.module.kinds.library"),
    "rpcsys.onnx": _Builtin("rpcsys.module.kinds.onnx", ("numpy", "onnxruntime")),
    "rpcsys.params": _Builtin("rpcsys.module.kinds.params"),
    "rpcsys.python": _Builtin("rpcsys.module.kinds.python", ("cloudpickle",)),
    "rpcsys.remote": _Builtin("rpcsys.module.kinds.remote"),
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
        kind: Any = importlib.import_module(_BUILTIN[name].home)
    elif name in _brought():
        kind = _brought()[name].load()
    else:
        raise FormatError(
            "holds a module of kind {!r}, which nothing here can load; known are {}".format(
                name[:200], ", ".join(known())
            )
        )
    return kind  # type: ignore[no-any-return]


def known() -> List[str]:
    """All kinds with a loader, ``_lib`` among them, sorted."""
    return sorted({LIBRARY, *_BUILTIN, *_registered, *_brought()})


def needs(name: str) -> Tuple[str, ...]:
    """The packages that loading a module of that kind takes; those of another package's kinds came with it."""
    return _BUILTIN[name].needs if name in _BUILTIN and name not in _registered else ()


@functools.lru_cache(maxsize=None)
def _brought() -> Dict[str, Any]:
    """The kinds of other packages: name -> entry point."""
    if not any(_mentions(path) for path in _entry_point_files()):
        return {}
    from importlib import metadata  # a megabyte of modules: not for a board whose packages bring no kind

    found: Any = metadata.entry_points()
    group = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    return {entry.name: entry for entry in group}


def _entry_point_files() -> List[str]:
    return [
        path
        for folder in sys.path
        for path in glob.glob(os.path.join(glob.escape(folder or os.curdir), "*.dist-info", "entry_points.txt"))
    ]


def _mentions(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return GROUP in file.read()
    except (OSError, ValueError):
        return False
