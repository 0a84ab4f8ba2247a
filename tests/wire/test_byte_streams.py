"""Messages of byte streams: each survives the wire, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import frames
from rpcsys.wire.byte_streams import CLOSE, DATA, EOF, EXIT, MORE, OPEN, RESIZE, SIGNAL, STOP, StreamMessage, parse
from rpcsys.wire.reader import FrameReader

NUMBERS = st.integers(0, 1 << 53)
SIZES = st.integers(1, 65535)
MESSAGES = st.one_of(
    st.tuples(st.sampled_from((DATA, EOF, STOP, OPEN)), NUMBERS).map(lambda made: StreamMessage(*made)),
    st.text(max_size=200).map(lambda why: StreamMessage(STOP, 3, why=why)),
    st.tuples(st.just(MORE), NUMBERS, st.integers(1, 1 << 40)).map(lambda made: StreamMessage(*made)),
    st.integers(1, 64).map(lambda number: StreamMessage(SIGNAL, amount=number)),
    st.integers(-64, 255).map(lambda status: StreamMessage(EXIT, amount=status)),
    st.tuples(SIZES, SIZES).map(lambda size: StreamMessage(RESIZE, rows=size[0], columns=size[1])),
    st.just(StreamMessage(CLOSE)),
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=3)
NAMES = st.sampled_from(("op", "s", "amount", "rows", "columns", "why"))
VALUES = JSON | st.sampled_from((DATA, EOF, MORE, SIGNAL, EXIT, RESIZE, OPEN, STOP, CLOSE))


def received(fields, body=b""):
    (frame,) = FrameReader().feed(b"".join(map(bytes, frames.pack(frames.CHUNK, 7, *_parts(fields, body)))))
    return frame


def _parts(fields, body):
    return frames.encode_head(fields)[0], (body,)


@given(MESSAGES)
def test_a_message_survives_the_wire(message):
    frame = received(message.fields())
    assert parse(frame) == message
    assert parse(frame) is parse(frame)


@given(st.dictionaries(NAMES, VALUES), st.binary(max_size=3))
def test_anything_is_a_message_or_refused(fields, body):
    try:
        message = parse(received(fields, body))
    except ProtocolError:
        pass
    else:
        assert parse(received(message.fields(), body)) == message


def test_only_data_has_a_body():
    assert parse(received({"s": 1}, b"x")).op == DATA
    with pytest.raises(ProtocolError, match="with data"):
        parse(received({"op": EOF, "s": 1}, b"x"))
