"""Frames whole, byte by byte, in random slices and with trailing bytes; then arbitrary bytes, in bounded memory."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire import frames
from rpcsys.wire.frames import HEADER, HEADER_BYTES
from rpcsys.wire.head import MAX_PARSED, parse
from rpcsys.wire.limits import Limits
from rpcsys.wire.memory import ALIGNMENT
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.tensor import Tensor
from tests.wire import strategies
from tests.wire.strategies import same


def joined(pieces):
    return b"".join(map(bytes, pieces))


def read(data, cuts, reader=None):
    """All frames of ``data``, received in slices that end at ``cuts``."""
    reader = reader or FrameReader()
    found = []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        found += reader.feed(data[start:end])
    return found, reader


def address(buffer):
    return np.frombuffer(buffer, "u1").__array_interface__["data"][0]


ARRAY = np.arange(5, dtype="f4")
SAMPLES = [
    (frames.HELLO, 0, {"version": 1}, b""),
    (frames.PING, 7, {}, b""),
    (frames.CALL, 1, {"f": "testing.echo", "a": [ARRAY, np.zeros((0, 3)), b"bytes", "text"]}, b""),
    (frames.CALL, 2, {"f": "f", "a": [np.ones(70_000), b"", np.ones(3, "u1")]}, b""),
    (frames.RESULT, 3, {"r": None, "w": [np.ones(300_000)]}, b""),
    (frames.CHUNK, 4, {}, b"piece"),
    (frames.CHUNK, 4, {"sha256": "x"}, b""),
    (frames.CHUNK, 4, {}, b"p" * frames.MAX_CHUNK),
]


@pytest.mark.parametrize("step", [None, 1, 23, 25, 8191])
@pytest.mark.parametrize(("kind", "call_id", "fields", "body"), SAMPLES)
def test_a_frame_whole_in_pieces_and_with_more_behind_it(kind, call_id, fields, body, step):
    head, buffers = frames.encode_head(fields) if fields else (b"", [])
    data = joined(frames.pack(kind, call_id, head, [*buffers, body] if body else buffers, deadline_ms=9, flags=1))
    reader = FrameReader()
    if step and len(data) > 1 << 20:
        step *= 1009  # millions of bytes one by one show no more
    trail = joined(frames.pack(frames.PONG, 5))
    found, _ = read(data + trail[:10], range(step, len(data), step) if step else (), reader)
    assert len(found) == 1
    frame = found[0]
    assert (frame.kind, frame.call_id, frame.deadline_ms, frame.flags) == (kind, call_id, 9, 1)
    assert same(fields, frame.fields())
    if kind == frames.CHUNK:
        assert bytes(frame.buffers[0]) == body
    assert reader.missing
    assert [frame.kind for frame in reader.feed(trail[10:])] == [frames.PONG]
    assert not reader.missing


@given(st.lists(strategies.values, min_size=1, max_size=4), st.data())
@settings(max_examples=50)
def test_values_come_back_through_random_slices(sent, data):
    stream = b"".join(
        joined(frames.encode(frames.CALL, number, {"v": value}, deadline_ms=number))
        for number, value in enumerate(sent)
    )
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    found, reader = read(stream, cuts)
    assert [frame.call_id for frame in found] == list(range(len(sent)))
    assert all(same(value, frame.get("v")) for value, frame in zip(sent, found, strict=True))
    assert not reader.missing


@pytest.mark.parametrize("sizes", [[1, 2, 3], [0, 5, 0], [100, 70_000, 3], [(1 << 20) + 1, 7, 1 << 20, 3 << 20]])
def test_every_array_starts_on_a_boundary(sizes):
    sent = [np.full(size, size % 251, "u1") for size in sizes]
    (frame,), _ = read(joined(frames.encode(frames.CALL, 1, {"a": sent})), [30, 3000])
    for given_array, buffer in zip(sent, frame.buffers, strict=True):
        assert bytes(buffer) == given_array.tobytes()
        if len(buffer):
            assert address(buffer) % ALIGNMENT == 0


def test_a_chunk_starts_on_a_boundary():
    (frame,), _ = read(joined(frames.pack(frames.CHUNK, 1, b"", [b"x" * 100])), [])
    assert address(frame.buffers[0]) % ALIGNMENT == 0


def test_received_arrays_can_be_written_to_and_share_nothing():
    stream = joined(frames.encode(frames.CALL, 1, {"a": ARRAY})) * 2
    first, second = (frame.get("a").numpy() for frame in read(stream, [])[0])
    first[:] = 9
    assert second.tolist() == ARRAY.tolist()


def test_equal_heads_are_parsed_once():
    stream = b"".join(joined(frames.encode(frames.CALL, number, {"f": "f", "a": [1]})) for number in (1, 2))
    first, second = read(stream, [])[0]
    assert first.parsed is second.parsed
    assert (first.call_id, second.call_id) == (1, 2)
    first.fields()["a"].append(2)
    assert second.fields() == {"f": "f", "a": [1]}


def test_remembered_heads_are_bounded():
    reader = FrameReader()
    for number in range(3 * frames.REMEMBERED_HEADS):
        reader.feed(joined(frames.encode(frames.CALL, 0, {"a": number})))
        assert len(reader._heads) <= frames.REMEMBERED_HEADS
    known = len(reader._heads)
    reader.feed(joined(frames.encode(frames.CALL, 0, {"a": "x" * frames.REMEMBERED_BYTES})))
    assert len(reader._heads) == known


def test_a_long_head_leaves_no_large_buffer_behind():
    reader = FrameReader()
    long = joined(frames.encode(frames.CALL, 0, {"a": list(range(100_000))}))
    (frame,) = reader.feed(long)
    assert frame.get("a") == list(range(100_000))
    assert len(reader._scratch) <= 64 << 10


def test_default_of_an_absent_field():
    (frame,), _ = read(joined(frames.encode(frames.HELLO, 0, {"version": None})), [])
    assert (frame.get("version", 1), frame.get("limit", 2), frame.get("more")) == (None, 2, None)
    assert "HELLO" in repr(frame)


def test_a_body_above_the_limit_is_not_packed():
    class Long(bytes):
        def __len__(self):
            return frames.MAX_BODY + 1

    with pytest.raises(LimitExceeded):
        frames.pack(frames.CALL, 1, b"{}", [Long()])


def header(head=0, kind=frames.CALL, flags=0, zero=0, body=0):
    return HEADER.pack(head, kind, flags, zero, 0, 1, body)


TENSOR = b'{"a":{"@":"tensor","dtype":"uint8","shape":[%d],"buffer":0}}'


def tensor_frame(size, body=None, kind=frames.CALL):
    head = TENSOR % size
    return header(len(head), kind, body=size if body is None else body) + head


BROKEN = [
    ("kind 0", header(kind=0)),
    ("kind 12", header(kind=12)),
    ("reserved", header(zero=1)),
    ("head too long", header(head=frames.MAX_HEAD + 1)),
    ("head of 4 GB", header(head=0xFFFFFFFF)),
    ("body too long", header(body=frames.MAX_BODY + 1)),
    ("body of 16 EB", header(body=2**64 - 1)),
    ("body without a head", header(body=1)),
    ("body longer than its head says", tensor_frame(10, 11)),
    ("body shorter than its head says", tensor_frame(10, 9)),
    ("body of no bytes where the head names some", tensor_frame(10, 0)),
    ("chunk too long", header(kind=frames.CHUNK, body=frames.MAX_CHUNK + 1)),
    ("chunk whose head names a buffer", tensor_frame(10, kind=frames.CHUNK)),
    ("chunk whose head names an empty buffer", tensor_frame(0, kind=frames.CHUNK)),
    ("head that is no JSON", header(head=3) + b"{a}"),
    ("head that is a list", header(head=2) + b"[]"),
]


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("data", [data for _, data in BROKEN], ids=[name for name, _ in BROKEN])
def test_what_breaks_a_rule_is_a_protocol_error(data, step):
    with pytest.raises(ProtocolError):
        read(data, range(1, len(data)) if step else [])


@pytest.mark.parametrize("size", [1 << 40, 1 << 50])
def test_more_memory_than_the_system_has_is_refused(size):
    with pytest.raises(LimitExceeded, match="no memory here for"):
        read(tensor_frame(size), [], FrameReader(Limits(max_body=1 << 60)))


@pytest.mark.parametrize("item", [b"[],", b"{},", b'{"":0},', b"[[0]],", b'"\xc4\x80",', b"9e9,"])
def test_the_memory_of_a_head_is_bounded_before_it_is_parsed(item):
    small = b'{"a":[' + item * (100_000 // len(item)) + b"0]}"
    tracemalloc.start()
    try:
        parsed = parse(small)
        assert tracemalloc.get_traced_memory()[0] <= parsed.weight
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(LimitExceeded, match="send long lists as arrays"):
            parse(b'{"a":[' + item * (4_000_000) + b"0]}")
        assert tracemalloc.get_traced_memory()[1] - before < (4_000_000 * len(item)) * 3
    finally:
        tracemalloc.stop()


def test_a_head_of_10000_rows_is_accepted():
    rows = [{f"class{number}": 0.5 for number in range(50)} for _ in range(10_000)]
    head, _ = frames.encode_head({"r": rows})
    assert parse(head).weight < MAX_PARSED


def test_a_head_that_the_receiver_would_refuse_is_not_sent():
    with pytest.raises(LimitExceeded, match="send long lists as arrays"):
        frames.encode_head({"a": [0] * 1_000_000})


def test_a_readers_own_limit_of_heads():
    with pytest.raises(LimitExceeded, match=r"a head of 101 bytes \(at most 100 here\)"):
        read(header(head=101), [], FrameReader(Limits(max_head=100)))


def test_a_readers_own_limit_of_bodies():
    with pytest.raises(LimitExceeded, match=r"a body of 101 bytes \(at most 100 here\)"):
        read(tensor_frame(101), [], FrameReader(Limits(max_body=100)))
    assert len(read(tensor_frame(100) + b"x" * 100, [], FrameReader(Limits(max_body=100)))[0]) == 1


@pytest.mark.parametrize(
    "data",
    [
        header(head=frames.MAX_HEAD),
        header(head=0xFFFFFFFF),
        header(kind=frames.CHUNK, body=1 << 50),
        tensor_frame(1 << 34),
        tensor_frame(1 << 20),
    ],
)
def test_an_announced_length_takes_no_memory_above_its_limit(data):
    """A mapping for a large array is address space, and takes memory only as bytes arrive: not in this count."""
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.feed(data)
    except ProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3 << 20


def test_announced_gigabytes_take_no_memory():
    reader = FrameReader()
    before = resident()
    reader.feed(tensor_frame(8 << 30))
    assert resident() - before < 16 << 20


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


VALID = joined(frames.encode(frames.CALL, 1, {"f": "g", "a": [ARRAY, (1, {2: 3.5}), "é", b"raw"]}))


@given(
    st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(VALID)),
    st.integers(1, 64),
)
@settings(max_examples=300)
def test_a_damaged_frame_is_a_frame_or_a_protocol_error(changes, length, step):
    data = bytearray(VALID)
    for index, byte in changes:
        data[index] = byte
    accept(bytes(data[:length]) + VALID, step)


@given(st.integers(0, 13), st.binary(max_size=200), st.integers(0, 300), st.binary(max_size=300), st.integers(1, 99))
@settings(max_examples=300)
def test_a_right_header_before_anything_is_a_frame_or_a_protocol_error(kind, head, body_bytes, rest, step):
    accept(header(len(head), kind, body=body_bytes) + head + rest, step)


@given(st.binary(max_size=400), st.integers(1, 99))
def test_any_bytes_are_frames_or_a_protocol_error(data, step):
    accept(data, step)


def accept(data, step):
    """Accept ``data``, or raise a documented error: the rule of this protocol."""
    try:
        for frame in read(data, range(step, len(data), step), FrameReader(Limits(max_body=1 << 24)))[0]:
            for item in frame.fields().values():
                if type(item) is Tensor:
                    assert item.nbytes == len(item.data)
    except ProtocolError:
        pass


def test_the_header_is_as_documented():
    assert HEADER_BYTES == struct.calcsize("<IBBHIIQ") == 24
    data = joined(frames.pack(frames.CALL, 0x01020304, b"{}", [b"\x05"], deadline_ms=0x0A, flags=1))
    assert data.hex(" ") == ("02 00 00 00 02 01 00 00 0a 00 00 00 04 03 02 01 01 00 00 00 00 00 00 00 7b 7d 05")
