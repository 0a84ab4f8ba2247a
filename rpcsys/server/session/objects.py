"""What stays on the device between calls, and how arguments and results pass to and from functions."""

from __future__ import annotations

import ctypes
from typing import Any

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.wire import dtypes
from rpcsys.wire.checks import shown
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor
from rpcsys.wire.values import InOut, Out, Ref

#: Objects one session may keep: a client that never frees anything must not fill the table without end.
MAX_OBJECTS = 1 << 20
#: Objects that `Objects.memory` lists: the head of a RESULT holds 1 MiB.
MAX_LISTED = 1000
#: What `Objects.memory` tells of an object; its client was told more.
_LISTED = ("is", "kind", "name", "dtype", "shape")


class Objects:
    """The modules, functions and arrays of one session, by number."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._last = 0

    def keep(self, value: Any, about: dict[str, Any]) -> Ref:
        """Keep ``value``; the ref that a client is given. Raises `RemoteArgumentError` when there are too many."""
        if len(self._kept) >= MAX_OBJECTS:
            raise RemoteArgumentError(f"the session keeps {MAX_OBJECTS} objects already; drop some")
        self._last += 1
        self._kept[self._last] = (value, about)
        return Ref(self._last, about)

    def get(self, id: Any) -> Any:
        """The object of that number. Raises `RemoteFunctionError`."""
        try:
            return self._kept[id][0]
        except (KeyError, TypeError):
            raise RemoteFunctionError(
                f"there is no object {shown(id)} in this session (freed, or another session's)"
            ) from None

    def free(self, ids: Any) -> None:
        """Drop objects; numbers that are unknown are ignored."""
        for number in ids if isinstance(ids, list) else ():
            if isinstance(number, int):
                self._kept.pop(number, None)

    def memory(self) -> dict[str, Any]:
        """``objects`` and ``bytes`` kept in all, and the largest `MAX_LISTED` of them, each with what it is."""
        sizes = {number: _bytes_of(value) for number, (value, _) in self._kept.items()}
        largest = sorted(sizes, key=lambda number: (-sizes[number], number))[:MAX_LISTED]
        kept = []
        for number in largest:
            about = self._kept[number][1]
            kept.append(
                {"id": number, "bytes": sizes[number], **{name: about[name] for name in _LISTED if name in about}}
            )
        return {"objects": len(sizes), "bytes": sum(sizes.values()), "kept": kept}


def _bytes_of(value: Any) -> int:
    """Bytes of an array; 0 for what does not tell, a model or a function."""
    tensor = as_tensor(value)
    return 0 if tensor is None or tensor.dtype == "strings" else len(tensor.data)


def to_function(value: Any, objects: Objects, pool: Pool, written: list[Any]) -> Any:
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
    if type(value) in (list, tuple):
        return type(value)(from_function(item, objects) for item in value)
    if type(value) is dict:
        return {key: from_function(item, objects) for key, item in value.items()}
    if hasattr(value, "describe") and hasattr(value, "function"):
        return objects.keep(value, {**value.describe(), "is": "module"})
    if callable(value):
        return objects.keep(value, {"is": "function", "name": getattr(value, "__name__", "")[:200]})
    return value
