"""The errors for frames beyond the limits; both readers raise them (tests/test_stream.py)."""

from __future__ import annotations

import pytest

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire import frames
from rpcsys.wire.head import ParsedHead
from rpcsys.wire.limits import Limits

SMALL = Limits(max_body=100, max_head=50, max_made=10)


@pytest.mark.parametrize(
    ("header", "error", "text"),
    [
        ((10, 99, 0, 5), ProtocolError, "no frame of this protocol starts with kind 99"),
        ((10, frames.CALL, 1, 5), ProtocolError, "no frame of this protocol"),
        ((51, frames.CALL, 0, 5), LimitExceeded, r"a head of 51 bytes \(at most 50 here\)"),
        ((50, frames.CALL, 0, 101), LimitExceeded, r"a body of 101 bytes \(at most 100 here\)"),
    ],
)
def test_a_header_is_refused(header, error, text):
    with pytest.raises(error, match=text):
        SMALL.refuse_header(*header)


@pytest.mark.parametrize(
    ("kind", "parsed", "body", "error", "text"),
    [
        (frames.CALL, ParsedHead({}, (5,)), 6, ProtocolError, "5 bytes of buffers before a body of 6"),
        (frames.CHUNK, ParsedHead({}, (5,)), 5, ProtocolError, "the head of a CHUNK names no buffers"),
        (frames.CHUNK, ParsedHead({}, ()), (4 << 20) + 1, LimitExceeded, "a CHUNK of 4194305 bytes"),
        (frames.CALL, ParsedHead({}, (), made=11), 0, LimitExceeded, "11 bytes of values in a body of 0"),
    ],
)
def test_a_body_is_refused(kind, parsed, body, error, text):
    with pytest.raises(error, match=text):
        SMALL.refuse_body(kind, parsed, body)


def test_memory_is_refused():
    with pytest.raises(LimitExceeded, match="no memory here for 7 bytes of arrays"):
        SMALL.refuse_memory(7)
