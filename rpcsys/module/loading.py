"""From a file to a module that runs: which kind of file is loaded by what.

The packages that a kind needs are imported when the first file of that kind is loaded. Files are mapped, not
read: what nobody touches takes no memory.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from rpcsys.errors import UsageError
from rpcsys.module import elf, layout, registry, tree
from rpcsys.module.layout import LIBRARY, FormatError, Record
from rpcsys.module.module import Module, model_error
from rpcsys.module.registry import Context, File

#: Ending of a file -> the packages that must be there to load it.
SUFFIXES: Dict[str, Tuple[str, ...]] = {".onnx": ("numpy", "onnxruntime"), ".so": ()}
#: Where a library has other modules inside.
SYMBOL = "__tvm_ffi__library_bin"


def load_module(path: Union[str, os.PathLike[str]], *, allow_pickle: bool = False) -> Module:
    """Load a model from a file, with all that it imports: a library (``.so``) or an ONNX model (``.onnx``).

    ``allow_pickle``: whether Python functions in the file (kind ``rpcsys.python``) may be loaded; they can do anything.
    Raises `UsageError` for a file that is not there, `ModelError`, in one line, for one that cannot be loaded.
    """
    text = os.fspath(path)
    if not os.path.isfile(text):
        raise UsageError(f"{text}: there is no such file")
    return load_file(text, os.path.basename(text), allow_pickle=allow_pickle)


def load_file(path: str, name: str, *, allow_pickle: bool = False) -> Module:
    """Load the model at ``path``; ``name`` is what it is called in messages.

    Raises `ModelError` for a file of an unknown kind, one that is broken, or a missing package.
    """
    if path.endswith(".onnx"):
        return _load_onnx(path, name)
    if path.endswith(".so"):
        return _load_library(path, name, allow_pickle)
    raise model_error("{}: no loader for this kind of file; known are {}".format(name, ", ".join(SUFFIXES)))


def _load_onnx(path: str, name: str) -> Module:
    try:
        from rpcsys.module.kinds import onnx
    except ImportError as error:
        raise model_error(
            f"{name} needs onnxruntime on the device, and it cannot be imported ({error}); pip install onnxruntime there"
        ) from None
    return onnx.load(path, name)


def _load_library(path: str, name: str, allow_pickle: bool) -> Module:
    from rpcsys.module.kinds import native

    try:
        inside = read_tree(path)
    except (elf.ElfError, FormatError) as error:
        raise model_error(f"{name} {error}") from None
    if inside is None or not inside.ours():
        return native.load(path, name, inside.kinds() if inside else ())
    native.check(path, name)
    context = Context(name, lambda: native.load_own(path, name), allow_pickle, inside.file)
    return tree.load(inside.records, context)


class Inside(NamedTuple):
    """The modules in a library, and the mapped file that their bytes are views of."""

    file: File
    records: List[Record]

    def kinds(self) -> List[str]:
        """The kinds of the modules, sorted; ``_lib`` left out."""
        return sorted({record.kind for record in self.records} - {LIBRARY})

    def ours(self) -> bool:
        """Whether the modules are for us to load: TVM loads those that are all of kinds unknown here."""
        return not set(self.kinds()).isdisjoint(registry.known())


def read_tree(path: str) -> Optional[Inside]:
    """The modules in the library at ``path``, for any architecture, nothing loaded; None where it has none.

    Raises `ElfError`, `FormatError`; OSError for what cannot be read.
    """
    file = File.map(path)
    place = elf.parse(file.mapping).place(SYMBOL)
    if place is None:
        return None
    return Inside(file, layout.decode(file.view[place.start : place.stop]))


def kinds(installed: Callable[[str], bool]) -> List[str]:
    """The kinds that can be loaded with the packages for which ``installed`` says yes."""
    return [kind for kind in registry.known() if all(map(installed, registry.needs(kind)))]
