"""Calls: native functions from Python, and Python's functions from native code; errors cross both ways.

Known weakness: an exception that native code lets pass loses its Python class; its name stays, as the kind.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from typing import Any, Callable, Dict, List, Optional

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, library
from rpcsys.ffi.objects import Object, Strings
from rpcsys.ffi.values import fill, give, look, open_error, take

_packs: Dict[int, Any] = {}
_numbers = itertools.count(1)
#: Functions of Python's that native code holds, by the number it knows them by.
_held: Dict[int, Callable[..., Any]] = {}


def invoke(call: Callable[[Any, int, Any], int], name: str, args: Any, taken: Callable[[abi.Any], Any] = take) -> Any:
    """Call native code with ``args``: ``call(array of Any, count, result)`` returns 0 or has set an error.

    ``taken`` makes a Python value of the result. Raises `NativeError` with what native code says went wrong.
    """
    count = len(args)
    pack = _packs.get(count)
    if pack is None:
        pack = _packs[count] = abi.Any * count
    packed = pack()
    keep: List[Any] = []
    for slot, value in zip(packed, args):
        fill(slot, value, keep)
    result = abi.Any()
    status = call(packed, count, ctypes.byref(result))
    if status:
        raise _raised(name, status)
    return taken(result)


class Function(Object):
    """A native function; called like any other.

    Arrays are passed without a copy, and native code may write into them. Raises `NativeError`.
    """

    __slots__ = ("__name__",)

    def __init__(self, handle: int, name: str = "") -> None:
        super().__init__(handle)
        self.__name__ = name

    @classmethod
    def of(cls, native: Object) -> Function:
        """The function that ``native`` is; the reference passes to it."""
        handle, native.handle = native.handle, 0
        return cls(handle)

    def __call__(self, *args: Any) -> Any:
        return invoke(self._call, self.__name__, args)

    def raw(self, *args: Any) -> Object:
        """Call; the object that it returns as it is, not opened. Raises `NativeError` for any other result."""
        value: Object = invoke(self._call, self.__name__, args, _as_object)
        return value

    def _call(self, packed: Any, count: int, result: Any) -> int:
        return int(library.api().TVMFFIFunctionCall(self.handle, packed, count, result))


def find_global(name: str) -> Optional[Function]:
    """The function that is registered as ``name`` in this process, None where there is none."""
    out = ctypes.c_void_p()
    library.api().TVMFFIFunctionGetGlobal(Strings(name).pointers[0], ctypes.byref(out))
    return Function(out.value, name) if out.value else None


def get_global(name: str) -> Function:
    """The function that is registered as ``name`` in this process. Raises `NativeError` where there is none."""
    function = find_global(name)
    if function is None:
        raise NativeError(f"no native function is registered as {name!r}", kind="AttributeError")
    return function


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a function of Python's as ``name``, in the place of any other. Raises `NativeError`."""
    native = wrap(function)
    if library.api().TVMFFIFunctionSetGlobal(Strings(name).pointers[0], native.handle, 1):
        raise _raised(name, -1)


def wrap(function: Callable[..., Any]) -> Function:
    """A function of Python's for native code. It is kept until native code and Python have both let go."""
    number = next(_numbers)
    _held[number] = function
    out = ctypes.c_void_p()
    if library.api().TVMFFIFunctionCreate(number, _called_back, _let_go, ctypes.byref(out)) or not out.value:
        _held.pop(number, None)
        raise NativeError("native code takes no function")
    return Function(out.value, getattr(function, "__name__", ""))


def held() -> int:
    """How many of Python's functions native code holds at the moment."""
    return len(_held)


def _as_object(slot: abi.Any) -> Object:
    if slot.type < abi.OBJECT:
        raise NativeError(f"native code returned a value of type {slot.type}, not an object", kind="TypeError")
    return Object(slot.pointer)


def _raised(name: str, status: int) -> NativeError:
    """The error that native code has set; a plain one where it has not."""
    if library.present():
        out = ctypes.c_void_p()
        library.api().TVMFFIErrorMoveFromRaised(ctypes.byref(out))
        if out.value:
            return open_error(Object(out.value))
    elif "rpcsys.ffi.standin" in sys.modules:
        said = sys.modules["rpcsys.ffi.standin"].raised()
        if said is not None:
            return said  # type: ignore[no-any-return]
    return NativeError(f"the native function {name} failed with status {status} and did not say why")


def symbol(function: Callable[..., Any]) -> Any:
    """A function of Python's as one that a library exports: ``ctypes`` code, to be kept for as long as it may be called."""

    def call(_self: Any, args: Any, count: int, result: Any) -> int:
        return _answer(function, args, count, result)

    return abi.SafeCall(call)


def _call_back(number: int, args: Any, count: int, result: Any) -> int:
    return _answer(_held[number], args, count, result)


def _answer(function: Callable[..., Any], args: Any, count: int, result: Any) -> int:
    try:
        give(result[0], function(*[look(args[index]) for index in range(count)]))
        return 0
    except BaseException as error:  # noqa: BLE001 - no exception can cross C; each becomes an error
        _set_raised(error)
        return -1


def _set_raised(error: BaseException) -> None:
    """Leave ``error`` where native code finds it after a status that is not 0."""
    import traceback

    here = error.__traceback__
    trace = "".join(traceback.format_tb(here.tb_next if here else None))
    if isinstance(error, NativeError):
        texts = Strings(error.kind, str(error), error.backtrace + trace)
    else:
        texts = Strings(type(error).__name__, str(error), trace)
    out = ctypes.c_void_p()
    api = library.api()
    if not api.TVMFFIErrorCreate(*texts.pointers, ctypes.byref(out)) and out.value:
        api.TVMFFIErrorSetRaised(out.value)
        api.TVMFFIObjectDecRef(out.value)


_called_back = abi.SafeCall(_call_back)
_let_go = abi.Deleter(lambda number: _held.pop(number, None) and None)
