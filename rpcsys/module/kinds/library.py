"""Kind ``rpcsys.library``: the bytes of another native library, loaded from memory; a tree may have several.

It may itself have modules inside: TVM's, or ours. Loading the same bytes twice in one process gives the same code and
the same global variables, as with any library.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from rpcsys.errors import ModelError, RemoteFunctionError, UsageError
from rpcsys.module import container, elf, packed
from rpcsys.module.container import functions_of
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Function, Module
from rpcsys.module.registry import Context

KIND = "rpcsys.library"
#: What is saved beside the library.
_ABOUT = {"name": str, "target": str, "machine": str, "bits": int, "kinds": list, "functions": list}
#: Bytes that are loaded -> the path they were loaded from, which stays open: a linker knows libraries by their paths.
_loaded: Dict[bytes, str] = {}


class LibraryModule(Module):
    """The functions of a native library that is carried along: ``data`` are its bytes."""

    def __init__(
        self, data: Buffer, about: Mapping[str, Any], *, allow_pickle: bool = False, imports: Sequence[Module] = ()
    ) -> None:
        super().__init__(KIND, imports=imports)
        self.data = data
        self.about = {key: about[key] for key in _ABOUT}
        self.name: str = about["name"]  # what messages call it
        self.target: str = about["target"]  # what it is built for, as who made it calls it (``"aarch64-linux-gnu"``)
        self.machine: str = about["machine"]  # the same as its file says it (``"aarch64"``, 64)
        self.bits: int = about["bits"]
        self.kinds: List[str] = about["kinds"]  # of the modules that it holds itself
        self._allow_pickle = allow_pickle
        self._inner: Optional[Module] = None

    def names(self) -> List[str]:
        """The functions it was said to have when it was put here, whether it is loaded or not."""
        listed: List[str] = self.about["functions"]
        return listed

    def own(self, name: str) -> Optional[Function]:
        try:
            return self._open().function(name)
        except RemoteFunctionError:
            return None

    def link(self) -> None:
        """Load it. Raises `ModelError`, for one that is built for another machine, too."""
        self._open()

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        return self._open().run(inputs, outputs)

    def release(self) -> None:
        super().release()
        if self._inner is not None:
            self._inner.close()

    def _open(self) -> Module:
        if self._inner is None:
            from rpcsys.module import loading

            if (self.machine, self.bits) != elf.here():
                built = f"{self.name} is built for {self.target} ({self.machine}, {self.bits} bits)"
                here = "this device is {} ({} bits)".format(*elf.here())
                raise ModelError(f"{built}, and {here}; build it for this device")
            self._inner = loading.load_library(_path_of(self.data), self.name, allow_pickle=self._allow_pickle)
            described = self._inner.describe()
            self.inputs, self.outputs = described["inputs"], described["outputs"]
        return self._inner


def library(
    source: Union[str, os.PathLike[str], bytes], *, name: str = "", target: str = "",
    functions: Optional[Sequence[str]] = None, imports: Sequence[Module] = (),
) -> LibraryModule:  # fmt: skip
    """A module that carries a native library along: its file, or its bytes.

    It may be for another machine than this one; it is then loaded only there. ``target`` names what it is for (by
    default the machine that its file says); ``name`` is for messages. ``functions`` are by default those that its file
    exports: say them for a library with modules inside, whose functions only their loader knows (a Relax program's
    ``main``). Raises `UsageError` for what is no library.
    """
    if isinstance(source, (str, os.PathLike)):
        name = name or os.path.basename(os.fspath(source))
        try:
            with open(source, "rb") as file:
                source = file.read()
        except OSError as error:
            raise UsageError(f"{os.fspath(source)!s} cannot be read: {error.strerror}") from None
    name = name or "a library"
    try:
        inside = container.parse(source)
    except (elf.ElfError, FormatError) as error:
        raise UsageError(f"{name} {error}") from None
    binary = inside.elf
    listed = functions_of(binary) if functions is None else list(functions)
    about = {
        "name": name, "target": target or binary.machine, "machine": binary.machine, "bits": binary.bits,
        "kinds": inside.kinds, "functions": listed,
    }  # fmt: skip
    return LibraryModule(source, about, imports=imports)


def save_to_bytes(module: LibraryModule, offset: int) -> Sequence[Buffer]:
    """The library as it is."""
    return packed.pack(module.about, [module.data], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """The library; it is loaded when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if len(buffers) != 1 or not all(isinstance(about.get(key), kind) for key, kind in _ABOUT.items()):
        raise FormatError("is broken (a library inside is not described)")
    return LibraryModule(buffers[0], about, allow_pickle=context.allow_pickle)


def _path_of(data: Buffer) -> str:
    """A path that the linker can load ``data`` from, without a file."""
    digest = hashlib.sha256(data).digest()
    path = _loaded.get(digest)
    if path is None:
        if not hasattr(os, "memfd_create"):
            raise ModelError("this system cannot load a library from memory")
        number = os.memfd_create("rpcsys-library")
        left = memoryview(data).cast("B")
        while left.nbytes:
            left = left[os.write(number, left) :]
        path = _loaded[digest] = f"/proc/self/fd/{number}"
    return path
