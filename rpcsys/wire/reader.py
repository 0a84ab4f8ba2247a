"""Decodes received bytes to frames of an rpcsys/1 session. No socket, no clock.

The rest of a large body is received into its final memory, which is taken only after header and head were checked.
"""

from __future__ import annotations

import io
from typing import Callable, Dict, List, Optional, Tuple

from rpcsys.wire.frames import CHUNK, HEADER, HEADER_BYTES, KINDS, MAX_CHUNK, REMEMBERED_BYTES, REMEMBERED_HEADS, Frame
from rpcsys.wire.head import ParsedHead, parse
from rpcsys.wire.limits import DEFAULT, MADE_PER_BYTE, Limits
from rpcsys.wire.memory import Pool

_SCRATCH = 64 << 10
#: From so many missing bytes on, a buffer is received into its final memory; fewer are copied there.
_DIRECT = 16 << 10

Fill = Callable[[memoryview, int, int], int]


class Body:
    """The body of one frame while it is received: the buffers that follow, and the rest of the current one."""

    __slots__ = ("_buffers", "_space", "frame", "remaining")

    def __init__(self, frame: Frame, size: int) -> None:
        self.frame = frame
        self.remaining = size
        self._buffers = iter(frame.buffers)
        self._space = memoryview(b"")

    def space(self) -> memoryview:
        """The memory to fill next; never empty while bytes are missing."""
        while not self._space:
            self._space = next(self._buffers)
        return self._space

    def filled(self, count: int) -> None:
        """``count`` bytes of `space` have arrived."""
        self._space = self._space[count:]
        self.remaining -= count

    def take(self, data: memoryview) -> int:
        """Copy this body's bytes from ``data``. Returns their number."""
        taken = 0
        while self.remaining and taken < len(data):
            space = self.space()
            count = min(len(space), len(data) - taken)
            space[:count] = data[taken : taken + count]
            self.filled(count)
            taken += count
        return taken


class FrameReader:
    """Decodes frames: `read` receives once, `next` returns further frames, `skip` drops them, `feed` takes bytes.

    After a frame, more bytes are here only while ``unread`` is not 0. Any error is final: the rest of the stream cannot
    be decoded.
    """

    def __init__(self, limits: Limits = DEFAULT, pool: Optional[Pool] = None) -> None:
        self._limits = limits
        self._pool = pool or Pool()
        self._heads: Dict[bytes, ParsedHead] = {}
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._start = 0  # scratch[start:unread] is received and not yet decoded; both are 0 when it is empty
        self.unread = 0
        self._body: Optional[Body] = None  # the frame whose body is being received

    def read(self, fill: Fill, flags: int = 0) -> Optional[Frame]:
        """Receive once with ``fill``, a socket's ``recv_into`` or a function like it; then as `next`.

        Raises `EOFError` at the end of the stream. An error of ``fill`` passes through and changes nothing.
        """
        body = self._body
        if body is not None and len(space := body.space()) > _DIRECT:
            count = fill(space, 0, flags)
            body.filled(count)
            if count and body.remaining:
                return None
        else:
            count = fill(self._scratch[self.unread :] if self.unread else self._scratch, 0, flags)
            self.unread += count
        if not count:
            raise EOFError
        return self._next_frame() if body is None else self.next()

    def next(self) -> Optional[Frame]:
        """The next complete frame, or None until more is received.

        Raises `ProtocolError`, of which `LimitExceeded` is one.
        """
        body = self._body
        if body is None:
            return self._next_frame() if self.unread else None
        if self.unread:
            self._consumed(self._start + body.take(self._scratch[self._start : self.unread]))
        if body.remaining:
            return None
        self._body = None
        return body.frame

    def skip(self, kind: int) -> Tuple[int, bytes]:
        """Drop the next complete frames of ``kind``, unparsed. Returns their number and their bytes."""
        begin = at = self._start
        count = 0
        scratch, unread, unpack = self._scratch, self.unread, HEADER.unpack_from
        while self._body is None and at + HEADER_BYTES <= unread:
            head_bytes, found, _, zero, _, _, body_bytes = unpack(scratch, at)
            end = at + HEADER_BYTES + head_bytes + body_bytes
            if found != kind or zero or end > unread:
                break
            at = end
            count += 1
        skipped = scratch[begin:at].tobytes()
        if count:
            self._consumed(at)
        return count, skipped

    def feed(self, data: bytes) -> List[Frame]:
        """The frames that ``data`` completes: `read` and `next` for sources of bytes."""
        frames = []
        source = io.BytesIO(data)
        while source.tell() < len(data):
            frame = self.read(lambda place, *_: source.readinto(place))
            while frame is not None:
                frames.append(frame)
                frame = self.next()
        return frames

    @property
    def missing(self) -> int:
        """Bytes that the current frame lacks, as far as its header is known; 0 between frames."""
        if self._body is not None:
            return self._body.remaining
        have = self.unread - self._start
        if have < HEADER_BYTES:
            return HEADER_BYTES - have if have else 0
        head_bytes: int = HEADER.unpack_from(self._scratch, self._start)[0]
        return HEADER_BYTES + head_bytes - have

    def _next_frame(self) -> Optional[Frame]:
        """Decode header and head, and take memory for the body; the frame if all of it has arrived.

        Every length is checked here, before memory is taken.
        """
        limits, start = self._limits, self._start
        have = self.unread - start
        if have < HEADER_BYTES:
            self._rewind()
            return None
        head_bytes, kind, flags, zero, deadline_ms, call_id, body_bytes = HEADER.unpack_from(self._scratch, start)
        if zero or kind not in KINDS or head_bytes > limits.max_head or body_bytes > limits.max_body:
            limits.refuse_header(head_bytes, kind, zero, body_bytes)
        body_start = start + HEADER_BYTES + head_bytes
        if body_start > self.unread:
            self._rewind(HEADER_BYTES + head_bytes)
            return None
        head = self._scratch[start + HEADER_BYTES : body_start].tobytes()
        parsed = self._heads.get(head) or self._parse(head)
        fits = (body_bytes <= MAX_CHUNK and not parsed.sizes) if kind == CHUNK else parsed.body_bytes == body_bytes
        if not fits or parsed.made > limits.max_made + MADE_PER_BYTE * body_bytes:
            limits.refuse_body(kind, parsed, body_bytes)
        if body_start == self.unread <= _SCRATCH:
            self._start = self.unread = 0  # as `_consumed`
        else:
            self._consumed(body_start)
        sizes = (body_bytes,) if kind == CHUNK else parsed.sizes
        buffers = self._pool.take_all(sizes) if sizes else ()
        frame = Frame(kind, flags, deadline_ms, call_id, parsed, buffers)
        if not body_bytes:
            return frame
        self._body = Body(frame, body_bytes)
        return self.next()

    def _consumed(self, until: int) -> None:
        """Mark scratch[:until] as decoded."""
        if until < self.unread:
            self._start = until
            return
        self._start = self.unread = 0
        if len(self._scratch) > _SCRATCH:
            self._scratch = memoryview(bytearray(_SCRATCH))

    def forget_heads(self) -> None:
        """Parse the heads of later frames anew."""
        self._heads.clear()

    def _parse(self, head: bytes) -> ParsedHead:
        parsed = parse(head)
        if len(head) <= REMEMBERED_BYTES:
            if len(self._heads) >= REMEMBERED_HEADS:
                self._heads.clear()
            self._heads[head] = parsed
        return parsed

    def _rewind(self, wanted: int = 0) -> None:
        """Move the undecoded bytes to the front, with space behind them, in the end for ``wanted`` bytes in all.

        The memory grows with the bytes that arrive, not with the announced length.
        """
        have = self.unread - self._start
        if wanted > len(self._scratch) < 2 * have:
            larger = memoryview(bytearray(min(wanted + HEADER_BYTES, 8 * len(self._scratch))))
            larger[:have] = self._scratch[self._start : self.unread]
            self._scratch = larger
        elif self._start:
            # Both sides of this assignment are one buffer; memoryview copies overlapping parts correctly.
            self._scratch[:have] = self._scratch[self._start : self.unread]
        self._start, self.unread = 0, have
