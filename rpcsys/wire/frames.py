"""The frames of an rpcsys/1 session: bytes in, frames out, and back. No socket, no clock.

::

    u32 head_bytes | u8 kind | u8 flags | u16 0 | u32 deadline_ms | u32 call_id | u64 body_bytes
    head: a UTF-8 JSON object           body: the buffers the head names, end to end

The rules of this file:

- The reader is asked for memory (`FrameReader.space`), told how much of it was filled, and then asked
  for a frame: so a body is received where it stays, and the same code runs on any source of bytes.
- Memory for a body is taken only after header and head have been checked against each other.
- What differs between equal calls (call_id, deadline) is in the header, so that equal heads are equal
  bytes: both ends remember a bounded number of short heads with what they mean.
- A CHUNK's body is one buffer of its own length; its head names none.

Its known weakness: bytes of a body that arrive in the same read as its head (64 KiB at most) are
copied once more to their place.
"""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire import values
from rpcsys.wire.memory import Pool
from rpcsys.wire.plan import MAX_BUFFERS, Plan, parse

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

#: Heads carry names, shapes and scalars; what is bulky belongs in the body. 1 MiB holds 10,000 arrays.
MAX_HEAD = 1 << 20
#: Above any array that one process of a board or an edge server holds today.
MAX_BODY = 1 << 36
#: Pieces of a file: large enough that the socket is the limit, small enough for a board of 256 MB.
MAX_CHUNK = 4 << 20
#: Heads worth remembering: longer ones are rarely sent twice. 256 of them are at most some 500 kB.
REMEMBERED_HEADS = 256
REMEMBERED_BYTES = 1024

_SCRATCH = 64 << 10
_EMPTY = Plan({}, ())
_NO_CHUNK = (b"",)

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
    body = 0
    for buffer in buffers:
        body += len(buffer)
    if body > MAX_BODY:
        raise LimitExceeded(f"{body} bytes of arrays in one call (at most {MAX_BODY})")
    first = HEADER.pack(len(head), kind, flags, 0, deadline_ms, call_id, body) + head
    return [first, *(buffer for buffer in buffers if len(buffer))]


def encode(
    kind: int, call_id: int, fields: Dict[str, Any], *, deadline_ms: int = 0, flags: int = 0
) -> List[Buffer]:
    """`encode_head` and `pack` in one: the pieces of a frame that carries ``fields``."""
    head, buffers = encode_head(fields)
    return pack(kind, call_id, head, buffers, deadline_ms=deadline_ms, flags=flags)


class FrameReader:
    """Bytes in, frames out.

    Fill ``space()``, say ``received(n)``, which gives the first frame that completes, then take ``next()``
    until it gives None: there is more only while ``unread`` is not 0. Any error is final:
    what follows on that connection cannot be understood.

    ``max_body`` bounds what one frame may make this end allocate.
    """

    def __init__(self, *, max_body: int = MAX_BODY, pool: Optional[Pool] = None) -> None:
        self._max_body = max_body
        self._pool = pool or Pool()
        self._plans: Dict[bytes, Plan] = {}
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._start = 0  # scratch[start:unread] is received and not yet understood; both 0 when nothing is
        self.unread = 0
        self._body: Optional[_Body] = None  # the frame whose body is being received

    def space(self) -> memoryview:
        """Where the next bytes are to be received; never empty."""
        body = self._body
        if body is not None and body.remaining > _SCRATCH // 4:
            return body.space()
        return self._scratch[self.unread :] if self.unread else self._scratch

    def received(self, count: int) -> Optional[Frame]:
        """``count`` bytes of the last `space` have been filled; then as `next`."""
        body = self._body
        if body is None:
            self.unread += count
            return self._next_head()
        if body.remaining > _SCRATCH // 4:
            body.filled(count)
        else:
            self.unread += count
        return self.next()

    def next(self) -> Optional[Frame]:
        """The next complete frame, or None until more is received.

        Raises `ProtocolError`, of which `LimitExceeded` is one.
        """
        body = self._body
        if body is None:
            return self._next_head() if self.unread else None
        if self.unread:
            self._start += body.take(self._scratch[self._start : self.unread])
            if self._start == self.unread:
                self._start = self.unread = 0
        if body.remaining:
            return None
        self._body = None
        return body.frame

    def feed(self, data: bytes) -> List[Frame]:
        """Receive ``data`` and give the frames it completes: for tests and sources that hand out bytes."""
        frames = []
        view = memoryview(data)
        while view:
            space = self.space()
            count = min(len(space), len(view))
            space[:count] = view[:count]
            view = view[count:]
            frame = self.received(count)
            while frame is not None:
                frames.append(frame)
                frame = self.next()
        return frames

    @property
    def idle(self) -> bool:
        """Whether nothing of a next frame has been received."""
        return self._body is None and self._start == self.unread

    def _next_head(self) -> Optional[Frame]:
        start = self._start
        have = self.unread - start
        if have < HEADER_BYTES:
            self._rewind()
            return None
        head_bytes, kind, flags, zero, deadline_ms, call_id, body_bytes = HEADER.unpack_from(
            self._scratch, start
        )
        if zero or kind not in KINDS:
            raise ProtocolError(f"no frame of this protocol starts with kind {kind}")
        if head_bytes > MAX_HEAD:
            raise LimitExceeded(f"a head of {head_bytes} bytes (at most {MAX_HEAD})")
        if body_bytes > self._max_body:
            raise LimitExceeded(f"a body of {body_bytes} bytes (at most {self._max_body} here)")
        body_start = start + HEADER_BYTES + head_bytes
        if body_start > self.unread:
            self._rewind(HEADER_BYTES + head_bytes)
            return None
        if head_bytes:
            head = self._scratch[start + HEADER_BYTES : body_start].tobytes()
            plan = self._plans.get(head) or self._plan(head)
        else:
            plan = _EMPTY
        if body_start == self.unread:
            self._start = self.unread = 0
            if len(self._scratch) > _SCRATCH:
                self._scratch = memoryview(bytearray(_SCRATCH))
        else:
            self._start = body_start
        if not body_bytes and not plan.sizes:
            return Frame(kind, flags, deadline_ms, call_id, plan, _NO_CHUNK if kind == CHUNK else ())
        sizes = _sizes(kind, plan, body_bytes)
        frame = Frame(kind, flags, deadline_ms, call_id, plan, self._pool.take_all(sizes))
        self._body = _Body(frame, body_bytes)
        return self.next()

    def _plan(self, head: bytes) -> Plan:
        plan = parse(head)
        if len(head) <= REMEMBERED_BYTES:
            if len(self._plans) >= REMEMBERED_HEADS:
                self._plans.clear()
            self._plans[head] = plan
        return plan

    def _rewind(self, wanted: int = 0) -> None:
        """Move what is not yet understood to the front, with room behind it for ``wanted`` bytes in all."""
        have = self.unread - self._start
        if wanted > len(self._scratch):
            larger = memoryview(bytearray(wanted + HEADER_BYTES))
            larger[:have] = self._scratch[self._start : self.unread]
            self._scratch = larger
        elif self._start:
            # Both sides of this assignment are one buffer; memoryview copies overlapping parts rightly.
            self._scratch[:have] = self._scratch[self._start : self.unread]
        self._start, self.unread = 0, have


def _sizes(kind: int, plan: Plan, body_bytes: int) -> Tuple[int, ...]:
    """The sizes of a frame's buffers, checked against what its header promises."""
    if kind == CHUNK:
        if plan.sizes:
            raise ProtocolError("the head of a CHUNK names no buffers")
        if body_bytes > MAX_CHUNK:
            raise LimitExceeded(f"a CHUNK of {body_bytes} bytes (at most {MAX_CHUNK})")
        return (body_bytes,)
    if plan.body_bytes != body_bytes:
        raise ProtocolError(
            f"a head that names {plan.body_bytes} bytes of buffers before a body of {body_bytes}"
        )
    return plan.sizes


class _Body:
    """The body of one frame while it is received: which buffer is being filled, and how far."""

    __slots__ = ("_filled", "_index", "frame", "remaining")

    def __init__(self, frame: Frame, size: int) -> None:
        self.frame = frame
        self.remaining = size
        self._index = 0
        self._filled = 0

    def space(self) -> memoryview:
        buffer = self.frame.buffers[self._index]
        while self._filled == len(buffer):
            self._index += 1
            self._filled = 0
            buffer = self.frame.buffers[self._index]
        view: memoryview = buffer[self._filled :]
        return view

    def filled(self, count: int) -> None:
        self._filled += count
        self.remaining -= count

    def take(self, data: memoryview) -> int:
        """Copy what belongs to this body from ``data``; the number of bytes taken."""
        taken = 0
        while self.remaining and taken < len(data):
            space = self.space()
            count = min(len(space), len(data) - taken)
            space[:count] = data[taken : taken + count]
            self.filled(count)
            taken += count
        return taken
