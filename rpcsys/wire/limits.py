"""The limits of one received frame, and the errors for frames beyond them."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire.frames import CHUNK, KINDS, MAX_BODY, MAX_CHUNK, MAX_HEAD
from rpcsys.wire.head import ParsedHead
from rpcsys.wire.memory import no_memory

#: Encoding seldom shrinks tensors to less than a tenth of their bytes, and only zeros to less than a hundredth.
MADE_PER_BYTE = 64
#: More than any frame makes.
UNLIMITED = 1 << 62


class Limits(NamedTuple):
    """The most bytes of one frame's head and body.

    Its values may take ``max_made`` bytes more, and `MADE_PER_BYTE` for each byte of its body.
    """

    max_body: int = MAX_BODY
    max_head: int = MAX_HEAD
    max_made: int = UNLIMITED

    def refuse_header(self, head_bytes: int, kind: int, zero: int, body_bytes: int) -> NoReturn:
        """Raise `ProtocolError` for a header of no frame, `LimitExceeded` for one above the limits."""
        if zero or kind not in KINDS:
            raise ProtocolError(f"no frame of this protocol starts with kind {kind}")
        if head_bytes > self.max_head:
            raise LimitExceeded(f"a head of {head_bytes} bytes (at most {self.max_head} here)")
        raise LimitExceeded(f"a body of {body_bytes} bytes (at most {self.max_body} here)")

    def refuse_body(self, kind: int, parsed: ParsedHead, body_bytes: int) -> NoReturn:
        """Raise `ProtocolError` for a body of other buffers than the head names, `LimitExceeded` for one too large."""
        if parsed.made > self.max_made + MADE_PER_BYTE * body_bytes:
            raise LimitExceeded(f"{parsed.made} bytes of values in a body of {body_bytes}")
        if kind != CHUNK:
            raise ProtocolError(f"a head that names {parsed.body_bytes} bytes of buffers before a body of {body_bytes}")
        if parsed.sizes:
            raise ProtocolError("the head of a CHUNK names no buffers")
        raise LimitExceeded(f"a CHUNK of {body_bytes} bytes (at most {MAX_CHUNK})")

    def refuse_memory(self, size: int) -> NoReturn:
        """Raise `LimitExceeded` for an array of ``size`` bytes, for which the system has no memory."""
        raise no_memory(size)


DEFAULT = Limits()
