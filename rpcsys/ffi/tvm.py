"""Uses libtvm_runtime: modules that TVM's loaders load, and TVM's virtual machine for Relax."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, library
from rpcsys.ffi.calls import Device, Function, find_global, from_owned, from_view, known_global, watcher
from rpcsys.ffi.library import Object

EXECUTABLE = "relax.VMExecutable"  # the kind of a compiled Relax program
_POOLED = 2  # the virtual machine's allocator: from its own memory pool
_HOST = Device(abi.CPU)
_kept: Dict[Tuple[int, int], TvmModule] = {}  # by the file's device and inode


class TvmModule:
    """A module of TVM: its functions are called like any other."""

    def __init__(self, native: Object) -> None:
        self.object = native

    @property
    def kind(self) -> str:
        """The module's kind, such as ``library`` or ``relax.VMExecutable``."""
        kind: str = known_global("ffi.ModuleGetKind")(self.object)
        return kind

    def function(self, name: str, imports: bool = True) -> Function:
        """The function ``name`` of it, or of its imports. Raises `NativeError` if there is none."""
        found = known_global("ffi.ModuleGetFunction")(self.object, name, imports)
        if found is None:
            raise NativeError(f"the module has no function {name!r}", kind="AttributeError")
        function: Function = found
        function.__name__ = name
        return function


def load_module(path: str) -> TvmModule:
    """Load a file with TVM's loader for its ending. Raises `NativeError`, also if TVM is missing."""
    library.load_runtime()
    return TvmModule(known_global("ffi.ModuleLoadFromFile").raw(library.to_open(path)))


def load_library(path: str, keep: bool = False) -> TvmModule:
    """Load the shared library at ``path``, with any ending. Raises `NativeError`.

    ``keep`` it for one with modules inside, and return it again for the same file. At their first use, its code stores
    the functions of these modules; the linker has one copy of the code of a file, which would outlive the functions.
    """
    library.load_runtime()
    about = os.stat(path)
    kept = _kept.get((about.st_dev, about.st_ino))
    if kept is not None:
        return kept
    module = TvmModule(known_global("ffi.Module.load_from_file.so").raw(library.to_open(path), "so"))
    return _kept.setdefault((about.st_dev, about.st_ino), module) if keep else module


def loads(kind: str) -> bool:
    """Whether TVM in this process has a loader for modules of that kind. Raises `NativeError` if TVM is missing."""
    library.load_runtime()
    return find_global("ffi.Module.load_from_bytes." + kind) is not None


def imports_of(module: int) -> Sequence[Object]:
    """The modules that the module at this address imports. Raises `NativeError` if libtvm_ffi does not tell."""
    info = library.api().TVMFFIGetTypeInfo(abi.MODULE).contents
    field = info.fields[0] if info.field_count else None  # a module has one field
    value = abi.Any()
    if field is None or abi.bytes_at(field.name) != b"imports_" or field.get(module + field.offset, value):
        raise NativeError("this version of libtvm_ffi does not tell what a module imports", kind="LibraryBroken")
    imports: Sequence[Object] = from_owned(value)
    return imports


class Parameter(NamedTuple):
    """A parameter of a Relax function; free extents are names. None means unknown."""

    name: str
    dtype: Optional[str]
    shape: Optional[List[Union[int, str]]]


class VirtualMachine:
    """A Relax program that is ready to run on ``device``. Raises `NativeError`."""

    def __init__(self, executable: TvmModule, device: Device = _HOST) -> None:
        self._machine = TvmModule(executable.function("vm_load_executable").raw())
        # The device of a program comes first; the CPU, where shapes are computed, last.
        places = [device] if device == _HOST else [device, _HOST]
        self._machine.function("vm_initialization")(*[part for place in places for part in (*place, _POOLED)])
        # Only the text that TVM prints for people lists a program's functions and their arguments.
        self._text: str = executable.function("stats")()

    def functions(self) -> List[str]:
        """Names of its functions, kernels among them."""
        found = re.search(r"Globals \(#\d+\): \[([^\]]*)\]", self._text)
        # It also lists functions that the program only calls, under registered names with a dot.
        return [name for name in found.group(1).split(", ") if name.isidentifier()] if found else []

    def parameters(self, name: str) -> List[Parameter]:
        """A function's parameters. Raises `NativeError` if there is no such function."""
        arity = self._machine.function("get_function_arity")(name)
        name_of = self._machine.function("get_function_param_name")
        return [self._parameter(name, index, name_of(name, index)) for index in range(arity)]

    def function(self, name: str) -> Function:
        """The function ``name``. Raises `NativeError` if there is none."""
        return self._machine.function(name)

    def watch(self, enter: Callable[[str, Callable[[], List[Any]]], None], leave: Callable[[], None]) -> None:
        """Have ``enter(name, arguments)`` called before each function that a program calls, and ``leave()`` behind it.

        ``arguments()`` returns them, and is for ``enter`` alone. The functions must not hold this machine.
        """

        def seen(args: Any, count: int) -> None:
            if args[2].int:  # of: the function, its name, whether it is to run, its result, and its arguments
                enter(from_view(args[1]), lambda: [from_view(args[place]) for place in range(4, count)])
            else:
                leave()

        self._machine.function("set_instrument")(watcher(seen))

    def _parameter(self, function: str, index: int, name: str) -> Parameter:
        place = rf"fn={re.escape(function)}, loc=param\[{index}\], "
        found = re.search(place + r"[^\n]*?annotation=R\.Tensor\(\(([^()]*)\), dtype=\"(\w+)\"\)", self._text)
        if found is None:
            return Parameter(name, None, None)
        extents = [extent.strip() for extent in found.group(1).split(",") if extent.strip()]
        shape: List[Union[int, str]] = [int(e) if e.isdigit() else e for e in extents]
        return Parameter(name, found.group(2), shape)
