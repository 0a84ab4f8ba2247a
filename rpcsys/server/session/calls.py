"""Answers a call: builds its arguments from the frame, runs its function, and packs the result.

`operations` defines the functions of a session, `models.calls` those of a model host.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence

from rpcsys.errors import ProtocolError, RemoteArgumentError, RemoteFunctionError
from rpcsys.module import placement
from rpcsys.module.module import Module
from rpcsys.module.placement import DeviceArray
from rpcsys.server.session import trace_context
from rpcsys.wire import dtypes, frames, values
from rpcsys.wire.checks import shown
from rpcsys.wire.encoding import encoded
from rpcsys.wire.frames import Buffer, Frame, HeadCache, array_maker, signature
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor
from rpcsys.wire.values import InOut, Out, Ref

#: Objects that one session may keep: a limit for clients that never free any.
MAX_OBJECTS = 1 << 20
MAX_LISTED = 1000  # objects that `Objects.memory` lists: the head of a RESULT holds 1 MiB
#: The fields of an object that `Objects.memory` reports; its client has received all of them before.
_LISTED = ("id", "bytes", "is", "kind", "name", "dtype", "shape", "device")
_PLAIN_CALL = {"f", "a"}
_MAX_US = (1 << 32) - 1  # the field of a header holds no more


class Objects:
    """The modules, functions and arrays of one session, by number."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self.on_devices: Callable[[], None] = lambda: None  # called with the first object on another than the CPU

    def keep(self, value: Any, about: dict[str, Any]) -> Ref:
        """Keep ``value``; return its ref for the client. Raises `RemoteArgumentError` if there are too many."""
        if len(self._kept) >= MAX_OBJECTS:
            raise RemoteArgumentError(f"the session keeps {MAX_OBJECTS} objects already; drop some")
        number = next(self._numbers)  # calls of several devices run at once
        if isinstance(value, DeviceArray) or (isinstance(value, Module) and value.devices):
            self.on_devices()
        self._kept[number] = (value, about)
        return Ref(number, about)

    def get(self, id: Any) -> Any:
        """The object with the number ``id``. Raises `RemoteFunctionError`."""
        try:
            return self._kept[id][0]
        except (KeyError, TypeError):
            text = f"there is no object {shown(id)} in this session (freed, or another session's)"
            raise RemoteFunctionError(text) from None

    def free(self, ids: Any) -> None:
        """Drop objects; unknown numbers are ignored."""
        for number in ids if isinstance(ids, list) else ():
            if isinstance(number, int):
                self._kept.pop(number, None)

    def memory(self) -> dict[str, Any]:
        """The number of kept ``objects``, their ``bytes``, and a description of the largest `MAX_LISTED` of them."""
        sizes = {number: _bytes_of(value) for number, (value, _) in list(self._kept.items())}
        largest = sorted(sizes, key=lambda number: (-sizes[number], number))[:MAX_LISTED]
        kept = [{**self._kept[number][1], "id": number, "bytes": sizes[number]} for number in largest]
        listed = [{name: value for name, value in one.items() if name in _LISTED} for one in kept]
        report = {"objects": len(sizes), "bytes": sum(sizes.values()), "kept": listed}
        devices = {device: {"arrays": 0, "bytes": 0, **vars(each)} for device, each in placement.figures().items()}
        for value, _ in list(self._kept.values()):
            if isinstance(value, DeviceArray):
                devices[value.device]["arrays"] += 1
                devices[value.device]["bytes"] += value.nbytes
        if not devices:
            return report
        return {**report, "devices": devices}


def _bytes_of(value: Any) -> int:
    if isinstance(value, DeviceArray):
        return value.nbytes
    tensor = as_tensor(value)
    return 0 if tensor is None or tensor.dtype == "strings" else len(tensor.data)


class ThreadMemory(threading.local):
    """Memory for outputs: one pool for each thread."""

    def __init__(self) -> None:
        self.pool = Pool()


class BoundCall(NamedTuple):
    """A call with its function and arguments found."""

    function: Callable[..., Any]
    args: list[Any]
    written: list[Any]  # the arrays that it writes into
    encode: Any  # how its results cross
    keep: bool  # whether arrays in its result stay on the device

    def run(self, on_host: bool = False) -> tuple[Any, int]:
        """Call it; return its result, on the host unless it is kept there, and the microseconds that it took.

        ``on_host``: whether it runs on the CPU, and needs arrays there.
        """
        began = time.perf_counter()
        args = placement.on_host(self.args) if on_host else self.args
        result = self.function(*args)
        result = encoded(result if self.keep else placement.on_host(result), self.encode)
        return result, took_us(began)


class Calls:
    """The functions that a client can call."""

    #: Whether a module's functions stay valid, because no client can free the module.
    modules_last = False

    def __init__(self, objects: Objects, memory: ThreadMemory) -> None:
        self.objects = objects
        self._memory = memory
        self.templates = HeadCache()  # of results
        #: Targets that receive or send their data in CHUNKs.
        self.streamed: dict[str, Callable[[Frame], list[Buffer]]] = {}

    def resolve(self, target: Any) -> Callable[..., Any]:
        """The callable that a CALL names. Raises `RemoteFunctionError` if there is none."""
        raise NotImplementedError

    def module(self, id: Any) -> Module:
        """The module with the number ``id``. Raises `RemoteFunctionError`."""
        raise NotImplementedError

    def answer(self, frame: Frame) -> list[Buffer]:
        """Run a call; return the pieces of its RESULT, none if it only begins an upload.

        Raises what its function raises, and `RpcsysError` for an invalid call.
        """
        parsed, began = frame.parsed, time.perf_counter()
        if parsed.memo is None:
            target = parsed.head.get("f")
            by_name = type(target) is str
            if by_name and target in self.streamed:
                return self.streamed[target](frame)
            parsed.memo = plain_call(parsed.head, self.resolve, by_name or self.modules_last)
        if not parsed.memo:
            return self.run(frame)
        result = parsed.memo(frame)
        return self.result(frame.call_id, result, took_us(began))

    def run(self, frame: Frame) -> list[Buffer]:
        """`answer` a call that is not plain: one that keeps its result, writes or names arguments, or has lists."""
        bound = self.bound(frame)
        return self.packed(frame, bound, *bound.run())

    def bound(self, frame: Frame) -> BoundCall:
        """A call's function and arguments. Raises as `resolve` does, and `ProtocolError`."""
        head, objects, pool = frame.parsed.head, self.objects, self._memory.pool
        target, keep, trace = head.get("f"), head.get("keep") is True, head.get("trace")
        written: list[Any] = []
        if "k" in head:
            if type(target) is not list or len(target) != 2 or target[1] != "main":
                raise ProtocolError("only a module's main is run by names")
            named = to_function(frame.get("k"), objects, pool, written)
            by_name = functools.partial(_run_by_name, self.module(target[0]), outputs=frame.get("outputs"))
            return BoundCall(trace_context.within(trace, by_name), [named], written, None, keep)
        args = listed(head.get("a", ()))
        made = [to_function(values.build(arg, frame.buffers), objects, pool, written) for arg in args]
        function = trace_context.within(trace, self.resolve(target))
        return BoundCall(function, made, written, frame.get("encode"), keep)

    def packed(self, frame: Frame, bound: BoundCall, result: Any, took: int) -> list[Buffer]:
        """The RESULT of a call that has run, in ``took`` microseconds."""
        if bound.keep:
            result = keep_arrays(result, self.objects)
        elif not bound.written:
            return self.result(frame.call_id, result, took)
        fields = {"r": from_function(result, self.objects)}
        if bound.written:
            fields["w"] = bound.written
        return frames.encode(frames.RESULT, frame.call_id, fields, deadline_ms=took)

    def result(self, call_id: int, result: Any, took: int) -> list[Buffer]:
        """The RESULT of a function that wrote into no argument; the head of one array or scalar is cached.

        ``took``: the function's microseconds, which it says in the field of a CALL's deadline.
        """
        key, buffers = signature(None, (result,))
        template = self.templates.get(key)
        if template is None:
            template, buffers = frames.template(frames.RESULT, {"r": from_function(result, self.objects)})
            self.templates.put(key, template)
        return template.pieces(call_id, buffers, took)


def took_us(began: float) -> int:
    """Microseconds since ``began`` (`time.perf_counter`), as a RESULT says them: rounded up, because 0 says nothing."""
    return min(int((time.perf_counter() - began) * 1e6) + 1, _MAX_US)


def listed(value: Any) -> Sequence[Any]:
    """Check that a call's arguments are a list. Raises `ProtocolError`."""
    if not isinstance(value, (list, tuple)):
        raise ProtocolError("the arguments of a call are a list")
    return value


def _run_by_name(module: Module, named: Any, *, outputs: Any) -> dict[str, Any]:
    """Run a module's main with a client's inputs by name. Raises `RemoteArgumentError` if there are no names."""
    wanted = outputs if outputs is not None else []
    if type(named) is not dict or type(wanted) is not list or not all(type(n) is str for n in [*named, *wanted]):
        raise RemoteArgumentError("main is run with its inputs by name, and a list of the names of outputs")
    return module.run(named, outputs)


def plain_call(
    head: dict[str, Any], resolve: Callable[[Any], Callable[..., Any]], lasting: bool
) -> Callable[[Frame], Any] | bool:
    """Return a function that runs a CALL of scalars and arrays, given its frame; False for any other CALL.

    ``resolve`` finds the function that the head names: once if that is ``lasting``. Raises as ``resolve`` does.
    """
    target = head.get("f")
    if head.keys() != _PLAIN_CALL or type(head["a"]) is not list:
        return False
    args = head["a"]
    scalars = True
    makers: list[Callable[[Frame], Any]] = []
    for item in args:
        scalar = type(item) is not dict and type(item) is not list
        make = (lambda frame, item=item: item) if scalar else array_maker(item)
        if make is None:
            return False
        scalars = scalars and scalar
        makers.append(make)
    if not lasting:  # an object of the session, which its client may free
        return lambda frame: resolve(target)(*[make(frame) for make in makers])
    function = resolve(target)
    if scalars:
        constants = tuple(args)
        return lambda frame: function(*constants)
    if len(makers) == 1:
        only = makers[0]
        return lambda frame: function(only(frame))
    return lambda frame: function(*[make(frame) for make in makers])


def to_function(value: Any, objects: Objects, pool: Pool, written: list[Any]) -> Any:
    """Convert a value from the wire for a function; arrays that it writes into are appended to ``written``."""
    kind = type(value)
    if kind is Tensor:
        return as_array(value, dtypes.import_numpy())
    if kind is Ref:
        return objects.get(value.id)
    if kind is Out:
        size = dtypes.item_bytes(value.dtype) * dtypes.count(value.shape)
        written.append(as_array(Tensor(value.dtype, value.shape, _zeroed(pool, size)), dtypes.import_numpy()))
        return written[-1]
    if kind is InOut:
        written.append(to_function(value.value, objects, pool, written))
        return written[-1]
    if kind is list or kind is tuple:
        return kind(to_function(item, objects, pool, written) for item in value)
    if kind is dict:
        return {key: to_function(item, objects, pool, written) for key, item in value.items()}
    return value


def _zeroed(pool: Pool, size: int) -> memoryview:
    """Memory for an output, set to zero: a function that fails half-way must not return old data."""
    view = pool.take(size)
    if size:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(view)), 0, size)
    return view


def keep_arrays(value: Any, objects: Objects) -> Any:
    """``value`` with every array in it kept on the device and replaced by a ref."""
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple  # a named tuple becomes a tuple
        return kind(keep_arrays(item, objects) for item in value)
    if isinstance(value, dict):
        return {key: keep_arrays(item, objects) for key, item in value.items()}
    if isinstance(value, DeviceArray):
        about = {"is": "array", "dtype": value.dtype, "shape": list(value.shape), "device": value.device}
        return objects.keep(value, about)
    tensor = as_tensor(value)
    if tensor is None:
        return value
    return objects.keep(value, {"is": "array", "dtype": tensor.dtype, "shape": list(tensor.shape)})


def from_function(value: Any, objects: Objects) -> Any:
    """A function's result, with functions and modules in it kept on the device and replaced by refs."""
    if type(value) in (list, tuple):
        return type(value)(from_function(item, objects) for item in value)
    if type(value) is dict:
        return {key: from_function(item, objects) for key, item in value.items()}
    if hasattr(value, "describe") and hasattr(value, "function"):
        return objects.keep(value, {**value.describe(), "is": "module"})
    if callable(value):
        return objects.keep(value, {"is": "function", "name": getattr(value, "__name__", "")[:200]})
    return value
