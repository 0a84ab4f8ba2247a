"""Python values <-> JSON heads with raw buffers behind them.

A head holds JSON's own values as they are. What JSON lacks is an object with the key ``"@"``::

    {"@": "tensor", "dtype": "float32", "shape": [1, 3], "buffer": 0}      ("device" if not cpu:0)
    {"@": "strings", "shape": [2], "sizes": [1, 3], "buffer": 0}           UTF-8, end to end
    {"@": "bytes", "size": 5, "buffer": 0}     {"@": "text", "size": 9000, "buffer": 0}
    {"@": "tuple", "items": […]}               {"@": "dict", "items": [[key, value], …]}
    {"@": "float", "value": "nan"}             {"@": "complex", "value": [0.0, 1.0]}
    {"@": "ref", "id": 7, …}                   an object that stays on the device
    {"@": "out", "dtype": …, "shape": […]}     an argument that only comes back
    {"@": "inout", "value": {"@": "tensor", …}}   an argument that travels both ways

Sequences and maps of an ONNX model are lists and dicts, an empty optional is null. Buffers stand in
the order in which the head names them. `Plan` is a parsed head with the sizes of its buffers; it is
never handed out, only built from, so it can be remembered and used again for an equal head.
"""

from __future__ import annotations

import array
import json
import math
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import dtypes

#: Deeper than any real argument, and far from Python's own recursion limit.
MAX_DEPTH = 64
#: numpy allows 64 dimensions since 2.0.
MAX_RANK = 64
#: One sendmsg takes 1,024; ten thousand arrays in one call is a list meant to be one array.
MAX_BUFFERS = 16384
#: A string above this leaves the head for the body, so that heads stay small enough to remember.
LONG_TEXT = 4096
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
#: What a subclass of these is sent as (an enumeration's int, a named tuple, an ordered dict).
_PLAIN: Tuple[Any, ...] = (bool, int, float, str, list, tuple, dict)
_BIG_ENDIAN = sys.byteorder == "big"

dump: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Tensor:
    """An array as the wire knows it: dtype name, shape and memory. Needs no numpy.

    ``data`` is a flat view of bytes, little-endian, C order; `view` gives it its type and shape.
    Arrays of strings have dtype ``"strings"``, and their ``data`` is a flat list of str.
    """

    __slots__ = ("data", "device", "dtype", "shape")

    def __init__(self, dtype: str, shape: Sequence[int], data: Any, device: str = "cpu:0") -> None:
        self.dtype = dtype
        self.shape = tuple(shape)
        self.data = data
        self.device = device

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}, shape={self.shape})"

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return len(self.data)

    def view(self) -> memoryview:
        """A memoryview of its type and shape, over the same memory; bytes where struct lacks the type."""
        code = dtypes.format_of_name(self.dtype)
        flat = memoryview(self.data)
        if code is None or 0 in self.shape:
            return flat
        cast: Any = flat.cast
        typed: memoryview = cast(code, list(self.shape)) if self.shape else cast(code)
        return typed

    def tolist(self) -> Any:
        """Its elements as nested lists of Python values."""
        if self.dtype == "strings":
            return list(self.data)
        if 0 in self.shape:
            return []
        view = self.view()
        return view.tolist() if self.shape else view[0]

    def numpy(self) -> Any:
        """A ``numpy.ndarray`` over the same memory (object dtype for strings).

        Raises `ValueNotSupported` where this machine's numpy has no such element type.
        """
        import numpy as np

        if self.dtype == "strings":
            return np.array(self.data, dtype=object).reshape(self.shape)
        dtype = dtypes.numpy_dtype(self.dtype)
        if dtype is None:
            raise ValueNotSupported(f"numpy here has no element type {self.dtype}; install ml_dtypes")
        if dtype.itemsize == 0:
            return np.zeros(self.shape, dtype)
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        result = self.numpy()
        return result if dtype is None else result.astype(dtype)


class Out:
    """An argument that is only written: memory is taken on the device, nothing is sent, it comes back."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype


class InOut:
    """An array argument that travels to the device and back."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Ref:
    """An object that stays on the device, by its number there; ``about`` is what the device says of it."""

    __slots__ = ("about", "id")

    def __init__(self, id: int, about: Optional[Dict[str, Any]] = None) -> None:
        self.id = id
        self.about = about or {}

    def __repr__(self) -> str:
        return f"Ref({self.id})"


# ------------------------------------------------------------------ to the wire


def encode(value: Any, buffers: List[Any], depth: int = 0) -> Any:
    """``value`` as JSON, with the memory it needs appended to ``buffers`` (nothing is copied that is C order).

    Raises `ValueNotSupported`, naming the type, for what has no form on the wire.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return (
            value
            if len(value) <= LONG_TEXT
            else _raw("text", value.encode("utf-8", "surrogatepass"), buffers)
        )
    if kind is float:
        return value if math.isfinite(value) else {"@": "float", "value": repr(value)}
    if depth >= MAX_DEPTH:
        raise ValueNotSupported(f"a value nested deeper than {MAX_DEPTH} levels; flatten it")
    if kind is list:
        return [encode(item, buffers, depth + 1) for item in value]
    if kind is tuple:
        return {"@": "tuple", "items": [encode(item, buffers, depth + 1) for item in value]}
    if kind is dict:
        return _encode_dict(value, buffers, depth)
    return _encode_object(value, buffers, depth)


def _encode_dict(value: Dict[Any, Any], buffers: List[Any], depth: int) -> Any:
    if "@" not in value and all(type(key) is str and len(key) <= LONG_TEXT for key in value):
        return {key: encode(item, buffers, depth + 1) for key, item in value.items()}
    pairs = [
        [encode(key, buffers, depth + 1), encode(item, buffers, depth + 1)] for key, item in value.items()
    ]
    return {"@": "dict", "items": pairs}


def _encode_object(value: Any, buffers: List[Any], depth: int) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _raw("bytes", value, buffers)
    if isinstance(value, Ref):
        return dict(value.about, **{"@": "ref", "id": value.id})
    if isinstance(value, InOut):
        return {"@": "inout", "value": encode(value.value, buffers, depth + 1)}
    if isinstance(value, Out):
        dtypes.item_bytes(value.dtype)
        return {"@": "out", "dtype": value.dtype, "shape": list(value.shape)}
    if isinstance(value, complex):
        return {"@": "complex", "value": [encode(value.real, buffers), encode(value.imag, buffers)]}
    tensor = as_tensor(value)
    if tensor is not None:
        return tensor_head(tensor, buffers)
    for plain in _PLAIN:
        if isinstance(value, plain):
            return encode(plain(value), buffers, depth)
    raise ValueNotSupported(
        f"a {type(value).__module__}.{type(value).__qualname__} has no form on the wire; send arrays, numbers, strings, bytes, lists, tuples or dicts"
    )


def tensor_head(tensor: Tensor, buffers: List[Any]) -> Dict[str, Any]:
    """The head of one array; its memory is appended to ``buffers``."""
    if tensor.dtype == "strings":
        encoded = [text.encode("utf-8", "surrogatepass") for text in tensor.data]
        head: Dict[str, Any] = {
            "@": "strings",
            "shape": list(tensor.shape),
            "sizes": [len(e) for e in encoded],
        }
        data: Any = b"".join(encoded)
    else:
        head = {"@": "tensor", "dtype": tensor.dtype, "shape": list(tensor.shape)}
        data = tensor.data
    if tensor.device != "cpu:0":
        head["device"] = tensor.device
    head["buffer"] = len(buffers)
    buffers.append(data)
    return head


def _raw(form: str, data: Any, buffers: List[Any]) -> Dict[str, Any]:
    buffers.append(data)
    return {"@": form, "size": len(data), "buffer": len(buffers) - 1}


def as_tensor(value: Any) -> Optional[Tensor]:
    """``value`` as a `Tensor` over the same memory where that is C order, else over a copy.

    Takes Tensor, numpy arrays and scalars, memoryview, array.array, and whatever has ``__array__``;
    None for anything else. Raises `ValueNotSupported` for element types without a name on the wire.
    """
    if isinstance(value, Tensor):
        return value
    numpy = sys.modules.get("numpy")
    if numpy is not None and not isinstance(value, (memoryview, array.array)):
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return _from_numpy(numpy, value)
        if hasattr(value, "__array__") and not isinstance(value, type):
            return _from_numpy(numpy, numpy.asarray(value))
        return None
    if isinstance(value, (memoryview, array.array)):
        return _from_buffer(memoryview(value))
    return None


def _from_numpy(numpy: Any, value: Any) -> Tensor:
    flat = numpy.asarray(value, order="C")
    kind = flat.dtype.kind
    if kind == "O" or kind == "T":
        items = flat.reshape(-1).tolist()
        if all(type(item) is str for item in items):
            return Tensor("strings", flat.shape, items)
    if not flat.dtype.isnative or _BIG_ENDIAN:
        flat = flat.astype(flat.dtype.newbyteorder("<"))
    name = dtypes.name_of_numpy(flat.dtype)
    # A flat view of bytes is what every socket takes; some element types refuse the buffer protocol.
    return Tensor(name, flat.shape, flat.reshape(-1).view("u1") if flat.size and flat.itemsize else b"")


def _from_buffer(view: memoryview) -> Tensor:
    name = dtypes.name_of_format(view.format, view.itemsize)
    shape = tuple(view.shape or ())
    if 0 in shape:
        return Tensor(name, shape, b"")
    return Tensor(name, shape, view.cast("B") if view.c_contiguous else memoryview(view.tobytes()))


# ------------------------------------------------------------------ from the wire


class Plan:
    """A parsed head and the sizes, in bytes, of the buffers it names. Nothing in it may be changed."""

    __slots__ = ("body_bytes", "head", "sizes")

    def __init__(self, head: Dict[str, Any], sizes: Tuple[int, ...]) -> None:
        self.head = head
        self.sizes = sizes
        self.body_bytes = sum(sizes)


def parse(head: bytes) -> Plan:
    """The plan of a head. Raises `ProtocolError` for anything but a JSON object of the forms above."""
    if not head:
        return Plan({}, ())
    try:
        value = json.loads(head.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise LimitExceeded("a head nested too deeply") from None
    except ValueError as error:  # JSON, UTF-8, and numbers of more digits than Python reads
        raise ProtocolError(f"a head that is not JSON: {error}"[:200]) from None
    if type(value) is not dict:
        raise ProtocolError("a head must be a JSON object")
    sizes: List[int] = []
    for item in value.values():
        _measure(item, sizes, 0)
    return Plan(value, tuple(sizes))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _measure(value: Any, sizes: List[int], depth: int) -> None:
    """Append the sizes of the buffers that ``value`` names, checking every form on the way."""
    if depth > 2 * MAX_DEPTH + 2:  # a tuple or a dict takes two levels of JSON
        raise LimitExceeded(f"a value nested deeper than {MAX_DEPTH} levels")
    if type(value) is list:
        for item in value:
            _measure(item, sizes, depth + 1)
    elif type(value) is dict:
        form = value.get("@")
        if form is None:
            for item in value.values():
                _measure(item, sizes, depth + 1)
        else:
            measure = _MEASURES.get(form) if type(form) is str else None
            if measure is None:
                raise ProtocolError(f"unknown form {form!r} of a value"[:200])
            measure(value, sizes, depth)


def _claim(value: Dict[str, Any], size: int, sizes: List[int]) -> None:
    if value.get("buffer") != len(sizes) or type(value["buffer"]) is not int:
        raise ProtocolError("buffers must be numbered in the order the head names them")
    if len(sizes) >= MAX_BUFFERS:
        raise LimitExceeded(f"more than {MAX_BUFFERS} buffers in one message")
    sizes.append(size)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ProtocolError("a size must be a whole number from 0 to 2**63 - 1")
    return value


def _shape(value: Any) -> Tuple[int, ...]:
    if type(value) is not list or len(value) > MAX_RANK:
        raise ProtocolError(f"a shape must be a list of at most {MAX_RANK} sizes")
    return tuple(_natural(extent) for extent in value)


def _measure_tensor(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    if type(value.get("device", "")) is not str:
        raise ProtocolError("a device must be a string")
    size = dtypes.item_bytes(value.get("dtype", "")) * dtypes.count(_shape(value.get("shape")))
    _claim(value, _natural(size), sizes)


def _measure_strings(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    lengths = value.get("sizes")
    if type(lengths) is not list or len(lengths) != dtypes.count(_shape(value.get("shape"))):
        raise ProtocolError("an array of strings needs one size for each element")
    _claim(value, _natural(sum(_natural(length) for length in lengths)), sizes)


def _measure_raw(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    _claim(value, _natural(value.get("size")), sizes)


def _measure_items(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    items = value.get("items")
    if type(items) is not list:
        raise ProtocolError("a {} needs a list of items".format(value["@"]))
    if value["@"] == "dict" and any(type(pair) is not list or len(pair) != 2 for pair in items):
        raise ProtocolError("the items of a dict are pairs")
    _measure(items, sizes, depth + 1)


def _measure_number(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    number = value.get("value")
    if value["@"] == "complex":
        if type(number) is not list or len(number) != 2 or not all(_is_real(part) for part in number):
            raise ProtocolError("a complex number is a pair of numbers")
    elif type(number) is not str or number not in _FLOATS:
        raise ProtocolError("a float is written out only as nan, inf or -inf")


def _is_real(part: Any) -> bool:
    if type(part) is dict:
        return part.get("@") == "float" and type(part.get("value")) is str and part["value"] in _FLOATS
    return type(part) is float


def _measure_ref(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    _natural(value.get("id"))
    for name, item in value.items():
        if type(item) is dict and "@" in item:
            raise ProtocolError(f"the field {name!r} of a ref must be plain JSON"[:200])


def _measure_out(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    _natural(dtypes.item_bytes(value.get("dtype", "")) * dtypes.count(_shape(value.get("shape"))))


def _measure_inout(value: Dict[str, Any], sizes: List[int], depth: int) -> None:
    inner = value.get("value")
    if type(inner) is not dict or inner.get("@") not in ("tensor", "strings", "ref"):
        raise ProtocolError("only an array can travel both ways")
    _measure(inner, sizes, depth + 1)


_MEASURES: Dict[str, Callable[[Dict[str, Any], List[int], int], None]] = {
    "tensor": _measure_tensor,
    "strings": _measure_strings,
    "bytes": _measure_raw,
    "text": _measure_raw,
    "tuple": _measure_items,
    "dict": _measure_items,
    "float": _measure_number,
    "complex": _measure_number,
    "ref": _measure_ref,
    "out": _measure_out,
    "inout": _measure_inout,
}


def build(value: Any, buffers: Sequence[Any]) -> Any:
    """The Python value of a part of a plan's head, over ``buffers``. Arrays come as `Tensor`.

    Always new lists and dicts: the plan stays as it is. Raises `ProtocolError` for strings that are
    not UTF-8 and for dict keys that cannot be keys.
    """
    if type(value) is list:
        return [build(item, buffers) for item in value]
    if type(value) is not dict:
        return value
    form = value.get("@")
    if form is None:
        return {key: build(item, buffers) for key, item in value.items()}
    if form == "tensor":
        return Tensor(value["dtype"], value["shape"], buffers[value["buffer"]], value.get("device", "cpu:0"))
    return _BUILDERS[form](value, buffers)


def _text(data: Any) -> str:
    try:
        return str(bytes(data), "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise ProtocolError("a string that is not UTF-8") from None


def _build_strings(value: Dict[str, Any], buffers: Sequence[Any]) -> Tensor:
    data, start, items = buffers[value["buffer"]], 0, []
    for length in value["sizes"]:
        items.append(_text(data[start : start + length]))
        start += length
    return Tensor("strings", value["shape"], items, value.get("device", "cpu:0"))


def _build_dict(value: Dict[str, Any], buffers: Sequence[Any]) -> Dict[Any, Any]:
    try:
        return {build(key, buffers): build(item, buffers) for key, item in value["items"]}
    except TypeError:
        raise ProtocolError("a key of a dict that cannot be a key") from None


def _build_ref(value: Dict[str, Any], buffers: Sequence[Any]) -> Ref:
    return Ref(value["id"], {key: item for key, item in value.items() if key not in ("@", "id")})


_BUILDERS: Dict[str, Callable[[Dict[str, Any], Sequence[Any]], Any]] = {
    "strings": _build_strings,
    "bytes": lambda value, buffers: bytes(buffers[value["buffer"]]),
    "text": lambda value, buffers: _text(buffers[value["buffer"]]),
    "tuple": lambda value, buffers: tuple(build(item, buffers) for item in value["items"]),
    "dict": _build_dict,
    "float": lambda value, buffers: _FLOATS[value["value"]],
    "complex": lambda value, buffers: complex(*(build(part, buffers) for part in value["value"])),
    "ref": _build_ref,
    "out": lambda value, buffers: Out(value["shape"], value["dtype"]),
    "inout": lambda value, buffers: InOut(build(value["value"], buffers)),
}
