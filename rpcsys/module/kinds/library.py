"""Kind ``rpcsys.library``: another native library as bytes, loaded from memory; a tree may have several.

The library may have modules inside: TVM's or rpcsys's. Loading the same bytes twice in one process gives the same code
and the same global variables, as with any library.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from rpcsys.errors import ModelError, RemoteFunctionError, UsageError
from rpcsys.module import container, elf, packed
from rpcsys.module.container import functions_of
from rpcsys.module.kinds import compiled_devices
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Function, Module
from rpcsys.module.profiler import Profiler
from rpcsys.module.registry import Context

KIND = "rpcsys.library"
#: Kinds of modules with a number of threads to set.
_THREADED = {"rpcsys.onnx", "rpcsys.openvino", "rpcsys.litert", "rpcsys.iree"}
#: The description that is saved beside the library.
_ABOUT = {"name": str, "target": str, "machine": str, "bits": int, "kinds": list, "functions": list}
#: Bytes that are loaded -> the path they were loaded from, kept open: the dynamic linker identifies libraries by path.
_loaded: Dict[bytes, str] = {}


class LibraryModule(Module):
    """The functions of a carried native library; ``data`` are its bytes."""

    def __init__(
        self, data: Buffer, about: Mapping[str, Any], *, allow_pickle: bool = False, imports: Sequence[Module] = ()
    ) -> None:
        super().__init__(KIND, imports=imports)
        self.data = data
        self.about = {key: about[key] for key in _ABOUT}
        self.name: str = about["name"]  # its name in messages
        self.target: str = about["target"]  # its target in its maker's terms (``"aarch64-linux-gnu"``)
        self.machine: str = about["machine"]  # its target as the file gives it (``"aarch64"``, 64)
        self.bits: int = about["bits"]
        self.kinds: List[str] = about["kinds"]  # of the modules inside it
        self.device = compiled_devices.default(self.kinds)
        self._allow_pickle = allow_pickle
        self._placed = ""  # the device that it was told to run on
        self._threads = 0  # of a call, that it was told to have
        self._inner: Optional[Module] = None

    def names(self) -> List[str]:
        """The functions that its description lists, whether it is loaded or not."""
        listed: List[str] = self.about["functions"]
        return listed

    def own(self, name: str) -> Optional[Function]:
        try:
            return self._open().function(name)
        except RemoteFunctionError:
            return None

    @property
    def devices(self) -> Tuple[str, ...]:
        return super().devices if self._inner is None else self._inner.devices

    def place(self, device: str) -> None:
        """Run there what is inside; whether it can is known when it is loaded."""
        self._placed = device

    def use_threads(self, threads: int) -> bool:
        """Have what is inside use them, if that holds a model whose runtime has threads."""
        self._threads = threads if _THREADED.intersection(self.kinds) else 0
        return super().use_threads(threads) or bool(self._threads)

    def link(self) -> None:
        """Load it. Raises `ModelError`, also if it is built for another machine."""
        self._open()

    def run_main(self, inputs: Mapping[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        return self._open().run(inputs, outputs)

    def release(self) -> None:
        super().release()
        if self._inner is not None:
            self._inner.close()

    def own_profiler(self, name: str, folder: str) -> Profiler:
        return self._open().profiler(name, folder)

    def _open(self) -> Module:
        if self._inner is None:
            from rpcsys.module import loading

            if (self.machine, self.bits) != elf.here():
                built = f"{self.name} is built for {self.target} ({self.machine}, {self.bits} bits)"
                here = "this device is {} ({} bits)".format(*elf.here())
                raise ModelError(f"{built}, and {here}; build it for this device")
            self._inner = loading.load_library(
                _path_of(self.data), self.name, allow_pickle=self._allow_pickle, device=self._placed,
                threads=self._threads,
            )  # fmt: skip
            self.device = self._inner.device
            described = self._inner.describe()
            self.inputs, self.outputs = described["inputs"], described["outputs"]
        return self._inner


def library(
    source: Union[str, os.PathLike[str], bytes], *, name: str = "", target: str = "",
    functions: Optional[Sequence[str]] = None, imports: Sequence[Module] = (),
) -> LibraryModule:  # fmt: skip
    """A module that carries a native library, given as a file or as bytes.

    The library may be for another machine; it is then loaded only there. ``target`` names its target (by default the
    machine in its file); ``name`` is for messages. ``functions`` are by default those that its file exports. Give them
    for a library with modules inside, because only their loader knows the functions (a Relax program's ``main``).
    Raises `UsageError` for a file that is not a library.
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
    """The library's bytes and description."""
    return packed.pack(module.about, [module.data], offset)


def load_from_bytes(data: memoryview, context: Context) -> Module:
    """Load the module; the library itself is loaded when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    if len(buffers) != 1 or not all(isinstance(about.get(key), kind) for key, kind in _ABOUT.items()):
        raise FormatError("is broken (a library inside is not described)")
    return LibraryModule(buffers[0], about, allow_pickle=context.allow_pickle)


def _path_of(data: Buffer) -> str:
    """A path from which the dynamic linker can load ``data``, without a file on disk."""
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
