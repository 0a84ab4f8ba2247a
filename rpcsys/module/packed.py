"""The form in which most kinds are stored: a JSON object and buffers, aligned so that they can be mapped.

``u64 json bytes | u64 start | JSON {"about": …, "sizes": [n, …]} | zeros | buffer 0 | zeros | buffer 1 …``
The buffers begin at ``start``, on a page of the file. Behind it large buffers begin on a page, small ones on 64 bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from rpcsys.module.layout import Buffer, FormatError

#: The unit by which files are mapped. On machines with larger pages an alignment of 64 bytes still holds.
PAGE = 4096
ALIGNMENT = 64  # the alignment of an array that vectorised code may require
_LARGE = 1 << 16  # buffers of this size or more begin on a page
_MAX_JSON = 1 << 30  # bytes of JSON: a network of 100,000 weights needs less than a hundredth of it
_HEAD = struct.Struct("<QQ")


def pack(about: Dict[str, Any], buffers: Sequence[Buffer], offset: int) -> List[Buffer]:
    """The pieces to write at ``offset`` of a blob that begins on a page. The buffers are not copied."""
    views = [memoryview(buffer).cast("B") if len(buffer) else b"" for buffer in buffers]
    sizes = [len(view) for view in views]
    text = json.dumps({"about": about, "sizes": sizes}, separators=(",", ":")).encode()
    end = _HEAD.size + len(text)
    start = end + -(offset + end) % PAGE if views else end
    pieces: List[Buffer] = [_HEAD.pack(len(text), start), text, bytes(start - end)]
    at = 0
    for place, view in zip(_places(sizes), views):
        pieces += [bytes(place - at), view]
        at = place + len(view)
    return [piece for piece in pieces if len(piece)]


def unpack(data: memoryview) -> Tuple[Dict[str, Any], List[memoryview]]:
    """The arguments that `pack` was given; the buffers are views of ``data``. Raises `FormatError`."""
    if len(data) < _HEAD.size:
        raise FormatError("is cut off or broken (a module's bytes have no head)")
    size, start = _HEAD.unpack(data[: _HEAD.size])
    if size > _MAX_JSON or not _HEAD.size + size <= start <= len(data):
        raise FormatError("is cut off or broken (a module's head reaches beyond its bytes)")
    head = parse(data[_HEAD.size : _HEAD.size + size])
    about, sizes = head.get("about"), head.get("sizes")
    if not isinstance(about, dict) or not isinstance(sizes, list):
        raise FormatError("is broken (a module's head lacks something)")
    if not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) > len(data):
        raise FormatError("is cut off or broken (a module's buffers reach beyond its bytes)")
    buffers = [data[start + place : start + place + size] for place, size in zip(_places(sizes), sizes)]
    if [len(buffer) for buffer in buffers] != sizes:
        raise FormatError("is cut off or broken (a module's buffers reach beyond its bytes)")
    return about, buffers


def start(data: memoryview) -> int:
    """The offset at which the buffers begin in packed bytes, on a page of the file; 0 if the bytes are not packed."""
    if len(data) < _HEAD.size:
        return 0
    size, begin = _HEAD.unpack(data[: _HEAD.size])
    return int(begin) if _HEAD.size + size <= begin <= len(data) else 0


def parse(data: memoryview) -> Dict[str, Any]:
    """Parse ``data`` as a JSON object. Raises `FormatError`."""
    try:
        value = json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FormatError("is broken (a module's description is no JSON object)")
    return value


def declared(values: Any) -> List[Dict[str, Any]]:
    """Check inputs or outputs: dicts with a name, and usually a dtype and a shape. Raises `FormatError`."""
    listed: List[Any] = values if isinstance(values, list) else [None]
    if not all(isinstance(value, dict) and isinstance(value.get("name"), str) for value in listed):
        raise FormatError("is broken (a module's inputs or outputs have no names)")
    return listed


def _places(sizes: Sequence[int]) -> Iterator[int]:
    at = 0
    for size in sizes:
        at += -at % (PAGE if size >= _LARGE else ALIGNMENT)
        yield at
        at += size
