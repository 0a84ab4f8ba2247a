"""Frames whole, byte by byte and with trailing bytes; and JSON, as strict as it is meant."""

import json
import struct
import tracemalloc

import pytest

from rpcsys.errors import LimitExceeded, ProtocolError, ValueNotSupported
from rpcsys.wire.tracker_frames import MAGIC_BYTES, MAX_FRAME, FrameReader, decode_json, encode


def raw(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<i", len(data)) + data


def frames(reader):
    return list(iter(reader.next, None))


# --- frames ------------------------------------------------------------------------------------

STREAM = MAGIC_BYTES + raw("[1]") + raw('[4, "rpi4", "", 1]') + raw("[6]")
FRAMES = [b"[1]", b'[4, "rpi4", "", 1]', b"[6]"]


def test_a_stream_at_once():
    reader = FrameReader()
    reader.feed(STREAM)
    assert frames(reader) == FRAMES
    assert not reader.magic_due
    assert not reader.partial


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11])
def test_a_stream_in_pieces(step):
    reader = FrameReader()
    got = []
    for start in range(0, len(STREAM), step):
        reader.feed(STREAM[start : start + step])
        got += frames(reader)
    assert got == FRAMES


def test_what_trails_is_kept():
    reader = FrameReader()
    reader.feed(STREAM + b"\x05\x00\x00\x00[")
    assert frames(reader) == FRAMES
    assert reader.partial
    reader.feed(b"1,2")
    assert frames(reader) == []
    reader.feed(b"]" + raw("0")[:3])
    assert frames(reader) == [b"[1,2]"]
    reader.feed(raw("0")[3:])
    assert frames(reader) == [b"0"]


def test_half_a_magic_is_awaited_and_a_wrong_one_refused_at_its_first_wrong_byte():
    reader = FrameReader()
    reader.feed(MAGIC_BYTES[:3])
    assert reader.next() is None
    assert reader.magic_due
    reader.feed(b"\x01")
    with pytest.raises(ProtocolError, match="not a tracker connection"):
        reader.next()
    reader = FrameReader()
    reader.feed(b"G")
    with pytest.raises(ProtocolError, match="not a tracker connection"):
        reader.next()


@pytest.mark.parametrize("size", [0, -1, MAX_FRAME + 1, 2**31 - 1, -(2**31)])
def test_a_length_beyond_the_limit_is_refused_before_the_frame_comes(size):
    reader = FrameReader(magic=False)
    reader.feed(struct.pack("<i", size))
    with pytest.raises(LimitExceeded):
        reader.next()


def test_an_announced_frame_takes_no_memory_before_it_comes():
    tracemalloc.start()
    try:
        readers = [FrameReader(magic=False) for _ in range(50)]
        for reader in readers:
            reader.feed(struct.pack("<i", MAX_FRAME))
            assert reader.next() is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_long_stream_leaves_nothing_behind():
    reader = FrameReader()
    reader.feed(MAGIC_BYTES)
    tracemalloc.start()
    try:
        for _ in range(2000):
            reader.feed(raw("[" + "1," * 500 + "1]") * 2)
            assert len(frames(reader)) == 2
        assert tracemalloc.get_traced_memory()[0] < 1 << 16
    finally:
        tracemalloc.stop()


def test_a_message_too_long_for_a_frame_is_not_sent():
    with pytest.raises(LimitExceeded):
        encode(["x" * MAX_FRAME])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {"x": b"bytes"}])
def test_what_json_cannot_say_is_not_sent(value):
    with pytest.raises(ValueNotSupported):
        encode([4, "rpi4", "", value])


# --- JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [" [1]", "[1]\n", "\t[1] ", "[ 1 ]"])
def test_white_space_around_json_is_allowed(text):
    assert decode_json(text.encode()) == [1]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b" ", b"[", b"[1", b"[1]]", b"[1] x", b"{", b"nul", b"'a'", b"[1,]"),
        *(b"NaN", b"[Infinity]", b"[-Infinity]"),
        *(b"\xff", b'"\xed\xa0\x80"', b"[1]".decode().encode("utf-16")),
        *(b"[" * 100_000, b"[" * 33 + b"]" * 33, b'{"a":' * 40 + b"1" + b"}" * 40),
        *(b"9" * 4301, b"[" + b"9" * 4300 + b"9]", b"[" + b"1" * 500_000 + b"]"),
    ],
)
def test_what_is_not_strict_json_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        decode_json(data)


def test_json_as_deep_as_allowed():
    value = decode_json(b"[" * 32 + b"]" * 32)
    for _ in range(31):
        (value,) = value
    assert value == []
    wide = json.dumps([[n, {}] for n in range(100)]).encode()
    assert len(decode_json(wide)) == 100
