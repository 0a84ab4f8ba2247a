"""Our modules in TVM's own loader: a library of ours that TVM loads, and one of TVM's that holds modules of ours.

Known weakness: TVM copies a module's bytes, and a second copy here aligns its arrays. Only `rpcsys.module.load_module`
of a library whose root is ours maps them without a copy.
"""

# TVM calls one function for each kind of module (``ffi.Module.load_from_bytes.KIND``), which must return a module of
# TVM's own. Only C++, or TVM's loader from a shared library, can make such a module. So each of our modules gets a
# library without code: its functions are addresses of Python functions in this process. TVM unloads the library after
# the module's last use; our part is released when later modules are loaded.
# Only TVM knows a module's imports, and only after all are loaded. So they are read before the first call.

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import sys
import tempfile
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Set

from rpcsys.errors import ModelError
from rpcsys.ffi import calls, tvm
from rpcsys.ffi.calls import get_global
from rpcsys.ffi.device_arrays import TvmArray
from rpcsys.ffi.library import Object
from rpcsys.ffi.module import PREFIX
from rpcsys.ffi.tensors import NativeTensor, TensorView
from rpcsys.module import elf, elfwriter, packed, registry
from rpcsys.module.kinds import python
from rpcsys.module.kinds.group import GroupModule
from rpcsys.module.kinds.native import NativeModule
from rpcsys.module.layout import LIBRARY
from rpcsys.module.module import Module
from rpcsys.module.placement import HOST
from rpcsys.module.registry import Context
from rpcsys.wire.tensor import Tensor, as_array

_REMOVED = " (deleted)\n"  # how Linux marks the name of a file that was removed
_NAME = "the library"  # the file in messages: TVM does not pass its name


class _Given:
    """One of our modules in TVM, and its functions as TVM calls them."""

    def __init__(self, module: Module, path: str) -> None:
        self.module = module
        self.path = path
        self.address = 0
        self._lock = threading.Lock()
        self._linked = False
        names = module.listed if isinstance(module, GroupModule) else module.names()
        self.symbols = {name: calls.symbol(self._function(name)) for name in names}

    def link(self) -> None:
        """Attach the module's imports, once. Raises the errors of their kinds."""
        with self._lock:
            if not self._linked:
                mapped = _mapped()
                self.module.attach([_ours(each, mapped) for each in tvm.imports_of(self.address)])
                self.module.link()
                self._linked = True

    def _function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.link()
            return self.module.function(name)(*[_argument(arg) for arg in args])

        return call


_given: Dict[int, _Given] = {}  # our modules in TVM, by the address of TVM's module
_numbers = itertools.count(1)
#: Modules that were loaded since the last search for modules that TVM has dropped. A search takes longer with more
#: modules, so it waits until one in `_SHARE` modules is new.
_since = 0
_SHARE = 4
_registered: Set[str] = set()  # kinds that TVM's loader knows
_lock = threading.Lock()


class _TvmLoads:
    allow_pickle = False  # whether TVM's own loads may load Python functions


class _Loading(threading.local):
    context: Optional[Context] = None  # the file that our own loader has TVM load in this thread


_loading = _Loading()


def register(*, allow_pickle: bool = False) -> None:
    """Register all kinds of modules with TVM's loader; call it again for kinds that were registered later.

    ``allow_pickle`` also loads the Python functions in libraries, which can do anything.
    """
    _TvmLoads.allow_pickle = allow_pickle
    _register()


@contextlib.contextmanager
def loading(name: str, *, allow_pickle: bool) -> Iterator[None]:
    """Inside the ``with``, TVM can load the file ``name`` with our modules in it, in this thread."""
    _register()
    outer, _loading.context = _loading.context, Context(name, _no_library, allow_pickle)
    try:
        yield
    finally:
        _loading.context = outer


def _register() -> None:
    with _lock:
        for kind in set(registry.known()) - {LIBRARY} - _registered:
            calls.register(f"ffi.Module.load_from_bytes.{kind}", _loader(kind))
            _registered.add(kind)


def _loader(kind: str) -> Callable[[bytes], Object]:
    def load(data: bytes) -> Object:
        context = _loading.context
        if context is None:
            context = Context(_NAME, _no_library, _TvmLoads.allow_pickle)
            if kind == python.KIND and not context.allow_pickle:
                raise ModelError(
                    f"{_NAME} holds Python functions, which can do anything; if you trust it: "
                    "rpcsys.tvm.register(allow_pickle=True)"
                )
        return _give(registry.find(kind).load_from_bytes(_placed(data), context))

    load.__name__ = f"load_{kind}"
    return load


def _no_library() -> Module:
    raise ModelError(f"{_NAME} has functions of its own, which only TVM knows here")


def _placed(data: bytes) -> memoryview:
    """A copy at the same offset in a page as in the file, so that arrays in it are aligned."""
    before = -packed.start(memoryview(data)) % mmap.PAGESIZE
    block = mmap.mmap(-1, before + len(data) or 1)
    block[before : before + len(data)] = data
    return memoryview(block)[before : before + len(data)].toreadonly()


def _give(module: Module) -> Object:
    """TVM's module for one of ours. Raises `ModelError` on a system without a writer of libraries here."""
    machine = elfwriter.MACHINES.get(elf.here())
    if machine is None or not sys.platform.startswith("linux"):
        raise ModelError(f"{_NAME} can be loaded by rpcsys.module.load_module; TVM's loader takes it on Linux alone")
    _forget_dropped()
    with tempfile.TemporaryDirectory(prefix="rpcsys-tvm-") as folder:
        # The linker takes an open path for the same library, so each library has a path that is never reused.
        given = _Given(module, os.path.join(folder, f"{next(_numbers)}.so"))
        addresses = {
            PREFIX + name: ctypes.cast(code, ctypes.c_void_p).value or 0 for name, code in given.symbols.items()
        }
        with open(given.path, "wb") as file:
            file.write(elfwriter.function_library(machine, addresses))
        native = get_global("ffi.ModuleLoadFromFile").raw(given.path)
    given.address = native.handle
    with _lock:
        before = _given.pop(native.handle, None)
        _given[native.handle] = given
    if before is not None:  # TVM has dropped it: another module has its address
        before.module.release()
    return native


def _forget_dropped() -> None:
    """Release our modules after TVM has unloaded their libraries."""
    global _since
    with _lock:
        _since += 1
        if _since <= len(_given) // _SHARE:
            return
        _since = 0
        mapped = _mapped()
        for address in [address for address, given in _given.items() if given.path not in mapped]:
            _given.pop(address).module.release()


def _mapped() -> Set[str]:
    """The files in this process's memory that were removed. Libraries that TVM has dropped are not among them."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        names = (name for line in maps for name in line.split(None, 5)[5:])
        return {name[: -len(_REMOVED)] for name in names if name.endswith(_REMOVED)}


def _ours(native: Object, mapped: Set[str]) -> Module:
    """Our module for an imported one: one of ours, linked, or a wrapper of TVM's."""
    given = _given.get(native.handle)
    if given is not None and given.path in mapped:  # else another module has its address
        given.link()
        return given.module
    theirs = tvm.TvmModule(native)
    return NativeModule(theirs.kind, [], theirs.function)


def _argument(value: Any) -> Any:
    """An argument from TVM as our modules take it: arrays over the same memory, those of devices as they are."""
    if isinstance(value, NativeTensor) and value.device != HOST:
        return TvmArray(value.object)
    if isinstance(value, TensorView):
        return as_array(Tensor(value.dtype, value.shape, value.data))
    if isinstance(value, (tuple, list)):
        return type(value)(_argument(item) for item in value)
    if isinstance(value, dict):
        return {key: _argument(item) for key, item in value.items()}
    return value
