"""Receiving ahead: an expected frame is received in place, and any other frame stays intact."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import frames
from rpcsys.wire.frames import array_maker
from rpcsys.wire.limits import Limits
from rpcsys.wire.memory import Pool
from rpcsys.wire.reader import FrameReader


def address(buffer) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def call(number: int, size: int, fill: int, function: str = "f") -> bytes:
    """A frame with ``size`` bytes of ``fill``; with none, a frame without a body that holds the number instead."""
    argument = np.full(size, fill, np.uint8) if size else fill
    return b"".join(map(bytes, frames.encode(frames.CALL, number, {"f": function, "a": [argument]})))


def receive(source: FrameReader, data: bytes, most: int = 1 << 30) -> list[frames.Frame]:
    """The frames of ``data``, given at most ``most`` bytes at a time."""
    return [frame for start in range(0, len(data), most) for frame in source.feed(data[start : start + most])]


def contents(found: list[frames.Frame]) -> list[tuple[int, str, int, int]]:
    return [
        (frame.call_id, frame.get("f"), len(frame.buffers[0]), frame.buffers[0][0])
        if frame.buffers
        else (frame.call_id, frame.get("f"), 0, frame.get("a")[0])
        for frame in found
    ]


def read(source: FrameReader, data: bytes, most: int = 1 << 30) -> list[frames.Frame]:
    """`receive` by `FrameReader.read`, from a socket that is sometimes empty."""
    found = []
    calls = 0

    def fill(place: memoryview, _: int, flags: int) -> int:
        nonlocal data, calls
        calls += 1
        if calls % 3 == 0:
            raise BlockingIOError
        count = min(len(place), len(data), most)
        place[:count] = data[:count]
        data = data[count:]
        return count

    while data:
        try:
            frame = source.read(fill)
        except BlockingIOError:
            continue
        while frame is not None:
            found.append(frame)
            frame = source.next() if source.unread else None
    return found


WAYS = (receive, read)
SIZES = (0, 1000, 30_000, 65_000, 70_000, 300_000)


def test_the_end_of_a_stream_is_an_eof_error():
    with pytest.raises(EOFError):
        FrameReader().read(lambda place, size, flags: 0)


def test_a_frame_that_is_kept_is_not_overwritten_by_the_next():
    source = FrameReader()
    kept = [frame for number in range(5) for frame in receive(source, call(number, 50_000, number))]
    assert [bytes(frame.buffers[0]) for frame in kept] == [bytes([number]) * 50_000 for number in range(5)]


KEEP = {
    "nothing": lambda frame: None,
    "frame": lambda frame: frame,
    "made": lambda frame: array_maker(frame.parsed.head["a"][0])(frame),
    "part of what was made": lambda frame: array_maker(frame.parsed.head["a"][0])(frame)[5:].reshape(1, -1),
    "array": lambda frame: np.frombuffer(frame.buffers[0], np.uint8),
    "slice": lambda frame: frame.buffers[0][7:],
}


@example(300, [("frame", 0)] * 9)
@example(300, [("made", 0)] * 9)
@given(
    st.sampled_from([300, 30_000, 2_000_000]),
    st.lists(st.tuples(st.sampled_from(sorted(KEEP)), st.integers(0, 3)), max_size=30),
)
def test_memory_is_reused_only_without_references(size, steps):
    """Later frames never overwrite a frame, or a part of it, that is kept in any form."""
    source, kept = FrameReader(pool=Pool(cap=6 << 20)), []
    for number, (how, dropped) in enumerate(steps):
        kept += [(number, KEEP[how](frame)) for frame in read(source, call(number, size, number))]
        del kept[:dropped]
        for old, what in kept:
            if isinstance(what, frames.Frame):
                assert what.call_id == old
                what = what.buffers[0]
            if what is not None:
                assert (np.frombuffer(what, np.uint8) == old).all()


def test_memory_taken_ahead_is_no_more_than_the_last_body():
    source = FrameReader(Limits(max_body=100_000))
    receive(source, call(1, 90_000, 1))
    with pytest.raises(ProtocolError):
        receive(source, call(2, 110_000, 2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [1, 7, 23, 24, 25, 80, 1000, 65_536])
def test_frames_are_decoded_from_pieces_of_any_size(way, most):
    data = b"".join(call(number, 30_000, number) for number in range(1, 4))
    assert contents(way(FrameReader(), data, most)) == [(n, "f", 30_000, n) for n in range(1, 4)]


@given(
    st.lists(
        st.tuples(st.sampled_from(SIZES), st.integers(0, 255), st.sampled_from(["f", "g", "longer"])), max_size=12
    ),
    st.randoms(use_true_random=False),
    st.sampled_from(WAYS),
)
def test_any_order_of_frames_in_any_pieces(plan, chance: random.Random, way):
    data = b"".join(call(number, *frame) for number, frame in enumerate(plan))
    source = FrameReader()
    found = []
    while data:
        count = chance.choice((1, 24, 100, 30_100, 65_536, 100_000, 700_000))
        found += way(source, data[:count])
        data = data[count:]
    assert contents(found) == [(number, name, size, fill) for number, (size, fill, name) in enumerate(plan)]


def test_an_unexpected_frame_may_be_as_large_as_the_expected_one():
    source = FrameReader()
    receive(source, call(1, 300_000, 1))
    small = b"".join(call(number, 20_000, number, "g") for number in range(2, 12))
    assert contents(receive(source, small)) == [(number, "g", 20_000, number) for number in range(2, 12)]
    assert contents(receive(source, call(20, 300_000, 5))) == [(20, "f", 300_000, 5)]


def test_kept_arrays_do_not_overlap():
    """There are more of them than mappings to receive into."""
    source = FrameReader()
    kept = [frame for number in range(20) for frame in receive(source, call(number, 1000, number))]
    assert [set(bytes(frame.buffers[0])) for frame in kept] == [{number} for number in range(20)]


@given(
    st.lists(st.tuples(st.sampled_from([frames.LOG, frames.RESULT, frames.PONG]), st.integers(0, 200)), max_size=30),
    st.integers(1, 3000),
)
def test_skip_drops_frames_of_its_kind_only(drawn, most):
    sent = [
        b"".join(map(bytes, frames.encode(kind, number, {"a": bytes(size)} if size % 2 else {})))
        for number, (kind, size) in enumerate(drawn, 1)
    ]
    source, found, skipped = FrameReader(), [], 0
    data = b"".join(sent)
    while data:
        part = io.BytesIO(data[:most])
        frame = source.read(lambda place, *_, part=part: part.readinto(place))
        data = data[part.tell() :]
        while frame is not None:
            found.append(frame.call_id)
            count, dropped = source.skip(frames.LOG)
            assert bool(count) == bool(dropped)
            skipped += count
            frame = source.next() if source.unread else None
    kept = [number for number, (kind, _) in enumerate(drawn, 1) if kind != frames.LOG]
    assert [number for number in found if number in kept] == kept
    assert len(found) + skipped == len(sent)
