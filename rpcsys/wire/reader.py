"""Decodes received bytes to frames of an rpcsys/1 session. No socket, no clock.

A body is received into its final memory, which is taken only after header and head were checked against each other.
Known weakness: bytes of a body (64 KiB at most) that arrive with an unexpected head are copied once more.
"""

from __future__ import annotations

import io
import math
import mmap
from sys import getrefcount
from typing import Callable, Dict, List, Optional, Tuple

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire.frames import (
    CHUNK,
    HEADER,
    HEADER_BYTES,
    KINDS,
    MAX_BODY,
    MAX_CHUNK,
    MAX_HEAD,
    REMEMBERED_BYTES,
    REMEMBERED_HEADS,
    Frame,
    template_struct,
)
from rpcsys.wire.head import ParsedHead, parse
from rpcsys.wire.memory import LARGE, PAGE, Pool

_SCRATCH = 64 << 10
#: Encoding seldom shrinks tensors to less than a tenth of their bytes, and only zeros to less than a hundredth.
MADE_PER_BYTE = 64
_EMPTY = ParsedHead({}, ())
_NO_CHUNK = (b"",)

Fill = Callable[[memoryview, int, int], int]


class Body:
    """The body of one frame while it is received: the buffers that follow, and the rest of the current one."""

    __slots__ = ("_buffers", "_space", "frame", "remaining")

    def __init__(self, frame: Frame, size: int) -> None:
        self.frame = frame
        self.remaining = size
        self._buffers = iter(frame.buffers)
        self._space: memoryview = next(self._buffers)

    def read(self, fill: Fill, flags: int) -> None:
        """Receive once, as `FrameReader.read`. Does little else, since 64 MB take hundreds of reads."""
        count = fill(self._space or self.space(), 0, flags)
        if not count:
            raise EOFError
        self._space = self._space[count:]
        self.remaining -= count

    def space(self) -> memoryview:
        """The memory to fill next; never empty while bytes are missing."""
        while not self._space:
            self._space = next(self._buffers)
        return self._space

    def filled(self, count: int) -> None:
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

    The next frame is expected to be like the last: its bytes are compared, not parsed. If it has one buffer, memory is
    taken ahead in which the body is aligned as an array must be. A different frame costs one more copy. No array is
    expected while one read holds several frames. An expected frame reuses the object and the memory of the last one if
    their reference counts show no other user. So a frame, its array, and every part of that stay unchanged while kept.

    After a frame, more bytes are here only while ``unread`` is not 0. Any error is final: the rest of the stream cannot
    be decoded.

    ``max_body`` and ``max_head`` bound the memory for one frame. Its values may take ``max_made`` bytes more, and
    `MADE_PER_BYTE` for each byte of its body.
    """

    def __init__(
        self,
        *,
        max_body: int = MAX_BODY,
        max_head: int = MAX_HEAD,
        max_made: float = math.inf,
        pool: Optional[Pool] = None,
    ) -> None:
        self._max_made = max_made
        self._max_body = max_body
        self._max_head = max_head
        self._pool = pool or Pool()
        self._heads: Dict[bytes, ParsedHead] = {b"": _EMPTY}
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._grown = False  # whether scratch is larger than it should stay
        self._start = 0  # scratch[start:unread] is received and not yet decoded; both are 0 when it is empty
        self.unread = 0
        self._body: Optional[Body] = None  # the frame whose body is being received
        self._expected: Optional[_Expected] = None  # the expected frame, if it comes alone
        self._like: Optional[_Expected] = None  # the expected one among several: the last without a body
        self._crowded = False  # whether the last read held more than one frame

    def read(self, fill: Fill, flags: int = 0) -> Optional[Frame]:
        """Receive once with ``fill``, a socket's ``recv_into`` or a function like it; then as `next`.

        Raises `EOFError` at the end of the stream. An error of ``fill`` passes through and changes nothing.
        """
        expected = self._expected
        if expected is None or self.unread or self._body is not None:
            return self._read_any(fill, flags)
        alone = getrefcount(expected.frame) == expected.alone
        frame = expected.frame
        if alone:
            frame.body = frame.views = None  # the next frame may reuse its memory
        if not expected.body_bytes:
            place, mapping = self._scratch, None
        elif getrefcount(expected.mapping) == expected.idle:
            place, mapping = expected.place, expected.mapping
        else:
            mapping = expected.reserve(self._pool)
            if mapping is None:
                return self._read_any(fill, flags)
            place = memoryview(mapping)[PAGE - expected.start :]
        count = fill(place, 0, flags)
        self._crowded = False
        if count == expected.end:
            opening, deadline_ms, call_id, rest = expected.parts(place)
            if opening == expected.opening and rest == expected.rest:
                if mapping is not expected.mapping:  # too large to keep
                    return Frame(expected.kind, expected.flags, deadline_ms, call_id, expected.parsed, None, mapping)
                if not alone:
                    frame = expected.another()
                frame.deadline_ms = deadline_ms
                frame.call_id = call_id
                if mapping is None:
                    frame.views = ()
                else:
                    frame.body = mapping
                return frame
        if count and mapping is not None:
            return self._other_than_expected(expected, mapping, count)
        return self._filled(count)

    def _read_any(self, fill: Fill, flags: int) -> Optional[Frame]:
        """`read` where no frame is expected, or one has begun."""
        body = self._body
        if body is not None and body.remaining > _SCRATCH // 4:
            body.read(fill, flags)
            return None if body.remaining else self.next()
        count = fill(self._scratch[self.unread :], 0, flags)
        if body is None and not self.unread:
            self._crowded = False
        return self._filled(count)

    def _filled(self, count: int) -> Optional[Frame]:
        """Decode after ``count`` more bytes in scratch."""
        if not count:
            raise EOFError
        self.unread += count
        return self.next()

    def _other_than_expected(self, expected: _Expected, mapping: mmap.mmap, count: int) -> Optional[Frame]:
        """Decode ``count`` bytes received ahead: a part of the expected frame, more than it, or another frame."""
        # A new view: it counts as a reference to the mapping.
        place = memoryview(mapping)[PAGE - expected.start :]
        end = expected.end
        if count > expected.start:
            opening, deadline_ms, call_id, rest = expected.parts(place)
            if opening == expected.opening and rest == expected.rest:
                buffers = (place[expected.start : end],)
                frame = Frame(expected.kind, expected.flags, deadline_ms, call_id, expected.parsed, buffers)
                if count < end:
                    self._body = Body(frame, expected.body_bytes)
                    self._body.filled(count - expected.start)
                    return None
                if count > end:
                    self._move(place[end:count])
                return frame
        self._move(place[:count])
        return self._next_head()

    def _move(self, data: memoryview) -> None:
        """Move the bytes of an unexpected frame to scratch."""
        self._expected = None
        self._crowded = True
        self.unread = len(data)
        if self.unread > _SCRATCH:
            self._grown = True
            self._scratch = memoryview(bytearray(data))
        else:
            self._scratch[: self.unread] = data

    def next(self) -> Optional[Frame]:
        """The next complete frame, or None until more is received.

        Raises `ProtocolError`, of which `LimitExceeded` is one.
        """
        body = self._body
        if body is None:
            return self._next_head() if self.unread else None
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

    def _next_head(self) -> Optional[Frame]:
        start = self._start
        have = self.unread - start
        like = self._like
        if like is not None and have >= like.end:
            opening, deadline_ms, call_id, rest = like.parts(self._scratch, start)
            if opening == like.opening and rest == like.rest:
                self._consumed(start + like.end)
                return Frame(like.kind, like.flags, deadline_ms, call_id, like.parsed, ())
        if have < HEADER_BYTES:
            self._rewind()
            return None
        header = HEADER.unpack_from(self._scratch, start)
        head_bytes, kind, flags, zero, deadline_ms, call_id, body_bytes = header
        if zero or kind not in KINDS or head_bytes > self._max_head or body_bytes > self._max_body:
            raise self._refusal(*header)
        body_start = start + HEADER_BYTES + head_bytes
        if body_start > self.unread:
            self._rewind(HEADER_BYTES + head_bytes)
            return None
        head = self._scratch[start + HEADER_BYTES : body_start].tobytes()
        parsed = self._heads.get(head) or self._parse(head)
        if parsed.made > self._max_made + MADE_PER_BYTE * body_bytes:
            raise LimitExceeded(f"{parsed.made} bytes of values in a body of {body_bytes}")
        alone = not start and body_start == self.unread
        if body_start == self.unread and not self._grown:
            self._start = self.unread = 0
        else:
            self._consumed(body_start)
        if not body_bytes and not parsed.sizes:
            if head_bytes <= REMEMBERED_BYTES and kind != CHUNK:
                self._like = _like(kind, flags, head, parsed)
                if alone:
                    self._expected = self._like
            return Frame(kind, flags, deadline_ms, call_id, parsed, _NO_CHUNK if kind == CHUNK else ())
        frame = Frame(kind, flags, deadline_ms, call_id, parsed, self._pool.take_all(_sizes(kind, parsed, body_bytes)))
        return self._next_body(frame, head, body_bytes)

    def _next_body(self, frame: Frame, head: bytes, body_bytes: int) -> Optional[Frame]:
        """The frame, if its whole body has arrived; else the next reads receive the rest."""
        if len(frame.buffers) == 1:
            end = self._start + body_bytes
            if end < self.unread:
                self._crowded = True
            elif body_bytes and not self._crowded and frame.kind != CHUNK and len(head) <= REMEMBERED_BYTES:
                self._expected = _Expected(frame.kind, frame.flags, head, frame.parsed)
            if end <= self.unread:
                frame.buffers[0][:] = self._scratch[self._start : end]
                self._consumed(end)
                return frame
        self._body = Body(frame, body_bytes)
        return self.next()

    def _consumed(self, until: int) -> None:
        """Mark scratch[:until] as decoded."""
        if until < self.unread:
            self._start = until
            return
        self._start = self.unread = 0
        if self._grown:
            self._grown = False
            self._scratch = memoryview(bytearray(_SCRATCH))

    def _refusal(self, head_bytes: int, kind: int, flags: int, zero: int, *sizes: int) -> ProtocolError:
        """The error for a header that is refused."""
        if zero or kind not in KINDS:
            return ProtocolError(f"no frame of this protocol starts with kind {kind}")
        if head_bytes > self._max_head:
            return LimitExceeded(f"a head of {head_bytes} bytes (at most {self._max_head} here)")
        return LimitExceeded(f"a body of {sizes[-1]} bytes (at most {self._max_body} here)")

    def _parse(self, head: bytes) -> ParsedHead:
        parsed = parse(head)
        if len(head) <= REMEMBERED_BYTES:
            if len(self._heads) >= REMEMBERED_HEADS:
                self._heads = {b"": _EMPTY}
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
            self._grown = True
        elif self._start:
            # Both sides of this assignment are one buffer; memoryview copies overlapping parts correctly.
            self._scratch[:have] = self._scratch[self._start : self.unread]
        self._start, self.unread = 0, have


def _sizes(kind: int, parsed: ParsedHead, body_bytes: int) -> Tuple[int, ...]:
    """The sizes of a frame's buffers, checked against its header."""
    if kind == CHUNK:
        if parsed.sizes:
            raise ProtocolError("the head of a CHUNK names no buffers")
        if body_bytes > MAX_CHUNK:
            raise LimitExceeded(f"a CHUNK of {body_bytes} bytes (at most {MAX_CHUNK})")
        return (body_bytes,)
    if parsed.body_bytes != body_bytes:
        raise ProtocolError(f"a head that names {parsed.body_bytes} bytes of buffers before a body of {body_bytes}")
    return parsed.sizes


class _Expected:
    """The frame that is expected next.

    Its body lies from ``start`` to ``end``. ``parts`` splits header and head into the ``opening``, deadline, call_id
    and the ``rest``, which holds the head. ``place`` is space for such a frame in ``mapping``, with the body on a page
    boundary; an unused mapping has ``idle`` references. ``frame`` is the last such frame or the next; it has ``alone``
    references while no user keeps it.
    """

    def __init__(self, kind: int, flags: int, head: bytes, parsed: ParsedHead) -> None:
        self.kind = kind
        self.flags = flags
        self.parsed = parsed
        self.body_bytes = parsed.body_bytes
        self.start = HEADER_BYTES + len(head)
        self.end = self.start + parsed.body_bytes
        self.parts = template_struct(len(head)).unpack_from
        first = HEADER.pack(len(head), kind, flags, 0, 0, 0, parsed.body_bytes) + head
        self.opening, _, _, self.rest = self.parts(first)
        self.another()
        self.idle = 0
        self.mapping: Optional[mmap.mmap] = None
        self.place = memoryview(b"")

    def another(self) -> Frame:
        """A new frame, because a user keeps the last one."""
        self.frame = Frame(self.kind, self.flags, 0, 0, self.parsed, None)
        # Counted as in `FrameReader.read`: the references of a local variable or of a call differ between Pythons.
        self.alone = getrefcount(self.frame)
        return self.frame

    def reserve(self, pool: Pool) -> Optional[mmap.mmap]:
        """Memory for such a frame; None if none is free. Remembers a mapping that the pool always keeps."""
        self.mapping, self.place = None, memoryview(b"")
        mapping = pool.take_behind(self.body_bytes)
        if mapping is not None and self.body_bytes <= LARGE:
            self.mapping = mapping
            self.place = memoryview(mapping)[PAGE - self.start :]
            del mapping
            self.idle = getrefcount(self.mapping)
            return self.mapping
        return mapping


def _like(kind: int, flags: int, head: bytes, parsed: ParsedHead) -> _Expected:
    """The expectation after a frame without a body, made once for most heads."""
    like: Optional[_Expected] = parsed.like
    if like is None or like.kind != kind or like.flags != flags:
        like = parsed.like = _Expected(kind, flags, head, parsed)
    return like
