"""Cached heads equal new ones."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ValueNotSupported
from rpcsys.wire import frames
from rpcsys.wire.frames import FrameTemplate, HeadCache, signature
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.tensor import Tensor
from tests.wire import strategies

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="heads are remembered on little-endian machines")

EMPTY = FrameTemplate(frames.CALL, b"{}")

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    strategies.laid_out(),
    st.binary(max_size=9).map(lambda data: Tensor("uint8", (len(data),), data)),
    st.binary(min_size=4, max_size=4).map(lambda data: Tensor("float32", (1,), data)),
    st.binary(min_size=4, max_size=4).map(lambda data: Tensor("float32", (1, 1), data)),
)


def known(args):
    key, buffers = signature(("f",), args)
    return None if key is None else (key, buffers)


def remembered(args):
    table, found = HeadCache(), known(args)
    if found is not None:
        table.put(found[0], EMPTY)
    return bool(table)


@given(st.lists(st.lists(st.one_of(plain, strategies.leaves), max_size=3), max_size=12))
def test_a_cached_head_equals_a_new_one(calls):
    table = HeadCache()
    for args in calls:
        made = frames.encode(frames.CALL, 7, {"f": "f", "a": args}, deadline_ms=9)
        template, _ = frames.template(frames.CALL, {"f": "f", "a": args})
        found = known(args)
        if found is None:
            continue
        key, memory = found
        table.put(key, template)
        if key in table:
            assert b"".join(table[key].pieces(7, memory, 9)) == b"".join(made)


@pytest.mark.parametrize(
    "arg",
    [
        np.arange(3),
        np.ones((2, 3), "f4"),
        np.ones(2, bool),
        np.ones((1, 1), "u8"),
        1,
        True,
        None,
        np.float64(1).reshape(1),
        np.zeros((0, 2)),
    ],
)
def test_heads_of_common_arguments_are_cached(arg):
    assert remembered([arg])


@pytest.mark.parametrize(
    "arg",
    [1.5, "text", b"bytes", [1], np.ones((2, 3)).T, np.ones(2, ">f4"), np.array(["a"]), np.array(["a"], object),
     np.ones(2, "M8[s]"), Tensor("strings", (1,), ["a"]), Tensor("uint8", (1,), b"x", "gpu:0"),
     np.float32(2), np.zeros((), ml_dtypes.float8_e5m2)],
)  # fmt: skip
def test_heads_that_depend_on_more_are_not_cached(arg):
    assert not remembered([arg])


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000])
@pytest.mark.parametrize("before", [(), (np.arange(5),), (7, memoryview(b"x" * 6000))])
def test_arrays_are_sent_from_where_they_are(size, before):
    array = np.arange(size, dtype=np.uint8).reshape(1, size)
    template, _ = frames.template(frames.CALL, {"a": [*before, array]})
    _, buffers = signature(None, (*before, array))
    if size:
        pieces = template.pieces(3, buffers)
        (frame,) = FrameReader().feed(b"".join(pieces))
        *others, back = frame.get("a")
        assert (frame.call_id, len(others), back.tolist()) == (3, len(before), array.tolist())
        assert np.shares_memory(np.frombuffer(pieces[-1], np.uint8), array)


def test_equal_scalars_of_different_types_have_different_heads():
    keys = {known([value])[0] for value in (0, False, 1, True, None)}
    assert len(keys) == 5


def test_a_tensor_of_the_wrong_length_gets_no_cached_head():
    right, wrong = Tensor("float32", (1,), b"1234"), Tensor("float32", (1,), b"123")
    assert known([right])[0] != known([wrong])[0]
    with pytest.raises(ValueNotSupported):
        frames.encode_head({"a": [wrong]})


def test_the_cache_is_bounded():
    table = HeadCache()
    for number in range(3 * frames.REMEMBERED_HEADS):
        table.put((number,), EMPTY)
        assert len(table) <= frames.REMEMBERED_HEADS
    table.put(("long",), FrameTemplate(frames.CALL, b"x" * (frames.REMEMBERED_BYTES + 1)))
    table.put(("k" * 5000,), EMPTY)
    assert table.get(("long",)) is None
    assert table.get(("k" * 5000,)) is None
    assert table.get((3 * frames.REMEMBERED_HEADS - 1,)) is EMPTY


def test_a_big_endian_machine_caches_nothing(monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    table = HeadCache()
    table.put((1,), EMPTY)
    assert table.get((1,)) is None
