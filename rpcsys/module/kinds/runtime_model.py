"""Modules whose model is kept as its runtime has it: one or two files, which only that runtime reads.

A kind's own file says how its runtime opens a model (`ModelRuntime`); all else is here.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Dict, Generic, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

from rpcsys.errors import (
    ModelError,
    ProfileNotSupported,
    RemoteArgumentError,
    RemoteFunctionError,
    RpcsysError,
    one_line,
)
from rpcsys.module import elf, packed
from rpcsys.module.kinds.values import Value
from rpcsys.module.layout import Buffer, FormatError
from rpcsys.module.module import Function, Module
from rpcsys.module.placement import on_host
from rpcsys.module.profiler import OperatorRun, Profiler
from rpcsys.module.registry import Context
from rpcsys.wire.device_names import CPU, check_threads, parse

_MOST_TEXT = 400  # characters of a runtime's message
Made = TypeVar("Made")


class ModelFiles(NamedTuple):
    """A model: the paths of its files, or their bytes inside a library. The model itself comes first."""

    paths: Sequence[str] = ()
    inside: Sequence[Buffer] = ()

    def pieces(self) -> List[Buffer]:
        """The bytes of the files. Raises OSError."""
        return list(self.inside) or [_mapped(path) for path in self.paths]


def _mapped(path: str) -> Buffer:
    return memoryview(elf.mapped(path)) if os.path.getsize(path) else b""


class RuntimeFunction(NamedTuple):
    """A function of an opened model. ``run`` takes and gives arrays of the host, by place; many threads may call it."""

    inputs: List[Value]
    outputs: List[Value]
    run: Callable[[List[Any]], Sequence[Any]]


class RuntimeProfiler(NamedTuple):
    """A function of a model that was opened to be profiled; ``runs`` as of `Profiler`."""

    function: RuntimeFunction
    runs: Callable[[int], List[List[OperatorRun]]]


class ModelRuntime(NamedTuple):
    """What runs the models of one kind."""

    kind: str
    title: str  # its name in messages
    #: Opens a model for a device ("" for the CPU) and a number of threads (0 for its default); its functions by name,
    #: the first one is ``main`` where none is called so. Raises anything.
    open: Callable[[ModelFiles, str, int], Dict[str, RuntimeFunction]]
    has_threads: bool = True  # whether a call has a number of threads
    #: As `open`, to profile the function of that name. Without it, ``no_profile`` says what to do.
    profiler: Optional[Callable[[ModelFiles, str, int, str], RuntimeProfiler]] = None
    no_profile: str = ""


class RuntimeModule(Module):
    """One model. Its functions are those of the model (signatures, methods, entry points), and ``main``."""

    def __init__(self, runtime: ModelRuntime, files: ModelFiles, name: str, device: str = "", threads: int = 0) -> None:
        super().__init__(runtime.kind)
        self.files = files
        self.threads = threads  # of a call, 0 for the runtime's default
        self.device = device
        self._runtime = runtime
        self._name = name
        self._opened: Dict[str, RuntimeFunction] = {}

    @property
    def runtime(self) -> str:
        """The runtime that runs it, such as ``"LiteRT"``."""
        return self._runtime.title

    def names(self) -> List[str]:
        return list(self._opened)

    def own(self, name: str) -> Optional[Function]:
        function = self._opened.get(name)
        return None if function is None else functools.partial(_called, self._runtime.title, function)

    def place(self, device: str) -> None:
        """Run there; whether it can is known when it is linked."""
        where = parse(device)
        self.device, self._opened = "" if where == CPU else str(where), {}

    def use_threads(self, threads: int) -> bool:
        self.threads, self._opened = threads if self._runtime.has_threads else 0, {}
        return self._runtime.has_threads

    def own_profiler(self, name: str, folder: str) -> Profiler:
        title, make = self._runtime.title, self._runtime.profiler
        if make is None:
            raise ProfileNotSupported(f"{title}'s Python tells no times of operators; {self._runtime.no_profile}")
        made = make(self.files, self.device, self.threads, name)
        return Profiler(title, functools.partial(_called, title, made.function), made.runs)

    def link(self) -> None:
        """Open the model. Raises `ModelError`, in one line."""
        if self._opened:
            return
        try:
            opened = self._runtime.open(self.files, self.device, self.threads)
        except ModelError as error:
            raise ModelError(f"{self._name} {one_line(error, None)}") from None
        except Exception as error:  # noqa: BLE001 - each runtime has errors of its own
            why = functools.reduce(lambda text, path: text.replace(path, self._name), self.files.paths, _text(error))
            raise ModelError(f"{self._name} cannot be loaded by {self.runtime}: {why[:_MOST_TEXT]}") from None
        if not opened:
            raise ModelError(f"{self._name} has no function that {self.runtime} can call")
        main = opened.get("main") or next(iter(opened.values()))
        self._opened = {"main": main, **opened}
        self.inputs, self.outputs = ([value.describe() for value in values] for values in main[:2])

    def release(self) -> None:
        super().release()
        self._opened = {}


def _called(title: str, function: RuntimeFunction, *args: Any) -> Any:
    """The outputs of a call: one array, or a tuple of them. Raises `RemoteArgumentError`, `RemoteFunctionError`."""
    wanted = function.inputs
    if len(args) != len(wanted):
        names = ", ".join(repr(value.name) for value in wanted) or "none"
        raise RemoteArgumentError(f"the model takes {len(wanted)} input(s), not {len(args)}: {names}")
    try:
        results = function.run([value.check(on_host(arg)) for value, arg in zip(wanted, args)])
    except RpcsysError:
        raise
    except Exception as error:  # noqa: BLE001 - each runtime has errors of its own
        raise RemoteFunctionError(f"{title} failed: {_text(error)[:_MOST_TEXT]}") from None
    return results[0] if len(results) == 1 else tuple(results)


def _text(error: Exception) -> str:
    return one_line(error, None)


class OnePerCall(Generic[Made]):
    """Objects that one thread uses at a time; another is made where all are in use."""

    def __init__(self, make: Callable[[], Made]) -> None:
        """Makes the first one now, and raises what that raises."""
        self._make = make
        self._idle = [make()]

    @contextlib.contextmanager
    def one(self) -> Iterator[Made]:
        """One for this thread; it is not used again if the ``with`` raises."""
        try:
            used = self._idle.pop()
        except IndexError:
            used = self._make()
        yield used
        self._idle.append(used)


# ------------------------------------------------------------------ loading and saving


def load(runtime: ModelRuntime, paths: Sequence[str], name: str, device: str, threads: int) -> RuntimeModule:
    """Load the model in these files; messages call it ``name``. Raises `ModelError`, in one line."""
    module = RuntimeModule(runtime, ModelFiles(paths), name)
    if device:
        module.place(device)
    if threads and not module.use_threads(threads):
        raise ModelError(f"{name} is run by {runtime.title}, which sets no number of threads; leave the threads out")
    module.link()
    return module


def save_to_bytes(module: RuntimeModule, offset: int) -> Sequence[Buffer]:
    """The files in pieces, without copies."""
    about = {
        "functions": module.names(),
        "inputs": module.inputs,
        "outputs": module.outputs,
        "device": module.device,
        "threads": module.threads,
    }
    return packed.pack(about, module.files.pieces(), offset)


def load_from_bytes(runtime: ModelRuntime, data: memoryview, context: Context) -> Module:
    """Load the module; its model is opened when it is linked. Raises `FormatError`."""
    about, buffers = packed.unpack(data)
    device, threads = about.get("device", ""), about.get("threads", 0)
    if not buffers:
        raise FormatError("is broken (a module has no model)")
    try:
        check_threads(threads)
        where = str(parse(device)) if device else ""
    except RpcsysError as error:
        raise FormatError(f"is broken ({error})") from None
    module = RuntimeModule(runtime, ModelFiles(inside=buffers), context.name, where, threads)
    module.inputs, module.outputs = packed.declared(about.get("inputs")), packed.declared(about.get("outputs"))
    return module
