"""Receiving ahead: the frame that is expected lands in its place, and any other one is not harmed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError
from rpcsys.wire import frames, reader
from rpcsys.wire.reader import FrameReader


def address(buffer) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def call(number: int, size: int, fill: int, function: str = "f") -> bytes:
    array = np.full(size, fill, np.uint8)
    return b"".join(map(bytes, frames.encode(frames.CALL, number, {"f": function, "a": [array]})))


def receive(source: FrameReader, data: bytes, most: int = 1 << 30) -> list[frames.Frame]:
    """What a socket's owner does: ahead where something is expected, at most ``most`` bytes at a time."""
    found = []
    while data:
        count = 0
        for place in source.ahead() if source.expected is not None and source.idle else [source.space()]:
            part = data[count : min(count + len(place), most)]
            place[: len(part)] = part
            count += len(part)
        data = data[count:]
        frame = source.received(count)
        while frame is not None:
            found.append(frame)
            frame = source.next() if source.unread else None
    return found


def contents(found: list[frames.Frame]) -> list[tuple[int, str, int, int]]:
    return [(frame.call_id, frame.get("f"), len(frame.buffers[0]), frame.buffers[0][0]) for frame in found]


SIZES = (1000, 30_000, 65_000, 70_000, 300_000)


@pytest.mark.parametrize("size", [30_000, 65_536, 1_000_000])
def test_the_second_of_its_kind_is_received_in_its_place(size):
    source = FrameReader()
    receive(source, call(1, size, 7))
    assert source.expected is not None
    _, body = source.ahead()
    place = address(body)
    (frame,) = receive(source, call(2, size, 8))
    assert contents([frame]) == [(2, "f", size, 8)]
    assert address(frame.buffers[0]) == place
    assert place % 64 == 0


def test_small_bodies_are_not_looked_ahead_for():
    source = FrameReader()
    receive(source, call(1, 1000, 7))
    assert source.expected is None


def test_a_frame_that_is_kept_is_not_overwritten_by_the_next():
    source = FrameReader()
    kept = [frame for number in range(5) for frame in receive(source, call(number, 50_000, number))]
    assert [bytes(frame.buffers[0]) for frame in kept] == [bytes([number]) * 50_000 for number in range(5)]


def test_memory_taken_ahead_is_no_more_than_the_last_body():
    source = FrameReader(max_body=100_000)
    receive(source, call(1, 90_000, 1))
    with pytest.raises(ProtocolError):
        receive(source, call(2, 110_000, 2))


@pytest.mark.parametrize("most", [1, 7, 23, 24, 25, 80, 1000, 65_536])
def test_whatever_the_pieces(most):
    data = b"".join(call(number, 30_000, number) for number in range(1, 4))
    assert contents(receive(FrameReader(), data, most)) == [(n, "f", 30_000, n) for n in range(1, 4)]


@given(
    st.lists(
        st.tuples(st.sampled_from(SIZES), st.integers(0, 255), st.sampled_from(["f", "g", "longer"])),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_any_order_of_frames_in_any_pieces(plan, chance: random.Random):
    data = b"".join(call(number, *frame) for number, frame in enumerate(plan))
    source = FrameReader()
    found = []
    while data:
        count = chance.choice((1, 24, 100, 30_100, 65_536, 100_000))
        found += receive(source, data[:count])
        data = data[count:]
    assert contents(found) == [(number, name, size, fill) for number, (size, fill, name) in enumerate(plan)]


def test_the_scratch_holds_whatever_was_received_ahead():
    """The bound that makes an unexpected frame harmless: no more is received ahead than fits behind the head."""
    source = FrameReader()
    receive(source, call(1, 10_000_000, 1))
    assert sum(map(len, source.ahead())) <= reader._SCRATCH
