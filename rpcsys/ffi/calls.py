"""Calls in both directions: native functions from Python, Python functions from native code; values and errors.

Limitation: an exception that passes through native code loses its Python class; its name stays, as the kind.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, library, tensors
from rpcsys.ffi.abi import DType
from rpcsys.ffi.library import Object, strings
from rpcsys.ffi.memory import Memory

Keep = List[Any]

_argument_arrays: Dict[int, Any] = {}
_numbers = itertools.count(1)
#: Python functions that native code holds, by the number that identifies them there.
_callbacks: Dict[int, Callable[..., Any]] = {}
#: ``value``: the error that a library has set in this thread, if there is no libtvm_ffi (`rpcsys.ffi.module`).
last_error = threading.local()
_KEY, _VALUE, _NEXT = 0, 1, 2  # the commands of a map's iterator


class Device(NamedTuple):
    """A device: DLPack's number of its kind (1 is the CPU), and its own number."""

    type: int
    id: int = 0


def invoke(
    call: Callable[[Any, int, Any], int], name: str, args: Any, convert: Optional[Callable[[abi.Any], Any]] = None
) -> Any:
    """Call native code with ``args``: ``call(array of Any, count, result)`` returns 0 or has set an error.

    ``convert`` turns the result into a Python value, by default `from_owned`. Raises `NativeError`.
    """
    count = len(args)
    array = _argument_arrays.get(count)
    if array is None:
        array = _argument_arrays[count] = abi.Any * count
    packed = array()
    keep: Keep = []
    for slot, value in zip(packed, args):
        to_view(slot, value, keep)
    result = abi.Any()
    status = call(packed, count, ctypes.byref(result))
    if status:
        raise _raised(name, status)
    return from_owned(result) if convert is None else convert(result)


def timed(code: Callable[..., int], name: str, args: Any, clock: Callable[[], float]) -> Callable[[int], float]:
    """A function that calls ``code(None, array of Any, count, result)`` so many times, and returns the seconds.

    The arguments are converted once. Results are dropped unread: it is for functions that return nothing. Raises
    `NativeError`, as the returned function does.
    """
    count = len(args)
    keep: Keep = []
    packed, result = (abi.Any * count)(), abi.Any()
    for slot, value in zip(packed, args):
        to_view(slot, value, keep)
    place = ctypes.byref(result)

    def run(number: int) -> float:
        began = clock()
        for _ in range(number):
            status = code(None, packed, count, place)
            if status:
                raise _raised(name, status)
        return clock() - began

    run.keep = keep  # type: ignore[attr-defined]
    return run


class Function(Object):
    """A native function. It takes arrays without a copy, and may write into them. Raises `NativeError`."""

    __slots__ = ("__name__",)

    def __init__(self, handle: int, name: str = "") -> None:
        super().__init__(handle)
        self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        return invoke(self._call, self.__name__, args)

    def raw(self, *args: Any) -> Object:
        """Call it, and return the resulting object without conversion. Raises `NativeError` for any other result."""
        value: Object = invoke(self._call, self.__name__, args, _as_object)
        return value

    def _call(self, packed: Any, count: int, result: Any) -> int:
        return int(library.api().TVMFFIFunctionCall(self.handle, packed, count, result))


def find_global(name: str) -> Optional[Function]:
    """The function that is registered as ``name`` in this process; None if there is none."""
    out = ctypes.c_void_p()
    library.api().TVMFFIFunctionGetGlobal(*strings(name), ctypes.byref(out))
    return Function(out.value, name) if out.value else None


def get_global(name: str) -> Function:
    """The function that is registered as ``name`` in this process. Raises `NativeError` if there is none."""
    function = find_global(name)
    if function is None:
        raise NativeError(f"no native function is registered as {name!r}", kind="AttributeError")
    return function


def register(name: str, function: Callable[..., Any]) -> None:
    """Register a Python function as ``name``, replacing any other. Raises `NativeError`."""
    native = wrap(function)
    if library.api().TVMFFIFunctionSetGlobal(*strings(name), native.handle, 1):
        raise _raised(name, -1)


def wrap(function: Callable[..., Any], code: Any = None) -> Function:
    """Wrap a Python function for native code. It is kept until both native code and Python have released it."""
    number = next(_numbers)
    _callbacks[number] = function
    out = ctypes.c_void_p()
    code = code or _call_back
    if library.api().TVMFFIFunctionCreate(number, code, _release_callback, ctypes.byref(out)) or not out.value:
        _callbacks.pop(number, None)
        raise NativeError("native code takes no function")
    return Function(out.value, getattr(function, "__name__", ""))


def watcher(function: Callable[[Any, int], None]) -> Function:
    """`wrap` a function that gets the arguments as native code has them, an array of Any and a count: it is quick."""
    return wrap(function, _watch)


def symbol(function: Callable[..., Any]) -> Any:
    """Wrap a Python function like one that a library exports: ``ctypes`` code; keep it as long as it may be called."""
    return abi.SafeCall(lambda _self, args, count, result: _answer(function, args, count, result))


def _as_object(slot: abi.Any) -> Object:
    if slot.type < abi.OBJECT:
        raise NativeError(f"native code returned a value of type {slot.type}, not an object", kind="TypeError")
    return Object(slot.pointer)


def _raised(name: str, status: int) -> NativeError:
    """The error that native code has set; a generic one if it has set none."""
    error: Optional[NativeError] = None
    if library.present():
        out = ctypes.c_void_p()
        library.api().TVMFFIErrorMoveFromRaised(ctypes.byref(out))
        error = _error(Object(out.value)) if out.value else None
    else:
        error, last_error.value = getattr(last_error, "value", None), None
    return error or NativeError(f"the native function {name} failed with status {status} and did not say why")


def _answer(function: Callable[..., Any], args: Any, count: int, result: Any) -> int:
    try:
        to_owned(result[0], function(*[from_view(args[index]) for index in range(count)]))
        return 0
    except BaseException as error:  # noqa: BLE001 - an exception cannot cross C; each becomes an error
        _set_raised(error)
        return -1


def _watched(function: Callable[[Any, int], None], args: Any, count: int) -> int:
    try:
        function(args, count)
        return 0
    except BaseException as error:  # noqa: BLE001 - an exception cannot cross C; each becomes an error
        _set_raised(error)
        return -1


def _set_raised(error: BaseException) -> None:
    """Set ``error``, so that native code finds it after a status other than 0."""
    import traceback

    here = error.__traceback__
    trace = "".join(traceback.format_tb(here.tb_next if here else None))
    kind, before = (error.kind, error.backtrace) if isinstance(error, NativeError) else (type(error).__name__, "")
    out = ctypes.c_void_p()
    api = library.api()
    if not api.TVMFFIErrorCreate(*strings(kind, str(error), before + trace), ctypes.byref(out)) and out.value:
        api.TVMFFIErrorSetRaised(out.value)
        api.TVMFFIObjectDecRef(out.value)


_call_back = abi.SafeCall(lambda number, args, count, result: _answer(_callbacks[number], args, count, result))
_watch = abi.SafeCall(lambda number, args, count, result: _watched(_callbacks[number], args, count))
_release_callback = abi.Deleter(lambda number: _callbacks.pop(number, None) and None)
known_global = functools.lru_cache(maxsize=None)(get_global)  # looks a function of TVM's libraries up once


# ------------------------------------------------------------------ values to native code


def to_view(slot: abi.Any, value: Any, keep: Keep) -> None:
    """Write ``value`` into ``slot`` as an argument; add all that must live until the call returns to ``keep``.

    None, bool, int, float, str, bytes, `DType`, `Device` and ``ctypes.c_void_p`` (a pointer) keep their types. An
    array (`rpcsys.ffi.memory`) becomes a Tensor, or a DLTensor without libtvm_ffi; tuple, list and dict become Array,
    List and Map; a callable becomes a Function. Raises `NativeError` (kind TypeError) for any other value.
    """
    writer = _WRITERS.get(type(value), _write_other)
    writer(slot, value, keep)


def to_owned(result: abi.Any, value: Any) -> None:
    """Write ``value`` into ``result`` as a function's result, which the caller then owns. Raises `NativeError`."""
    slot = abi.Any()
    keep: Keep = []
    to_view(slot, value, keep)
    if library.api().TVMFFIAnyViewToOwnedAny(ctypes.byref(slot), ctypes.byref(result)):
        raise NativeError(f"a {type(value).__name__} cannot be returned to native code")


def _write_none(slot: abi.Any, value: None, keep: Keep) -> None:
    slot.type = abi.NONE


def _write_bool(slot: abi.Any, value: bool, keep: Keep) -> None:
    slot.type, slot.int = abi.BOOL, value


def _write_int(slot: abi.Any, value: int, keep: Keep) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise NativeError(f"{value} does not fit into 64 bits", kind="OverflowError")
    slot.type, slot.int = abi.INT, value


def _write_float(slot: abi.Any, value: float, keep: Keep) -> None:
    slot.type, slot.float = abi.FLOAT, value


def _write_str(slot: abi.Any, value: str, keep: Keep) -> None:
    data = value.encode("utf-8", "surrogateescape")
    if len(data) <= abi.SMALL:
        _write_small(slot, abi.SMALL_STR, data)
    elif b"\0" in data:  # a RawStr would end at this byte
        owned = abi.Any()
        if library.api().TVMFFIStringFromByteArray(*strings(value), ctypes.byref(owned)):
            raise NativeError("native code takes no such string")
        _write_object(slot, Object(owned.pointer), keep)
    else:
        array = abi.borrowed(data)
        keep.append(array)
        slot.type, slot.pointer = abi.RAW_STR, array.data


def _write_bytes(slot: abi.Any, value: Any, keep: Keep) -> None:
    data = bytes(value)
    if len(data) <= abi.SMALL:
        _write_small(slot, abi.SMALL_BYTES, data)
        return
    array = abi.borrowed(data)
    keep.append(array)
    slot.type, slot.pointer = abi.BYTE_ARRAY, ctypes.addressof(array)


def _write_small(slot: abi.Any, kind: int, data: bytes) -> None:
    slot.type, slot.size = kind, len(data)
    slot.int = int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


def _write_dtype(slot: abi.Any, value: DType, keep: Keep) -> None:
    slot.type, slot.dtype = abi.DTYPE, abi.dtype_of(value)


def _write_device(slot: abi.Any, value: Device, keep: Keep) -> None:
    slot.type, slot.device = abi.DEVICE, abi.DLDevice(*value)


def _write_pointer(slot: abi.Any, value: ctypes.c_void_p, keep: Keep) -> None:
    slot.type, slot.pointer = abi.POINTER, value.value


def _write_object(slot: abi.Any, value: Object, keep: Keep) -> None:
    keep.append(value)
    slot.type, slot.pointer = value.type_index, value.handle


def _write_array(slot: abi.Any, value: Memory, keep: Keep) -> None:
    slot.type, slot.pointer = tensors.as_argument(value, keep) or (abi.NONE, None)


def _write_container(slot: abi.Any, value: Any, keep: Keep) -> None:
    if isinstance(value, dict):
        made = known_global("ffi.Map").raw(*itertools.chain.from_iterable(value.items()))
    else:
        made = known_global("ffi.List" if isinstance(value, list) else "ffi.Array").raw(*value)
    _write_object(slot, made, keep)


def _write_other(slot: abi.Any, value: Any, keep: Keep) -> None:
    if isinstance(value, Object):
        return _write_object(slot, value, keep)
    if isinstance(value, tensors.NativeTensor):
        return _write_object(slot, value.object, keep)
    if isinstance(value, tensors.TensorView):
        keep.append(value)
        slot.type, slot.pointer = abi.DLTENSOR, value.address
        return None
    if hasattr(value, "__array_interface__") and not hasattr(value, "__setitem__"):
        return to_view(slot, value.item(), keep)  # numpy's scalars have the interface of arrays, but are read-only
    given = tensors.as_argument(value, keep)
    if given is not None:
        slot.type, slot.pointer = given
        return None
    for plain in (bool, int, float, str, tuple, list, dict):
        if isinstance(value, plain):
            return _WRITERS[plain](slot, value, keep)
    if callable(value):
        return _write_object(slot, wrap(value), keep)
    raise NativeError(f"a {type(value).__name__} has no form in native code", kind="TypeError")


_WRITERS: Dict[type, Callable[[abi.Any, Any, Keep], None]] = {
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
    DType: _write_dtype,
    Device: _write_device,
    ctypes.c_void_p: _write_pointer,
    Memory: _write_array,
    tuple: _write_container,
    list: _write_container,
    dict: _write_container,
}


# ------------------------------------------------------------------ values from native code


def from_owned(slot: abi.Any) -> Any:
    """The Python value of an Any that this process owns: a result. The value takes over its reference.

    It is the inverse of `to_view`; a Shape becomes a tuple, an object of another type an `Object`.
    """
    reader = _PLAIN_READERS.get(slot.type)
    if reader is not None:
        return reader(slot)
    if slot.type < abi.OBJECT:
        raise NativeError(f"native code returned a value of unknown type {slot.type}", kind="TypeError")
    return _OBJECT_READERS.get(slot.type, Object)(slot.pointer)


def from_view(slot: abi.Any) -> Any:
    """The Python value of an Any that the caller owns: an argument of a callback."""
    if slot.type in _PLAIN_READERS:
        return _PLAIN_READERS[slot.type](slot)
    owned = abi.Any()
    if library.api().TVMFFIAnyViewToOwnedAny(ctypes.byref(slot), ctypes.byref(owned)):
        raise NativeError(f"an argument of type {slot.type} cannot be taken over")
    return from_owned(owned)


def _small_bytes(slot: abi.Any) -> bytes:
    return bytes(slot.bytes)[: min(slot.size, abi.SMALL)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


_PLAIN_READERS: Dict[int, Callable[[abi.Any], Any]] = {
    abi.NONE: lambda slot: None,
    abi.INT: lambda slot: slot.int,
    abi.BOOL: lambda slot: bool(slot.int),
    abi.FLOAT: lambda slot: slot.float,
    abi.POINTER: lambda slot: ctypes.c_void_p(slot.pointer),
    abi.DTYPE: lambda slot: DType(abi.dtype_name(slot.dtype)),
    abi.DEVICE: lambda slot: Device(slot.device.type, slot.device.id),
    abi.DLTENSOR: lambda slot: tensors.TensorView(abi.DLTensor.from_address(slot.pointer)),
    abi.RAW_STR: lambda slot: _text(ctypes.string_at(slot.pointer)),
    abi.BYTE_ARRAY: lambda slot: abi.bytes_at(abi.ByteArray.from_address(slot.pointer)),
    abi.SMALL_STR: lambda slot: _text(_small_bytes(slot)),
    abi.SMALL_BYTES: _small_bytes,
}


def _object_bytes(native: Object) -> bytes:
    return abi.bytes_at(abi.cell(native.handle, abi.ByteArray))


def _shape(native: Object) -> Tuple[int, ...]:
    shape = abi.cell(native.handle, abi.ShapeCell)
    return tuple(shape.data[: shape.size])


def _error(native: Object) -> NativeError:
    error = abi.cell(native.handle, abi.ErrorCell)
    kind, message, backtrace = (
        abi.bytes_at(part).decode("utf-8", "replace") for part in (error.kind, error.message, error.backtrace)
    )
    return NativeError(message, kind=kind, backtrace=backtrace)


def _items(name: str, native: Object) -> Iterator[Any]:
    item = known_global(name + "GetItem")
    return (item(native, index) for index in range(known_global(name + "Size")(native)))


def _pairs(name: str, native: Object) -> Iterator[Tuple[Any, Any]]:
    if known_global(name + "Size")(native):
        iterator = known_global(name + "ForwardIterFunctor")(native)
        yield iterator(_KEY), iterator(_VALUE)
        while iterator(_NEXT):
            yield iterator(_KEY), iterator(_VALUE)


_OBJECT_READERS: Dict[int, Callable[[int], Any]] = {
    abi.STR: lambda handle: _text(_object_bytes(Object(handle))),
    abi.BYTES: lambda handle: _object_bytes(Object(handle)),
    abi.ERROR: lambda handle: _error(Object(handle)),
    abi.FUNCTION: Function,
    abi.SHAPE: lambda handle: _shape(Object(handle)),
    abi.TENSOR: lambda handle: tensors.NativeTensor(Object(handle)),
    abi.ARRAY: lambda handle: tuple(_items("ffi.Array", Object(handle))),
    abi.LIST: lambda handle: list(_items("ffi.List", Object(handle))),
    abi.MAP: lambda handle: dict(_pairs("ffi.Map", Object(handle))),
    abi.DICT: lambda handle: dict(_pairs("ffi.Dict", Object(handle))),
}
