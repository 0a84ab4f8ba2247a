"""Python values <-> JSON heads with raw buffers behind them, in the forms of docs/wire.md ("Values").

Buffers stand in the order in which the head names them. Values are built anew from a `ParsedHead`, so that it can be
cached and used again for an equal head.
"""

from __future__ import annotations

import json
import math
import operator
import struct
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence

from rpcsys.errors import ProtocolError, ValueNotSupported
from rpcsys.wire import dtypes, encoding
from rpcsys.wire.head import BOTH_WAYS, FLOATS, MAX_DEPTH, array_bytes
from rpcsys.wire.tensor import Tensor, as_tensor

#: A string of more characters goes into the body, so that heads stay small enough to cache.
LONG_TEXT = 4096
#: Converts a value of a subclass to its base class (an enumeration's int, a named tuple, an ordered dict). ``str()`` of
#: a string enumeration would be its name.
_PLAIN: Dict[Any, Callable[[Any], Any]] = {**{kind: kind for kind in (int, float, list, tuple, dict)}, str: str.__str__}

dump: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Out:
    """An array argument that is only written: the device takes the memory, and sends the array back."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        self.shape = tuple(operator.index(extent) for extent in shape)
        self.dtype = dtype


@dataclass(eq=False, repr=False)
class InOut:
    """An array argument that is sent to the device and back."""

    value: Any


class Ref:
    """An object that stays on the device, by its id there; ``about`` is the device's description."""

    __slots__ = ("about", "id")

    def __init__(self, id: int, about: Optional[Dict[str, Any]] = None) -> None:
        self.id = id
        self.about = about or {}

    def __repr__(self) -> str:
        return f"Ref({self.id})"


# ------------------------------------------------------------------ to the wire


def encode(value: Any, buffers: List[Any], depth: int = 0) -> Any:
    """``value`` as JSON. Appends the memory of its arrays to ``buffers``, without a copy of those in C order.

    Raises `ValueNotSupported`, with the type's name, for a value without a form on the wire.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return value if _fits(value) else _raw("text", value.encode("utf-8", "surrogatepass"), buffers)
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


def _fits(text: str) -> bool:
    """Whether a string may stay in the head. Lone surrogates may not: two could come back as one character."""
    if len(text) > LONG_TEXT:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_dict(value: Dict[Any, Any], buffers: List[Any], depth: int) -> Any:
    if "@" not in value and all(type(key) is str and _fits(key) for key in value):
        return {key: encode(item, buffers, depth + 1) for key, item in value.items()}
    pairs = [[encode(key, buffers, depth + 1), encode(item, buffers, depth + 1)] for key, item in value.items()]
    return {"@": "dict", "items": pairs}


def _encode_object(value: Any, buffers: List[Any], depth: int) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _raw("bytes", value, buffers)
    if isinstance(value, Ref):
        about = {name: encode(item, buffers, depth + 1) for name, item in value.about.items()}
        return dict(about, **{"@": "ref", "id": value.id})
    if isinstance(value, InOut):
        inner = encode(value.value, buffers, depth + 1)
        if type(inner) is not dict or inner.get("@") not in BOTH_WAYS:
            raise ValueNotSupported(f"only an array can travel both ways, and a {type(value.value).__name__} is none")
        return {"@": "inout", "value": inner}
    if isinstance(value, encoding.Encoded):
        about = {"how": value.how, "dtype": value.dtype, "shape": list(value.shape)}
        return {**_raw("encoded", value.data, buffers), **about}
    if isinstance(value, Out):
        _described_bytes(value)
        return {"@": "out", "dtype": value.dtype, "shape": list(value.shape)}
    tensor = as_tensor(value)
    if tensor is not None:
        return tensor_head(tensor, buffers)
    if isinstance(value, complex):
        return {"@": "complex", "value": [encode(value.real, buffers), encode(value.imag, buffers)]}
    for base, plain in _PLAIN.items():
        if isinstance(value, base):
            return encode(plain(value), buffers, depth)
    raise ValueNotSupported(
        f"a {type(value).__module__}.{type(value).__qualname__} has no form on the wire; "
        "send arrays, numbers, strings, bytes, lists, tuples or dicts"
    )


def tensor_head(tensor: Tensor, buffers: List[Any]) -> Dict[str, Any]:
    """The head of one array; its memory is appended to ``buffers``."""
    if tensor.dtype == "strings":
        encoded = [text.encode("utf-8", "surrogatepass") for text in tensor.data]
        data: Any = struct.pack(f"<{len(encoded)}Q", *map(len, encoded)) + b"".join(encoded)
        head: Dict[str, Any] = {"@": "strings", "shape": list(tensor.shape), "size": len(data)}
        if len(encoded) != dtypes.count(tensor.shape):
            raise ValueNotSupported(f"{tensor!r} holds {len(encoded)} strings")
    else:
        if len(tensor.data) != _described_bytes(tensor):
            raise ValueNotSupported(f"{tensor!r} holds {len(tensor.data)} bytes; its data must be flat bytes")
        head = {"@": "tensor", "dtype": tensor.dtype, "shape": list(tensor.shape)}
        data = tensor.data
    if tensor.device != "cpu:0":
        head["device"] = tensor.device
    head["buffer"] = len(buffers)
    buffers.append(data)
    return head


def _described_bytes(array: Any) -> int:
    """Bytes of an array of a user's dtype and shape. Raises `ValueNotSupported` for invalid ones."""
    try:
        return array_bytes(array.dtype, list(array.shape))
    except ProtocolError as error:
        raise ValueNotSupported(str(error)) from None


def _raw(form: str, data: Any, buffers: List[Any]) -> Dict[str, Any]:
    buffers.append(data)
    return {"@": form, "size": len(data), "buffer": len(buffers) - 1}


# ------------------------------------------------------------------ from the wire


def build(value: Any, buffers: Sequence[Any]) -> Any:
    """The Python value of a part of a parsed head, over ``buffers``. Arrays come as `Tensor`.

    Lists and dicts are new: the parsed head stays unchanged. Raises `ProtocolError` for strings that are not UTF-8,
    dict keys that cannot be hashed, and invalid encoded arrays; `ValueNotSupported` where decoding lacks a package.
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
    data, count, items = buffers[value["buffer"]], dtypes.count(value["shape"]), []
    start = 8 * count
    for length in struct.unpack_from(f"<{count}Q", data):
        if length > len(data) - start:
            raise ProtocolError("strings that are longer than the buffer they are in")
        items.append(_text(data[start : start + length]))
        start += length
    if start != len(data):
        raise ProtocolError("strings that are shorter than the buffer they are in")
    return Tensor("strings", value["shape"], items, value.get("device", "cpu:0"))


def _build_dict(value: Dict[str, Any], buffers: Sequence[Any]) -> Dict[Any, Any]:
    try:
        return {build(key, buffers): build(item, buffers) for key, item in value["items"]}
    except TypeError:
        raise ProtocolError("a key of a dict that cannot be a key") from None


def _build_ref(value: Dict[str, Any], buffers: Sequence[Any]) -> Ref:
    return Ref(value["id"], {key: build(item, buffers) for key, item in value.items() if key not in ("@", "id")})


_BUILDERS: Dict[str, Callable[[Dict[str, Any], Sequence[Any]], Any]] = {
    "strings": _build_strings,
    "bytes": lambda value, buffers: bytes(buffers[value["buffer"]]),
    "text": lambda value, buffers: _text(buffers[value["buffer"]]),
    "tuple": lambda value, buffers: tuple(build(item, buffers) for item in value["items"]),
    "dict": _build_dict,
    "float": lambda value, buffers: FLOATS[value["value"]],
    "complex": lambda value, buffers: complex(*(build(part, buffers) for part in value["value"])),
    "ref": _build_ref,
    "out": lambda value, buffers: Out(value["shape"], value["dtype"]),
    "inout": lambda value, buffers: InOut(build(value["value"], buffers)),
    "encoded": lambda value, buffers: encoding.decode(
        encoding.Encoded(value["how"], value["dtype"], value["shape"], buffers[value["buffer"]])
    ),
}
