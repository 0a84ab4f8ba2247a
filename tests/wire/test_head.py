"""Received heads: the sizes of their buffers, and their memory. The forms are tested with `values`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.wire import head

TENSOR = {"@": "tensor", "dtype": "float32", "shape": [2, 3], "buffer": 0}


def parsed(value):
    return head.parse(json.dumps(value).encode())


def test_no_head_is_an_empty_one():
    assert (head.parse(b"").head, head.parse(b"").sizes) == ({}, ())


def test_the_sizes_of_the_buffers():
    found = parsed({"a": [TENSOR, {"@": "bytes", "size": 5, "buffer": 1}], "b": {"@": "text", "size": 7, "buffer": 2}})
    assert found.sizes == (24, 5, 7)
    assert found.body_bytes == 36
    assert found.weight > 36
    assert found.made == 0


def test_the_memory_of_decoded_values_is_counted():
    assert parsed({"a": {"@": "out", "dtype": "uint8", "shape": [1000]}}).made == 1000
    encoded = {"@": "encoded", "how": "int8", "dtype": "float32", "shape": [100], "size": 108, "buffer": 0}
    assert parsed({"a": encoded}).made == 400


@pytest.mark.parametrize(
    "value",
    [
        {"a": {**TENSOR, "buffer": 1}},
        {"a": {**TENSOR, "buffer": False}},
        {"a": {**TENSOR, "shape": [-1]}},
        {"a": {**TENSOR, "shape": [1 << 62, 4]}},
        {"a": {**TENSOR, "shape": [1] * (head.MAX_RANK + 1)}},
        {"a": {**TENSOR, "dtype": "object"}},
        {"a": {"@": "inout", "value": 1}},
        {"a": {"@": "newest"}},
        {"a": {"@": []}},
        [1],
    ],
)
def test_an_invalid_head_is_refused(value):
    with pytest.raises(ProtocolError):
        parsed(value)


def test_depth_and_memory_are_bounded():
    with pytest.raises(LimitExceeded):
        head.parse(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}")
    with pytest.raises(LimitExceeded, match="send long lists as arrays"):
        head.parse(b'{"a":[' + b"1," * 700_000 + b"1]}")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_head_or_a_documented_error(data):
    problem = ""
    try:
        assert type(head.parse(data).head) is dict
    except ProtocolError as error:
        problem = str(error)
    assert len(problem) <= 200
