"""What stays on the device between calls, and how arguments and results pass to and from functions."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Union

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.wire import dtypes, frames
from rpcsys.wire.checks import shown
from rpcsys.wire.frames import Buffer, Frame, FrameTemplate, array_maker
from rpcsys.wire.head_cache import HeadCache, signature
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor
from rpcsys.wire.values import InOut, Out, Ref

#: Objects one session may keep: a client that never frees anything must not fill the table without end.
MAX_OBJECTS = 1 << 20
_NOTHING = FrameTemplate(frames.RESULT, b'{"r":null}')
_PLAIN_CALL = {"f", "a"}
#: Targets that are no functions: what they take or give comes in pieces.
_STREAMED = ("session.upload", "session.download")
#: Objects that `Objects.memory` lists: the head of a RESULT holds 1 MiB.
MAX_LISTED = 1000


class Objects:
    """The modules, functions and arrays of one session, by number."""

    def __init__(self) -> None:
        self._kept: Dict[int, Any] = {}
        self._about: Dict[int, Dict[str, Any]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, value: Any, about: Dict[str, Any]) -> Ref:
        """Keep ``value``; the ref that a client is given. Raises `RemoteArgumentError` when there are too many."""
        if len(self._kept) >= MAX_OBJECTS:
            raise RemoteArgumentError(f"the session keeps {MAX_OBJECTS} objects already; drop some")
        self._next += 1
        self._kept[self._next] = value
        self._about[self._next] = about
        return Ref(self._next, about)

    def get(self, id: Any) -> Any:
        """The object of that number. Raises `RemoteFunctionError`."""
        try:
            return self._kept[id]
        except (KeyError, TypeError):
            raise RemoteFunctionError(
                f"there is no object {shown(id)} in this session (freed, or another session's)"
            ) from None

    def free(self, ids: Any) -> None:
        """Drop objects; numbers that are unknown are ignored."""
        for number in ids if isinstance(ids, list) else ():
            if isinstance(number, int):
                self._kept.pop(number, None)
                self._about.pop(number, None)

    def memory(self) -> Dict[str, Any]:
        """What is kept: ``objects`` and ``bytes`` in all, and the largest `MAX_LISTED` of them, each with what it is."""
        sizes = {number: _bytes_of(value) for number, value in self._kept.items()}
        largest = sorted(sizes, key=lambda number: (-sizes[number], number))[:MAX_LISTED]
        kept = [{"id": number, "bytes": sizes[number], **_brief(self._about[number])} for number in largest]
        return {"objects": len(sizes), "bytes": sum(sizes.values()), "kept": kept}


def _bytes_of(value: Any) -> int:
    """Bytes of an array; 0 for what does not tell, a model or a function."""
    tensor = as_tensor(value)
    return 0 if tensor is None or tensor.dtype == "strings" else len(tensor.data)


def _brief(about: Dict[str, Any]) -> Dict[str, Any]:
    """What tells one object from another; not all that a model's client is told."""
    return {name: about[name] for name in ("is", "kind", "name", "dtype", "shape") if name in about}


def to_function(value: Any, objects: Objects, pool: Pool, written: List[Any]) -> Any:
    """A value from the wire as a function takes it; arrays it writes into are appended to ``written``."""
    kind = type(value)
    if kind is Tensor:
        return as_array(value, dtypes.import_numpy())
    if kind is Ref:
        return objects.get(value.id)
    if kind is Out:
        size = dtypes.item_bytes(value.dtype) * dtypes.count(value.shape)
        array = as_array(Tensor(value.dtype, value.shape, _zeroed(pool, size)), dtypes.import_numpy())
        written.append(array)
        return array
    if kind is InOut:
        array = to_function(value.value, objects, pool, written)
        written.append(array)
        return array
    if kind is list or kind is tuple:
        return kind(to_function(item, objects, pool, written) for item in value)
    if kind is dict:
        return {key: to_function(item, objects, pool, written) for key, item in value.items()}
    return value


def run_by_name(module: Any, named: Any, outputs: Any) -> Dict[str, Any]:
    """Run a module's main by names that came from a client. Raises `RemoteArgumentError` for what are none."""
    wanted = outputs if outputs is not None else []
    if type(named) is not dict or type(wanted) is not list or not all(type(n) is str for n in [*named, *wanted]):
        raise RemoteArgumentError("main is run with its inputs by name, and a list of the names of outputs")
    result: Dict[str, Any] = module.run(named, outputs)
    return result


def plain_call(
    head: Dict[str, Any], resolve: Callable[[Any], Callable[..., Any]]
) -> Union[Callable[[Frame], Any], bool]:
    """What runs a CALL, given its frame, where its head alone decides the arguments; else False.

    Plain calls of functions with scalars and arrays. What keeps, writes, names or transfers is not among them.
    ``resolve`` finds a function by what the head names; raises as that does.
    """
    target = head.get("f")
    if head.keys() != _PLAIN_CALL or target in _STREAMED or type(head["a"]) is not list:
        return False
    makers: List[Callable[[Frame], Any]] = []
    for item in head["a"]:
        kind = type(item)
        make = _constant(item) if kind is not dict and kind is not list else array_maker(item)
        if make is None:
            return False
        makers.append(make)
    if type(target) is not str:  # an object of the session, which may be freed and its number mean nothing
        return lambda frame: resolve(target)(*[make(frame) for make in makers])
    function = resolve(target)
    if all(type(item) is not dict and type(item) is not list for item in head["a"]):
        constants = tuple(head["a"])
        return lambda frame: function(*constants)
    if len(makers) == 1:
        only = makers[0]
        return lambda frame: function(only(frame))
    return lambda frame: function(*[make(frame) for make in makers])


def _constant(value: Any) -> Callable[[Frame], Any]:
    return lambda frame: value


def _zeroed(pool: Pool, size: int) -> memoryview:
    """Memory for an output. Reused memory is cleared: a function that fails half way must not show old data."""
    view = pool.take(size)
    if size:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(view)), 0, size)
    return view


def keep_arrays(value: Any, objects: Objects) -> Any:
    """``value`` with every array in it kept on the device, a ref in its place."""
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple  # a named tuple is no more than a tuple to the client
        return kind(keep_arrays(item, objects) for item in value)
    if isinstance(value, dict):
        return {key: keep_arrays(item, objects) for key, item in value.items()}
    tensor = as_tensor(value)
    if tensor is None:
        return value
    return objects.keep(value, {"is": "array", "dtype": tensor.dtype, "shape": list(tensor.shape)})


def from_function(value: Any, objects: Objects) -> Any:
    """What a function returned, with functions and modules in it kept on the device."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(from_function(item, objects) for item in value)
    if type(value) is dict:
        return {key: from_function(item, objects) for key, item in value.items()}
    if hasattr(value, "describe") and hasattr(value, "function"):
        return objects.keep(value, dict(value.describe(), **{"is": "module"}))
    if callable(value):
        return objects.keep(value, {"is": "function", "name": getattr(value, "__name__", "")[:200]})
    return value


def returned(call_id: int, result: Any, objects: Objects, heads: HeadCache) -> List[Buffer]:
    """The RESULT of a function that wrote into nothing; its head is remembered if it is one array or scalar."""
    if result is None:
        return _NOTHING.pieces(call_id)
    key, buffers = signature(None, (result,))
    template = heads.get(key)
    if template is None:
        template, buffers = frames.template(frames.RESULT, {"r": from_function(result, objects)})
        heads.put(key, template)
    return template.pieces(call_id, buffers)
