"""Compressed bodies."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway.content_coding import accepted, coding_of, packed, unpacked
from rpcsys.wire.inference import InferenceError


@given(st.lists(st.binary(max_size=100), max_size=5), st.sampled_from(["gzip", "deflate"]))
def test_both_ways(pieces: list[bytes], coding: str) -> None:
    whole = b"".join(pieces)
    assert unpacked(packed(pieces, coding), coding, 1000) == whole
    library = gzip.decompress if coding == "gzip" else zlib.decompress
    assert library(packed(pieces, coding)) == whole


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_error(data: bytes) -> None:
    status = 0
    try:
        unpacked(data, "gzip", 1000)
    except InferenceError as error:
        status = error.status
    assert status in (0, 400, 413)


def test_limits_and_ends() -> None:
    whole = gzip.compress(bytes(1000))
    assert len(unpacked(whole, "gzip", 1000)) == 1000
    for data, limit, status in ((whole, 999, 413), (whole[:-1], 1000, 400), (whole + b"x", 1000, 400)):
        with pytest.raises(InferenceError) as caught:
            unpacked(data, "gzip", limit)
        assert caught.value.status == status


def test_the_fields() -> None:
    assert coding_of({}) == coding_of({"content-encoding": "identity"}) == ""
    assert coding_of({"content-encoding": "GZIP"}) == "gzip"
    with pytest.raises(InferenceError, match="gzip and deflate"):
        coding_of({"content-encoding": "zstd"})
    for text, coding in {
        "": "",
        "br": "",
        "br, gzip": "gzip",
        "deflate;q=0.5": "deflate",
        "gzip;q=0, deflate": "deflate",
        "identity": "",
    }.items():
        assert accepted({"accept-encoding": text}) == coding
