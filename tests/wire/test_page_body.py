"""Pages inside frames."""

from __future__ import annotations

import os

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.wire import page_body


@pytest.mark.parametrize("body", [b"", b"x", "Ü".encode() * 1000, os.urandom(100_000), bytes(page_body.MOST)])
def test_a_page_comes_back(body: bytes) -> None:
    assert page_body.unpack(page_body.pack(body)) == body


def test_a_large_page_is_small_in_its_frame() -> None:
    assert len(page_body.pack(b'{"key": "rpi4"}' * 100_000)) < 100_000


@pytest.mark.parametrize(
    "text", ["", "*", "Ü", "AAAA", page_body.pack(b"whole")[:-4], page_body.pack(bytes(page_body.MOST + 1))]
)
def test_what_is_no_page_is_refused_in_bounded_memory(text: str) -> None:
    with pytest.raises(ProtocolError, match="a page that"):
        page_body.unpack(text)
