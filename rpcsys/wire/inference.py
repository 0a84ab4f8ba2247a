"""The Open Inference Protocol's types, and what a client says and hears in JSON.

A tensor's data are bytes: its elements, little-endian, in C order; an element of BYTES is its length (u32) and itself.
What a server reads and answers is in `rpcsys.wire.inference_requests`, and there its data has more forms.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from rpcsys.errors import RpcsysError
from rpcsys.wire.dtypes import ITEM_BYTES, count, format_of_name

#: The protocol's element types -> rpcsys's.
DATATYPES: Dict[str, str] = {
    **{f"{word}{bits}": f"{word.lower()}{bits}" for word in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BOOL": "bool",
    "BF16": "bfloat16",
    "BYTES": "strings",
}
#: rpcsys's element types -> the protocol's.
NAMES: Dict[str, str] = {name: datatype for datatype, name in DATATYPES.items()}
#: Bytes of one element; BYTES, whose elements differ, is missing.
WIDTHS: Dict[str, int] = {datatype: ITEM_BYTES[name] for datatype, name in DATATYPES.items() if name in ITEM_BYTES}


class InferenceError(RpcsysError):
    """A request that is not answered with outputs, or an answer that is none. ``status``: HTTP's; 400 by default."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class InferTensor(NamedTuple):
    """An input of a request or an output of an answer. ``datatype``: the protocol's; ``data``: see the module."""

    name: str
    datatype: str
    shape: Tuple[int, ...]
    data: Any


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """The data of a tensor of BYTES with these elements."""
    return b"".join(piece for element in elements for piece in (struct.pack("<I", len(element)), element))


def unpack_bytes(data: Any, what: str) -> List[bytes]:
    """The elements of a tensor of BYTES. Raises `InferenceError` about ``what`` if the last one is cut."""
    elements, at, end = [], 0, len(data)
    while at < end:
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        elements.append(bytes(data[start:at]))
    if at > end:
        raise InferenceError(f"{what} ends in the middle of an element")
    return elements


def to_values(datatype: str, data: Any, what: str) -> List[Any]:
    """The JSON values of a tensor's data, flat.

    Raises `InferenceError` about ``what`` for an element of BYTES that is not UTF-8. NaN and infinities are floats.
    """
    if datatype == "BYTES":
        try:
            return [element.decode() for element in unpack_bytes(data, what)]
        except UnicodeDecodeError:
            raise InferenceError(f"{what} has an element that is not UTF-8: it has no form in JSON") from None
    if datatype == "BF16":  # the upper half of a FP32
        return to_values("FP32", b"".join(b"\0\0%b" % data[at : at + 2] for at in range(0, len(data), 2)), what)
    return list(struct.unpack(f"<{len(data) // WIDTHS[datatype]}{format_of_name(DATATYPES[datatype])}", data))


def from_values(datatype: str, values: Any, what: str) -> bytes:
    """The data of a tensor with these JSON values, which may be nested. The reverse of `to_values`.

    Raises `InferenceError` about ``what`` for values that are none of ``datatype``.
    """
    try:
        flat = list(list.__iter__(values))
        while flat and type(flat[0]) is list:
            flat = list(itertools.chain.from_iterable(map(list.__iter__, flat)))
        if datatype == "BYTES":
            return pack_bytes([element.encode() for element in flat])
        if datatype == "BF16":
            wide = from_values("FP32", flat, what)
            return b"".join(wide[at : at + 2] for at in range(2, len(wide), 4))
        if datatype[0] in "IU":  # a whole number may be written as 1.0
            flat = [int(value) if type(value) is float and value.is_integer() else value for value in flat]
        if datatype == "BOOL" and not {*flat} <= {0, 1}:
            raise TypeError
        return struct.pack(f"<{len(flat)}{format_of_name(DATATYPES[datatype])}", *flat)
    except (AttributeError, OverflowError, TypeError, UnicodeEncodeError, struct.error):
        raise InferenceError(f"the data of {what} is no list of {datatype}") from None


def request_to_json(
    inputs: Sequence[InferTensor], outputs: Sequence[str], binary: bool, parameters: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """The JSON object of a request. ``outputs``: the names of those wanted; none for all.

    ``binary``: the inputs' data follow behind the JSON, in their order, and the outputs are wanted so; else they are in
    it. ``parameters``: of the request, ``timeout`` in microseconds and the like. Raises `InferenceError`: see
    `to_values`.
    """
    described = []
    for name, datatype, shape, data in inputs:
        given = {"parameters": {"binary_data_size": len(data)}} if binary else {"data": to_values(datatype, data, name)}
        described.append({"name": name, "datatype": datatype, "shape": shape, **given})
    value = {"inputs": described, "parameters": {"binary_data_output": binary, **(parameters or {})}}
    if outputs:
        value["outputs"] = [{"name": name, "parameters": {"binary_data": binary}} for name in outputs]
    return value


def response_from_json(value: Any, binary: Any = b"") -> List[InferTensor]:
    """The outputs of an answer in a JSON object and the ``binary`` part behind it; their data are slices of this.

    Raises `InferenceError` for one that is none.
    """
    outputs = []
    at = 0
    try:
        for output in value["outputs"]:
            name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
            size = (output.get("parameters") or {}).get("binary_data_size")
            data = from_values(datatype, output["data"], name) if size is None else binary[at : at + size]
            at += size or 0
            if any(type(extent) is not int or extent < 0 for extent in (*shape, size or 0)):
                raise ValueError
            if datatype != "BYTES" and len(data) != count(shape) * WIDTHS[datatype]:
                raise ValueError
            outputs.append(InferTensor(name, datatype, shape, data))
        if at != len(binary):
            raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InferenceError("an answer whose outputs, or their sizes, are none") from None
    return outputs
