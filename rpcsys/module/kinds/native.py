"""Kind ``_lib``: a shared library of TVM-FFI functions; with TVM's runtime, also the modules inside it.

Limitation: TVM's loader does not list the functions of modules inside a library, except for Relax. So they are not
listed here, and the client calls only listed functions.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import re
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence

from rpcsys.errors import ModelError, NativeError, ProfileNotSupported
from rpcsys.ffi import device_arrays, library
from rpcsys.ffi.module import LIBRARY_BIN, PREFIX, Lacking, Library
from rpcsys.module import elf, placement
from rpcsys.module.container import functions_of
from rpcsys.module.kinds import compiled_devices
from rpcsys.module.kinds.native_call import adapted
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Function, Module
from rpcsys.module.profiler import Profiler

Lookup = Callable[[str], Callable[..., Any]]

_LOOKUP = "TVMFFIEnvModLookupFromImports"  # native code finds functions by name with it, through its library's module


class NativeModule(Module):
    """A loaded library. A call that fails raises `NativeError`."""

    def __init__(
        self, kind: str, functions: List[str], lookup: Optional[Lookup] = None, *,
        inputs: Sequence[Dict[str, Any]] = (), device: str = "", pure: Sequence[str] = (),
        undefined: Optional[Sequence[str]] = None, machine: Optional[Callable[[], Any]] = None,
    ) -> None:  # fmt: skip
        super().__init__(kind, inputs=inputs)
        self.device = device
        self._undefined = undefined  # symbols that a library without inner modules needs of others
        self._listed = functions
        self._lookup = lookup
        self._pure = pure  # functions that do not write into their arguments: those of a Relax program
        self._machine = machine  # makes another machine for that

    def names(self) -> List[str]:
        return self._listed

    def own(self, name: str) -> Optional[Function]:
        found = self._functions.get(name)
        if found is None and self._lookup is not None:
            try:
                found = self._functions[name] = adapted(self._lookup(name), self.device, name not in self._pure)
            except NativeError:
                return None
        return found

    def own_profiler(self, name: str, folder: str) -> Profiler:
        if self._machine is None or name not in self._pure:
            what = f"the function {name!r} is native code, which tells no times of operators"
            raise ProfileNotSupported(f"{what}; time it whole instead")
        from rpcsys.module.kinds import relax_profile  # few sessions pay for it

        return relax_profile.profiler(self._machine(), name, self.device)

    def raw(self, name: str) -> Any:
        """The native function itself, which takes arrays as native code does. Raises `NativeError`: there is none."""
        if self._lookup is None:
            raise NativeError(f"the library has no function {name!r}", kind="AttributeError")
        return self._lookup(name)

    def place(self, device: str) -> None:
        """Run there; a program that was loaded for another device stays where it is. Raises `ModelError`."""
        if not self._listed or device == (self.device or placement.HOST):
            return
        if self._undefined is None:
            raise ModelError(f"it runs on {self.device or placement.HOST}; load it again, with device={device!r}")
        with explained("the library"):
            self.device = _opened(compiled_devices.chosen(device, [], self._undefined, "the library"))
        self._functions = {}


def load(
    path: str, name: str, inside: Sequence[str] = (), device: str = "", *, by_tvm: Optional[ContextManager[None]] = None
) -> NativeModule:
    """Load the library at ``path``, with modules of the kinds ``inside`` in it, to run on ``device``.

    By default it runs on the device that it is compiled for. TVM loads it where its runtime is there, inside
    ``by_tvm``. Raises `ModelError`, in one line.
    """
    with explained(name):
        file = elf.read(path)
        check(file, name)
        functions = functions_of(file)
        if not functions and LIBRARY_BIN not in file.symbols:
            raise ModelError(f"{name} exports no TVM-FFI function (a symbol {PREFIX}NAME)")
        device = compiled_devices.chosen(device, inside, file.undefined(), name)
        if library.present():
            (library.load_runtime if library.has_runtime() else library.api)()  # before the library, which calls it
            Library(path)  # resolve all symbols now: one that is found missing later would end the process
            if library.has_runtime():
                with by_tvm or contextlib.nullcontext():
                    return _load_by_tvm(path, name, functions, inside, device, file.undefined())
        if LIBRARY_BIN in file.symbols:
            raise _no_runtime(name, "has modules inside")
        return _load_alone(path, name, file, functions, device)


def check(file: elf.Elf, name: str) -> None:
    """Raise `ModelError` for a library of another machine."""
    if not file.fits():
        text = f"{name} is built for {file.machine} ({file.bits} bits), and this device is {platform.machine()}"
        raise ModelError(f"{text}; compile it for this device")


def load_own(path: str, name: str, file: elf.Elf) -> NativeModule:
    """The library's own functions, without its inner modules; a file of data is not opened. Raises `ModelError`."""
    functions = functions_of(file)
    if not functions:
        return NativeModule(LIBRARY, [])
    with explained(name):
        if library.present():
            library.api()
        return _load_alone(path, name, file, functions)


def _load_alone(path: str, name: str, file: elf.Elf, functions: List[str], device: str = "") -> NativeModule:
    """Load a library that TVM's loader does not load, and set up what that loader would."""
    wanted = [symbol[2:] for symbol in file.symbols if symbol.startswith("__TVM")]  # pointers that TVM's loader sets
    needs = wanted or [_LOOKUP] * (_LOOKUP in file.symbols)
    if needs and not library.has_runtime():
        raise _no_runtime(name, "uses {}".format(", ".join(needs)))
    opened = _open_alone(path, file)
    if needs:
        opened.connect(wanted)
    lookup, undefined = opened.function, list(file.undefined())
    return NativeModule(LIBRARY, functions, lookup, device=_opened(device), undefined=undefined)


def _open_alone(path: str, file: elf.Elf) -> Library:
    lacking = [] if library.present() else [name for name in file.undefined() if name.startswith("TVM")]
    if not lacking:
        return Library(path)
    anchor = next(symbol for symbol in file.symbols.values() if symbol.name.startswith(PREFIX))
    slots = {name: file.jump_slots[name] for name in lacking if name in file.jump_slots}
    others = [name for name in file.undefined() if name not in slots]
    return Library(path, Lacking(slots, (anchor.name, anchor.value), others))


def _load_by_tvm(
    path: str, name: str, functions: List[str], kinds: Sequence[str], device: str, undefined: Sequence[str]
) -> NativeModule:
    from rpcsys.ffi import tvm

    for kind in kinds:
        if not tvm.loads(kind):
            raise ModelError(f"{name} holds a module of kind {kind!r}, {_unknown(kind)}")
    module = tvm.load_library(path, keep=bool(set(kinds) - {tvm.EXECUTABLE}))
    if module.kind != tvm.EXECUTABLE:
        own = None if kinds else undefined
        return NativeModule(LIBRARY, functions, module.function, device=_opened(device), undefined=own)
    new_machine = functools.partial(tvm.VirtualMachine, module, device_arrays.device_of(device or placement.HOST))
    machine = new_machine()
    programs = machine.functions()
    # A library of a single kernel exports it as its entry, too; that is not the program's main.
    functions = [name for name in functions if name != "main" or "main" not in programs]
    programs = [name for name in programs if name not in functions]

    def lookup(name: str) -> Callable[..., Any]:
        return module.function(name) if name in functions else machine.function(name)

    parameters = machine.parameters("main") if "main" in programs else []
    inputs = [{"name": name, "dtype": dtype or "unknown", "shape": shape or []} for name, dtype, shape in parameters]
    listed = programs + functions
    return NativeModule(
        tvm.EXECUTABLE, listed, lookup, inputs=inputs, device=device, pure=programs, machine=new_machine
    )


def _unknown(kind: str) -> str:
    """Why a module of a kind without a loader cannot be loaded, to follow what holds it."""
    device = compiled_devices.DEVICES.get(kind, "")
    lacking = device_arrays.missing(device) if device else ""
    return f"and {lacking}" if lacking else "which neither rpcsys nor TVM's runtime here can load"


def _opened(device: str) -> str:
    """``device``, if TVM's runtime here has it. Raises `NativeError`."""
    if device:
        device_arrays.device_of(device)
    return device


def _no_runtime(name: str, what: str) -> ModelError:
    """The error for a library that needs TVM's runtime: without it, its pointers to the runtime would be null."""
    how = "install apache-tvm there, or start the server with --tvm-library DIR"
    return ModelError(f"{name} {what}, and this device has no libtvm_runtime; {how}")


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn any exception of loading the library ``name`` into a `ModelError` of one line."""
    try:
        yield
    except elf.ElfError as error:
        raise ModelError(f"{name} {error}") from None
    except OSError as error:
        raise _linker_error(name, str(error)) from None
    except NativeError as error:
        raise ModelError("{} cannot be loaded: {}".format(name, " ".join(str(error).split())[:400])) from None


def _linker_error(name: str, said: str) -> ModelError:
    missing = re.search(r"undefined symbol: (\w+)", said)
    if missing:
        hint = "; start the server with --tvm-library DIR" if missing.group(1).startswith("TVM") else ""
        return ModelError(f"{name} needs {missing.group(1)}, which no library on this device has{hint}")
    absent = re.search(r"([^\s:]+): cannot open shared object file", said)
    if absent:
        return ModelError(f"{name} needs the library {absent.group(1)}, which is not on this device")
    return ModelError(f"{name} cannot be loaded: {said[-400:]}")
