"""tuples, lists and dicts as libtvm_ffi's Array, List and Map, and back. Elements are converted one by one."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

from rpcsys.ffi import abi
from rpcsys.ffi.functions import Function, get_global
from rpcsys.ffi.objects import Object

_KEY, _VALUE, _NEXT = 0, 1, 2  # what the iterator of a map is asked for
_found: Dict[str, Function] = {}


def make(value: Any) -> Object:
    """The native container with the elements of a tuple, list or dict. Raises `NativeError`."""
    if isinstance(value, dict):
        return _function("ffi.Map").raw(*(part for item in value.items() for part in item))
    return _function("ffi.List" if isinstance(value, list) else "ffi.Array").raw(*value)


def elements(native: Object) -> Any:
    """The elements of a native container: a tuple, list or dict. Raises `NativeError`."""
    kind = native.type_index
    if kind == abi.ARRAY:
        return tuple(_items("ffi.Array", native))
    if kind == abi.LIST:
        return list(_items("ffi.List", native))
    return dict(_pairs("ffi.Map" if kind == abi.MAP else "ffi.Dict", native))


def _items(kind: str, native: Object) -> Iterator[Any]:
    item = _function(kind + "GetItem")
    for index in range(_function(kind + "Size")(native)):
        yield item(native, index)


def _pairs(kind: str, native: Object) -> Iterator[Tuple[Any, Any]]:
    if not _function(kind + "Size")(native):
        return
    iterator = _function(kind + "ForwardIterFunctor")(native)
    while True:
        yield iterator(_KEY), iterator(_VALUE)
        if not iterator(_NEXT):
            return


def _function(name: str) -> Function:
    function = _found.get(name)
    if function is None:
        function = _found[name] = get_global(name)
    return function
