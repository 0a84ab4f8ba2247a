"""The frames of an rpcsys/1 session, and what makes them. `rpcsys.wire.reader` takes them apart.

::

    u32 head_bytes | u8 kind | u8 flags | u16 0 | u32 deadline_ms | u32 call_id | u64 body_bytes
    head: a UTF-8 JSON object           body: the buffers the head names, end to end

What differs between equal calls (call_id, deadline) is in the header, so that equal heads are equal
bytes: both ends remember a bounded number of short heads with what they mean. A CHUNK's body is one
buffer of its own length; its head names none.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Sequence, Tuple

from rpcsys.errors import LimitExceeded, ValueNotSupported
from rpcsys.wire import values
from rpcsys.wire.plan import MAX_BUFFERS, Plan

HEADER = struct.Struct("<IBBHIIQ")
HEADER_BYTES = HEADER.size

HELLO, CALL, RESULT, ERROR, CANCEL, PING, PONG, CHUNK, LOG, FREE, GOODBYE = range(1, 12)
KINDS = {
    HELLO: "HELLO",
    CALL: "CALL",
    RESULT: "RESULT",
    ERROR: "ERROR",
    CANCEL: "CANCEL",
    PING: "PING",
    PONG: "PONG",
    CHUNK: "CHUNK",
    LOG: "LOG",
    FREE: "FREE",
    GOODBYE: "GOODBYE",
}
#: flag of the last CHUNK of a stream
LAST = 1

#: Heads carry names, shapes and scalars; what is bulky belongs in the body. 16 MiB hold what a classifier says
#: of 10,000 rows, a map of 50 classes each; more than that is an array.
MAX_HEAD = 16 << 20
#: Above any array that one process of a board or an edge server holds today.
MAX_BODY = 1 << 36
#: Pieces of a file: large enough that the socket is the limit, small enough for a board of 256 MB.
MAX_CHUNK = 4 << 20
#: Heads worth remembering: longer ones are rarely sent twice. 256 of them are at most some 500 kB.
REMEMBERED_HEADS = 256
REMEMBERED_BYTES = 1024


Buffer = Any  # bytes, bytearray, memoryview or an ndarray: whatever sendmsg takes


class Frame:
    """One frame as it was received. ``plan.head`` is shared with later frames: never change it."""

    __slots__ = ("buffers", "call_id", "deadline_ms", "flags", "kind", "plan")

    def __init__(
        self, kind: int, flags: int, deadline_ms: int, call_id: int, plan: Plan, buffers: Sequence[Any]
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.deadline_ms = deadline_ms
        self.call_id = call_id
        self.plan = plan
        self.buffers = buffers

    def get(self, name: str, default: Any = None) -> Any:
        """The Python value of a field of the head; ``default`` where it is absent."""
        head = self.plan.head
        return values.build(head[name], self.buffers) if name in head else default

    def fields(self) -> Dict[str, Any]:
        """The whole head as Python values."""
        return {name: values.build(item, self.buffers) for name, item in self.plan.head.items()}

    def __repr__(self) -> str:
        return f"<{KINDS.get(self.kind, self.kind)} {self.call_id} {self.plan.head}>"


def encode_head(fields: Dict[str, Any]) -> Tuple[bytes, List[Buffer]]:
    """The head of ``fields`` and the buffers behind it.

    Raises `ValueNotSupported` for values without a form on the wire, and `LimitExceeded` for a head
    above `MAX_HEAD` bytes (a list of a million numbers: send an array).
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
    if len(buffers) > MAX_BUFFERS:
        raise LimitExceeded(f"more than {MAX_BUFFERS} arrays in one call; join them")
    return head, buffers


def pack(
    kind: int,
    call_id: int,
    head: bytes = b"",
    buffers: Sequence[Buffer] = (),
    *,
    deadline_ms: int = 0,
    flags: int = 0,
) -> List[Buffer]:
    """The pieces of one frame, for sendmsg: header and head in one, then each buffer as it is.

    Raises `LimitExceeded` for a body above `MAX_BODY` bytes.
    """
    if not buffers:
        return [HEADER.pack(len(head), kind, flags, 0, deadline_ms, call_id, 0) + head]
    if len(buffers) == 1:
        body = len(buffers[0])
        if 0 < body <= MAX_BODY:
            return [HEADER.pack(len(head), kind, flags, 0, deadline_ms, call_id, body) + head, buffers[0]]
    body = 0
    pieces: List[Buffer] = [head]
    for buffer in buffers:
        size = len(buffer)
        if size:
            body += size
            pieces.append(buffer)
    if body > MAX_BODY:
        raise LimitExceeded(f"{body} bytes of arrays in one call (at most {MAX_BODY})")
    pieces[0] = HEADER.pack(len(head), kind, flags, 0, deadline_ms, call_id, body) + head
    return pieces


def encode(
    kind: int, call_id: int, fields: Dict[str, Any], *, deadline_ms: int = 0, flags: int = 0
) -> List[Buffer]:
    """`encode_head` and `pack` in one: the pieces of a frame that carries ``fields``."""
    head, buffers = encode_head(fields)
    return pack(kind, call_id, head, buffers, deadline_ms=deadline_ms, flags=flags)
