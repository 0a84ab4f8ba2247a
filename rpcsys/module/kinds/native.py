"""Kind ``_lib``: a shared library of TVM-FFI functions; with TVM's runtime, also the modules inside it.

Limitation: TVM's loader does not list the functions of modules inside a library, except for Relax. So they are not
listed here, and the client calls only listed functions.
"""

from __future__ import annotations

import contextlib
import platform
import re
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence

from rpcsys.errors import ModelError, NativeError
from rpcsys.ffi import library
from rpcsys.ffi.memory import Memory, address_of, locate
from rpcsys.ffi.module import LIBRARY_BIN, PREFIX, Lacking, Library
from rpcsys.ffi.tensors import TensorView
from rpcsys.module import elf
from rpcsys.module.container import functions_of
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Function, Module
from rpcsys.wire.memory import ALIGNMENT, Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

Lookup = Callable[[str], Callable[..., Any]]

_LOOKUP = "TVMFFIEnvModLookupFromImports"  # native code finds functions by name with it, through its library's module


class NativeModule(Module):
    """A loaded library. A call that fails raises `NativeError`."""

    def __init__(
        self, kind: str, functions: List[str], lookup: Optional[Lookup] = None, *, inputs: Sequence[Dict[str, Any]] = ()
    ) -> None:
        super().__init__(kind, inputs=inputs)
        self._listed = functions
        self._lookup = lookup

    def names(self) -> List[str]:
        return self._listed

    def own(self, name: str) -> Optional[Function]:
        found = self._functions.get(name)
        if found is None and self._lookup is not None:
            try:
                found = self._functions[name] = _adapted(self._lookup(name))
            except NativeError:
                return None
        return found


def load(
    path: str, name: str, inside: Sequence[str] = (), *, by_tvm: Optional[ContextManager[None]] = None
) -> NativeModule:  # fmt: skip
    """Load the library at ``path``, with modules of the kinds ``inside`` in it. Raises `ModelError`, in one line.

    TVM loads it where its runtime is there, inside ``by_tvm``.
    """
    with _explained(name):
        file = elf.read(path)
        check(file, name)
        functions = functions_of(file)
        if not functions and LIBRARY_BIN not in file.symbols:
            raise ModelError(f"{name} exports no TVM-FFI function (a symbol {PREFIX}NAME)")
        if library.present():
            library.api()  # load it before the library
            Library(path)  # resolve all symbols now: one that is found missing later would end the process
            if library.has_runtime():
                with by_tvm or contextlib.nullcontext():
                    return _load_by_tvm(path, name, functions, inside)
        if LIBRARY_BIN in file.symbols:
            raise _no_runtime(name, "has modules inside")
        return _load_alone(path, name, file, functions)


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
    with _explained(name):
        if library.present():
            library.api()
        return _load_alone(path, name, file, functions)


def _load_alone(path: str, name: str, file: elf.Elf, functions: List[str]) -> NativeModule:
    """Load a library that TVM's loader does not load, and set up what that loader would."""
    wanted = [symbol[2:] for symbol in file.symbols if symbol.startswith("__TVM")]  # pointers that TVM's loader sets
    needs = wanted or [_LOOKUP] * (_LOOKUP in file.symbols)
    if needs and not library.has_runtime():
        raise _no_runtime(name, "uses {}".format(", ".join(needs)))
    opened = _open_alone(path, file)
    if needs:
        opened.connect(wanted)
    return NativeModule(LIBRARY, functions, opened.function)


def _open_alone(path: str, file: elf.Elf) -> Library:
    lacking = [] if library.present() else [name for name in file.undefined() if name.startswith("TVM")]
    if not lacking:
        return Library(path)
    anchor = next(symbol for symbol in file.symbols.values() if symbol.name.startswith(PREFIX))
    slots = {name: file.jump_slots[name] for name in lacking if name in file.jump_slots}
    others = [name for name in file.undefined() if name not in slots]
    return Library(path, Lacking(slots, (anchor.name, anchor.value), others))


def _load_by_tvm(path: str, name: str, functions: List[str], kinds: Sequence[str]) -> NativeModule:
    from rpcsys.ffi import tvm

    for kind in kinds:
        if not tvm.loads(kind):
            text = "which neither rpcsys nor TVM's runtime here can load"
            raise ModelError(f"{name} holds a module of kind {kind!r}, {text}")
    module = tvm.load_library(path)
    if module.kind != tvm.EXECUTABLE:
        return NativeModule(LIBRARY, functions, module.function)
    machine = tvm.VirtualMachine(module)
    programs = machine.functions()
    # A library of a single kernel exports it as its entry, too; that is not the program's main.
    functions = [name for name in functions if name != "main" or "main" not in programs]
    programs = [name for name in programs if name not in functions]

    def lookup(name: str) -> Callable[..., Any]:
        return module.function(name) if name in functions else machine.function(name)

    parameters = machine.parameters("main") if "main" in programs else []
    inputs = [{"name": name, "dtype": dtype or "unknown", "shape": shape or []} for name, dtype, shape in parameters]
    return NativeModule(tvm.EXECUTABLE, programs + functions, lookup, inputs=inputs)


def _no_runtime(name: str, what: str) -> ModelError:
    """The error for a library that needs TVM's runtime: without it, its pointers to the runtime would be null."""
    how = "install apache-tvm there, or start the server with --tvm-library DIR"
    return ModelError(f"{name} {what}, and this device has no libtvm_runtime; {how}")


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
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


# ------------------------------------------------------------------ arguments and results


def _adapted(native: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a native function for a session's calls: arguments aligned, results plain arrays."""

    def call(*args: Any) -> Any:
        copies: Dict[Any, _Copy] = {}
        result = native(*[_argument(arg, copies) for arg in args])
        for copy in copies.values():
            copy.write_back()
        return result if result is None else _result(result)

    call.__name__ = getattr(native, "__name__", "")
    return call


def _argument(value: Any, copies: Dict[Any, _Copy]) -> Any:
    if type(value) in (int, float, str, bool, bytes) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item, copies) for item in value)
    memory = locate(value)
    if memory is None or (memory.address % ALIGNMENT == 0 and memory.strides is None):
        return value if memory is None else memory
    place = memory[:4]
    if place not in copies:  # an array that is passed twice must be one array for the function, too
        copies[place] = _Copy(value, memory)
    return copies[place].memory


class _Copy:
    """A copy of an array in memory that native code can use, in place of one that it cannot."""

    def __init__(self, value: Any, original: Memory) -> None:
        tensor = as_tensor(value)
        assert tensor is not None
        self._value = value
        self._original = original
        self._source = memoryview(tensor.data)
        self._block = Pool().take(self._source.nbytes)
        self._block[:] = self._source
        self.memory = Memory(address_of(self._block), original.dtype, original.shape, None, False, self._block)

    def write_back(self) -> None:
        """Copy what the function wrote back into the original array."""
        if self._original.readonly:
            return
        if self._original.strides is None:
            self._source[:] = self._block
        else:  # only numpy has such arrays
            self._value[...] = Tensor(self._original.dtype, self._original.shape, self._block).numpy()


def _result(value: Any) -> Any:
    if isinstance(value, TensorView):
        return as_array(Tensor(value.dtype, value.shape, value.data))
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_result(item) for item in value)
    if isinstance(value, dict):
        return {key: _result(item) for key, item in value.items()}
    return _adapted(value) if callable(value) else value
