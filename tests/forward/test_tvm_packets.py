"""Whether a stream of TVM's packets ends within one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.forward.tvm_packets import TvmPackets


def packet(size: int) -> bytes:
    return struct.pack("<Q", size) + bytes(size)


@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(1, 30), max_size=60))
def test_ends_are_known_whatever_the_pieces(sizes: list[int], pieces: list[int]) -> None:
    stream, ends = b"".join(map(packet, sizes)), {0}
    for size in sizes:
        ends.add(max(ends) + 8 + size)
    followed, at = TvmPackets(), 0
    for piece in [*pieces, len(stream)]:
        data = memoryview(stream)[at : at + piece]
        if data:
            at += len(data)
            assert followed.partial(data) == (at not in ends)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1])
def test_any_length_is_only_counted(length: int) -> None:
    followed = TvmPackets()
    assert followed.partial(memoryview(struct.pack("<Q", length)))
    assert followed.partial(memoryview(bytes(1000)))
