"""Parses and checks a received head, and computes the sizes of the buffers that it names.

Every value must have one of the forms of `values`. This is checked before any memory is taken.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Tuple

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire import dtypes, encoding

#: Deeper than any real argument, and far from Python's own recursion limit.
MAX_DEPTH = 64
#: numpy allows 64 dimensions since 2.0.
MAX_RANK = 64
#: One sendmsg takes 1,024 buffers. A call with more arrays than this should send one array.
MAX_BUFFERS = 16384
#: The floats that are no JSON numbers.
FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
#: Bytes of memory that a parsed head may take, and as many again while its values are made. The classifier's rows of
#: `frames.MAX_HEAD` take 53 MB.
MAX_PARSED = 64 << 20
#: The values of heads up to this length are not counted: such a head stays far below `MAX_PARSED`.
_SHORT = 1024
#: Bytes of memory for each byte of a short head: an empty list has three bytes with its comma, and takes 72 in Python.
_PARSED = 24
#: Bytes of memory for each value of a longer head. The largest is an object with an empty name in it.
_VALUE = 104
#: Bytes of memory for each string of an array, beside its characters.
_STRING = 80
#: Forms that an `InOut` argument may have.
BOTH_WAYS = ("tensor", "strings", "ref")


class ParsedHead:
    """A parsed head and the sizes, in bytes, of the buffers it names. The head must not be changed.

    ``weight``: bytes that a frame with this head keeps; ``made``: further bytes that its values take (outputs, decoded
    arrays, strings). ``memo`` caches what the frame's handler derives from the head.
    """

    __slots__ = ("body_bytes", "head", "made", "memo", "sizes", "weight")

    def __init__(self, head: Dict[str, Any], sizes: Tuple[int, ...], parsed_bytes: int = 0, made: int = 0) -> None:
        self.head = head
        self.sizes = sizes
        self.memo: Any = None
        self.body_bytes = sum(sizes)
        self.weight = self.body_bytes + parsed_bytes
        self.made = made


class _Sizes(List[int]):
    """Sizes of buffers; ``made`` as in `ParsedHead`."""

    made = 0


def parsed_bytes(head: bytes) -> int:
    """An upper bound of the memory of a parsed head, in bytes. Raises `LimitExceeded` above `MAX_PARSED`."""
    if len(head) <= _SHORT:
        return len(head) * _PARSED
    values = head.count(b",") + head.count(b"[") + head.count(b"{")
    size = len(head) + values * _VALUE
    if size > MAX_PARSED:
        raise LimitExceeded(
            f"names and numbers that take {size} bytes of memory (at most {MAX_PARSED}); send long lists as arrays"
        )
    return size


def parse(head: bytes) -> ParsedHead:
    """Parse a head. Raises `ProtocolError` for anything but a JSON object in the forms of `values`."""
    if not head:
        return ParsedHead({}, ())
    parsed = parsed_bytes(head)
    try:
        value = json.loads(head.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise LimitExceeded("a head nested too deeply") from None
    except ValueError as error:  # JSON, UTF-8, and numbers of more digits than Python reads
        raise ProtocolError(f"a head that is not JSON: {error}"[:200]) from None
    if type(value) is not dict:
        raise ProtocolError("a head must be a JSON object")
    sizes = _Sizes()
    for item in value.values():
        _measure(item, sizes, 0)
    return ParsedHead(value, tuple(sizes), parsed, sizes.made)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _measure(value: Any, sizes: _Sizes, depth: int) -> None:
    """Check every form in ``value``, and append the sizes of the buffers that it names."""
    if depth > 3 * (MAX_DEPTH + 1):  # a level of dict takes three of JSON: the form, its list, the pair
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


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ProtocolError("a size must be a whole number from 0 to 2**63 - 1")
    return value


def array_bytes(dtype: Any, shape: Any) -> int:
    """Bytes of the array that a head describes. Raises `ProtocolError` for one that numpy cannot make."""
    width = dtypes.item_bytes(dtype)
    if type(shape) is not list or len(shape) > MAX_RANK:
        raise ProtocolError(f"a shape must be a list of at most {MAX_RANK} sizes")
    for extent in shape:
        _natural(extent)
    # numpy limits the product of the other extents even beside a 0, and counts 4 bytes for a string of width 0.
    _natural(max(width, 4) * dtypes.count(filter(None, shape)))
    return width * dtypes.count(shape)


def _measure_buffer(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    form, dtype, shape = value["@"], value.get("dtype"), value.get("shape")
    size = array_bytes(dtype, shape) if form == "tensor" else _natural(value.get("size"))
    if form == "tensor" and type(value.get("device", "")) is not str:
        raise ProtocolError("a device must be a string")
    if form == "strings":
        if array_bytes("int64", shape) > size:  # a length for each; in numpy, a reference
            raise ProtocolError("a buffer of strings begins with their lengths")
        sizes.made += dtypes.count(value["shape"]) * _STRING
    elif form == "encoded":
        sizes.made += array_bytes(dtype, shape)
        encoding.checked(value.get("how"), value["dtype"])
    if value.get("buffer") != len(sizes) or type(value["buffer"]) is not int:
        raise ProtocolError("buffers must be numbered in the order the head names them")
    if len(sizes) >= MAX_BUFFERS:
        raise LimitExceeded(f"more than {MAX_BUFFERS} buffers in one message")
    sizes.append(size)


def _measure_items(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    items = value.get("items")
    if type(items) is not list:
        raise ProtocolError("a {} needs a list of items".format(value["@"]))
    if value["@"] == "dict" and any(type(pair) is not list or len(pair) != 2 for pair in items):
        raise ProtocolError("the items of a dict are pairs")
    _measure(items, sizes, depth + 1)


def _measure_number(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    number = value.get("value")
    if value["@"] == "complex":
        if type(number) is not list or len(number) != 2 or not all(_is_real(part) for part in number):
            raise ProtocolError("a complex number is a pair of numbers")
    elif type(number) is not str or number not in FLOATS:
        raise ProtocolError("a float is written out only as nan, inf or -inf")


def _is_real(part: Any) -> bool:
    if type(part) is dict:
        return part.get("@") == "float" and type(part.get("value")) is str and part["value"] in FLOATS
    return type(part) is float


def _measure_ref(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    _natural(value.get("id"))
    for item in value.values():
        _measure(item, sizes, depth + 1)


def _measure_out(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    sizes.made += array_bytes(value.get("dtype"), value.get("shape"))


def _measure_inout(value: Dict[str, Any], sizes: _Sizes, depth: int) -> None:
    inner = value.get("value")
    if type(inner) is not dict or inner.get("@") not in BOTH_WAYS:
        raise ProtocolError("only an array can travel both ways")
    _measure(inner, sizes, depth + 1)


_MEASURES: Dict[str, Callable[[Dict[str, Any], _Sizes, int], None]] = {
    **dict.fromkeys(("tensor", "strings", "bytes", "text", "encoded"), _measure_buffer),
    **dict.fromkeys(("tuple", "dict"), _measure_items),
    **dict.fromkeys(("float", "complex"), _measure_number),
    "ref": _measure_ref,
    "out": _measure_out,
    "inout": _measure_inout,
}
