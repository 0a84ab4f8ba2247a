"""Buffers beside a description, aligned so that they can be mapped."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.module import packed
from rpcsys.module.layout import FormatError


def joined(about, buffers, offset=0):
    return b"".join(packed.pack(about, buffers, offset))


@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(0, 10_000), st.text())
def test_round_trip(buffers, offset, text):
    about, found = packed.unpack(memoryview(joined({"text": text}, buffers, offset)))
    assert about == {"text": text}
    assert [bytes(view) for view in found] == buffers


@pytest.mark.parametrize("offset", [0, 1, 57, 4095, 4096, 12345])
def test_large_buffers_begin_on_a_page_and_small_ones_on_64_bytes(offset):
    buffers = [bytes([i + 1]) * size for i, size in enumerate((70_000, 3, 5, 100_000, 0, 7))]
    blob = bytes(offset) + joined({}, buffers, offset)
    for buffer in buffers:
        if buffer:
            place = blob.index(buffer)
            assert place % (4096 if len(buffer) > 1 << 16 else 64) == 0


def test_buffers_are_not_copied():
    weights = bytearray(1 << 20)
    pieces = packed.pack({}, [memoryview(weights)], 0)
    assert pieces[-1].obj is weights


def test_every_cut_is_an_error():
    blob = joined({"a": 1}, [b"x" * 10, b"y" * 10])
    for size in range(len(blob)):
        with pytest.raises(FormatError):
            packed.unpack(memoryview(blob)[:size])


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_byte(place, value):
    blob = bytearray(joined({"a": [1, {}]}, [b"x" * 10, b"y"]))
    blob[place] = value
    with contextlib.suppress(FormatError):
        packed.unpack(memoryview(blob))


@pytest.mark.parametrize(
    "text",
    [b"[]", b"{}", b'{"about":{},"sizes":3}', b'{"about":{},"sizes":[-1]}', b'{"about":{},"sizes":[true]}',
     b'{"about":{},"sizes":[1e3]}', b'{"about":[],"sizes":[]}', b"\xff", b"[" * 100_000, b"9" * 10_000, b""],
)  # fmt: skip
def test_invalid_heads_are_refused(text):
    head = len(text).to_bytes(8, "little") + (16 + len(text)).to_bytes(8, "little")
    with pytest.raises(FormatError):
        packed.unpack(memoryview(head + text))
