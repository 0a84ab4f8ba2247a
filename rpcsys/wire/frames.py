"""The frames of an rpcsys/1 session, and their encoding (docs/wire.md, 3). `rpcsys.wire.reader` decodes them.

Equal calls differ only in the header (call_id, deadline), so both ends cache short heads with their meaning. A CHUNK's
body is one buffer; its head names none.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

from rpcsys.errors import LimitExceeded, ValueNotSupported
from rpcsys.wire import dtypes, values
from rpcsys.wire.head import MAX_BUFFERS, ParsedHead, parsed_bytes
from rpcsys.wire.memory import ALIGNMENT
from rpcsys.wire.tensor import Tensor

#: head_bytes, kind, flags, 0, deadline_ms, call_id, body_bytes.
HEADER = struct.Struct("<IBBHIIQ")
HEADER_BYTES = HEADER.size
_NUMBERS = struct.Struct("<II")  # deadline_ms and call_id, at byte 8 of the header

HELLO, CALL, RESULT, ERROR, CANCEL, PING, PONG, CHUNK, LOG, FREE, GOODBYE = range(1, 12)
KINDS = dict(
    enumerate(["HELLO", "CALL", "RESULT", "ERROR", "CANCEL", "PING", "PONG", "CHUNK", "LOG", "FREE", "GOODBYE"], 1)
)
#: Flag of the last CHUNK of a stream.
LAST = 1

#: Heads carry names, shapes and scalars; large data belongs in the body. 16 MiB hold a classifier's output for 10,000
#: rows, a map of 50 classes for each; larger outputs are arrays.
MAX_HEAD = 16 << 20
#: More than any array that one process of a board or an edge server holds today.
MAX_BODY = 1 << 36
#: Pieces of a file: large enough that the socket is the limit, small enough for a board of 256 MB.
MAX_CHUNK = 4 << 20
#: Number and length of the heads that are cached: longer ones are rarely sent twice. Together they take about 500 kB.
REMEMBERED_HEADS = 256
REMEMBERED_BYTES = 1024
#: Bytes of a body above which its position in the frame makes its copy slower: 1 MB takes 0.99 of the time if aligned.
_PADDED = 32 << 10

_SCALARS = (bool, int, type(None))
_PLAIN_KINDS = "biufc"
_ndarray: Any = None

Key = Tuple[Any, ...]
Buffer = Any  # bytes, bytearray, memoryview or an ndarray: the types that sendmsg takes


class FrameValues:
    """The values of a received frame, for `Frame` and for the C library's frames."""

    __slots__ = ()

    kind: int
    call_id: int
    parsed: ParsedHead
    buffers: Sequence[Any]

    def get(self, name: str, default: Any = None) -> Any:
        """The Python value of a field of the head; ``default`` where it is absent."""
        head = self.parsed.head
        return values.build(head[name], self.buffers) if name in head else default

    def fields(self) -> Dict[str, Any]:
        """The whole head as Python values."""
        return {name: values.build(item, self.buffers) for name, item in self.parsed.head.items()}

    def __repr__(self) -> str:
        return f"<{KINDS.get(self.kind, self.kind)} {self.call_id} {self.parsed.head}>"


class Frame(FrameValues):
    """A received frame. ``parsed.head`` is shared with later frames: never change it."""

    __slots__ = ("buffers", "call_id", "deadline_ms", "flags", "kind", "parsed")

    def __init__(
        self, kind: int, flags: int, deadline_ms: int, call_id: int, parsed: ParsedHead, buffers: Sequence[Any]
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.deadline_ms = deadline_ms
        self.call_id = call_id
        self.parsed = parsed
        self.buffers = buffers  # those that the head names, or the one of a CHUNK

    def buffer(self, index: int) -> Any:
        """The memory of one buffer, for an array."""
        return self.buffers[index]


def encode_head(fields: Dict[str, Any]) -> Tuple[bytes, List[Buffer]]:
    """The head of ``fields`` and the buffers behind it.

    Raises `ValueNotSupported` for values without a form on the wire, and `LimitExceeded` for a head
    above `MAX_HEAD` bytes or of too many values (a list of a million numbers: send an array).
    """
    buffers: List[Buffer] = []
    plain = {name: values.encode(item, buffers) for name, item in fields.items()}
    try:
        head = values.dump(plain).encode("ascii")
    except ValueError:  # Python's own limit, 4,300 digits, on this side or the other
        raise ValueNotSupported("a whole number of too many digits for the wire; send it as bytes") from None
    if len(head) > MAX_HEAD:
        raise LimitExceeded(
            f"a call whose names and numbers take {len(head)} bytes (at most {MAX_HEAD}); send long lists as arrays"
        )
    parsed_bytes(head)  # the receiver's own limit
    if len(buffers) > MAX_BUFFERS:
        raise LimitExceeded(f"more than {MAX_BUFFERS} arrays in one call; join them")
    return head, buffers


class FrameTemplate:
    """Header and head of frames that differ only in deadline and call_id. A body of ``body_bytes`` follows.

    ``first``: header and head as bytes, with zeros for deadline and call_id. Spaces pad a head before a larger body,
    which then begins on a 64-byte boundary of the frame: the kernel copies it faster.

    Raises `LimitExceeded` for a body above `MAX_BODY` bytes.
    """

    __slots__ = ("body_bytes", "first", "head")

    def __init__(self, kind: int, head: bytes, body_bytes: int = 0) -> None:
        if body_bytes > MAX_BODY:
            raise LimitExceeded(f"{body_bytes} bytes of arrays in one call (at most {MAX_BODY})")
        if body_bytes > _PADDED and len(head) < REMEMBERED_BYTES:
            head += b" " * (-(HEADER_BYTES + len(head)) % ALIGNMENT)
        self.head = head
        self.body_bytes = body_bytes
        self.first = HEADER.pack(len(head), kind, 0, 0, 0, 0, body_bytes) + head

    def pieces(self, call_id: int, buffers: Sequence[Buffer] = (), deadline_ms: int = 0) -> List[Buffer]:
        """The pieces of one frame, for sendmsg, each flat bytes. ``buffers``: `body_bytes` in all, in C order."""
        first = self.first[:8] + _NUMBERS.pack(deadline_ms, call_id) + self.first[16:]
        if not buffers:
            return [first]
        views = [memoryview(buffer) for buffer in buffers]
        return [first, *[view.cast("B") for view in views if view.nbytes]]


def template(kind: int, fields: Dict[str, Any]) -> Tuple[FrameTemplate, List[Buffer]]:
    """The template of frames that carry ``fields``, and their buffers. Raises as `encode_head` and `FrameTemplate`."""
    head, buffers = encode_head(fields)
    return FrameTemplate(kind, head, sum(map(len, buffers))), buffers


def pack(
    kind: int, call_id: int, head: bytes = b"", buffers: Sequence[Buffer] = (), *, deadline_ms: int = 0, flags: int = 0
) -> List[Buffer]:
    """The pieces of one frame, for sendmsg: header and head in one, then each buffer as it is.

    Raises `LimitExceeded` for a body above `MAX_BODY` bytes.
    """
    body = sum(map(len, buffers))
    if body > MAX_BODY:
        raise LimitExceeded(f"{body} bytes of arrays in one call (at most {MAX_BODY})")
    return [HEADER.pack(len(head), kind, flags, 0, deadline_ms, call_id, body) + head, *filter(len, buffers)]


def encode(kind: int, call_id: int, fields: Dict[str, Any], *, deadline_ms: int = 0, flags: int = 0) -> List[Buffer]:
    """`encode_head` and `pack` in one: the pieces of a frame that carries ``fields``."""
    head, buffers = encode_head(fields)
    return pack(kind, call_id, head, buffers, deadline_ms=deadline_ms, flags=flags)


def array_maker(head: Any) -> Optional[Callable[[Frame], Any]]:
    """A function that makes the array of a tensor's head from any frame with that head.

    It returns a numpy array, or a `Tensor` where numpy is not installed. None for what `values.build` has to decode:
    other forms, other devices, and element types that this machine's numpy lacks.
    """
    if type(head) is not dict or head.get("@") != "tensor" or "device" in head:
        return None
    name, shape, index = head["dtype"], tuple(head["shape"]), head["buffer"]
    np = dtypes.import_numpy()
    if np is None:
        return lambda frame: Tensor(name, shape, frame.buffers[index])
    dtype, make = dtypes.numpy_dtype(name), np.ndarray
    if dtype is None or not dtype.itemsize:
        return None

    return lambda frame: make(shape, dtype, frame.buffer(index))


# Heads that are sent repeatedly.


def signature(about: Hashable, values: Sequence[Any]) -> Tuple[Optional[Key], Sequence[Buffer]]:
    """The key in a `HeadCache` for the head of ``values`` and of ``about``, and the memory of ``values``, in order.

    The key is None where a value is neither an array in C order nor a scalar: then more than types and shapes decides
    the head. The memory is valid only for a head that the cache has, which holds heads of plain element types alone.
    """
    ndarray = _ndarray or _find_ndarray()
    try:
        if len(values) == 1:
            value = values[0]
            kind = type(value)
            if kind is ndarray and value.flags.c_contiguous:
                return (about, value.dtype, value.shape), values
            if kind in _SCALARS:
                return (about, kind, value), ()
        key: List[Any] = [about]
        buffers: List[Buffer] = []
        for value in values:
            kind = type(value)
            if kind is ndarray:
                buffers.append(value.data.cast("B"))
                key += (value.dtype, value.shape)
            elif kind in _SCALARS:
                key += (kind, value)
            elif kind is memoryview:
                buffers.append(value.cast("B"))
                key += (value.format, value.shape)
            elif kind is Tensor and value.dtype != "strings" and value.device == "cpu:0":
                buffers.append(value.data)
                key += (Tensor, (value.dtype, value.shape, len(value.data)))
            else:
                return None, ()
    except (TypeError, ValueError):  # not C order, no elements, or no plain element type
        return None, ()
    return tuple(key), buffers


def _find_ndarray() -> Any:
    """The array type of numpy, if this process has imported numpy; this file never imports it."""
    global _ndarray
    _ndarray = getattr(sys.modules.get("numpy"), "ndarray", None)
    return _ndarray


def _plain(part: Any) -> bool:
    """Whether a part of a key decides the bytes of a head: all parts except element types that are not plain."""
    return not hasattr(part, "isnative") or bool(part.isbuiltin == 1 and part.isnative and part.kind in _PLAIN_KINDS)


class HeadCache(Dict[Optional[Key], FrameTemplate]):
    """Templates of a bounded number of short heads, by the signature of their values. Holds bytes only.

    Caches on little-endian machines only, where native arrays have the byte order of the wire.
    """

    def put(self, key: Optional[Key], template: FrameTemplate) -> None:
        """Cache ``template`` if its head is short and ``key`` decides it (None: never). Clears a full cache first."""
        if key is None or sys.byteorder != "little" or not all(map(_plain, key)):
            return
        if len(template.head) > REMEMBERED_BYTES or len(repr(key)) > 2 * REMEMBERED_BYTES:
            return
        if len(self) >= REMEMBERED_HEADS:
            self.clear()
        self[key] = template
