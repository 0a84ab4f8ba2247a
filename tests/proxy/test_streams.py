"""Openings: whole, in any pieces, followed by other bytes; then random bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import LimitExceeded, ProtocolError
from rpcsys.proxy.streams import ProxyStream, send_first
from rpcsys.wire.handshake import MAX_GREETING, Greeting
from tests.proxy.streams import opening

LINK = struct.pack("<i", 0x2F271)


class Ends:
    """A `ProxyStream`, and the other end that sends to it."""

    def __init__(self) -> None:
        self.outer, self.inner = socket.socketpair()
        self.inner.setblocking(False)
        self.stream = ProxyStream(self.inner, ("::ffff:10.0.0.7", 5))

    def feed(self, data: bytes, step: int) -> bool:
        """Send in pieces of ``step`` bytes; whether the opening was whole by the last byte."""
        whole = False
        for start in range(0, len(data), step):
            self.outer.sendall(data[start : start + step])
            whole = whole or self.stream.read_opening()
        return whole

    def rest(self) -> bytes:
        """The unread bytes."""
        self.outer.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: self.inner.recv(4096), b""))

    def close(self) -> None:
        self.outer.close()
        self.inner.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_a_mapped_ipv4_address_is_shown_as_ipv4(ends: Ends) -> None:
    assert ends.stream.where == "10.0.0.7:5"
    assert ProxyStream(ends.inner, None).where == ":0"


def test_the_first_bytes_are_sent_whole_or_reported_as_failed(ends: Ends) -> None:
    assert send_first(ends.inner, bytearray(b"greeting"))
    assert ends.outer.recv(100) == b"greeting"
    assert not send_first(ends.inner, bytes(64 << 20))
    ends.outer.close()
    assert not send_first(ends.inner, b"greeting")


@pytest.mark.parametrize("step", [1, 3, 4, 5, 1000])
def test_bytes_after_a_greeting_stay_unread(ends: Ends, step: int) -> None:
    data = opening("server:a:b -server=7")
    assert ends.feed(data + b"what follows", step)
    assert ends.stream.greeting is not None
    assert ends.stream.greeting.key == "a:b"
    assert bytes(ends.stream.raw) == data
    assert ends.rest() == b"what follows"


@pytest.mark.parametrize("step", [1, 3, 4, 5, 1000])
def test_bytes_after_a_links_magic_stay_unread(ends: Ends, step: int) -> None:
    assert ends.feed(LINK + b"what follows", step)
    assert ends.stream.greeting is None
    assert bytes(ends.stream.raw) == LINK
    assert ends.rest() == b"what follows"


def test_half_an_opening_is_not_whole(ends: Ends) -> None:
    for part in (b"q", b"\xf2", b"\x0f\x00", b"\x08\x00\x00\x00", b"client:"):
        assert not ends.feed(part, 100)
    assert ends.feed(b"k", 1)
    assert ends.stream.greeting == Greeting("client", "k")


@pytest.mark.parametrize("data", [b"", b"q\xf2", LINK[:3], opening("client:k")[:9]])
def test_a_stream_may_end_early(ends: Ends, data: bytes) -> None:
    assert not ends.feed(data, 100)
    ends.outer.close()
    with pytest.raises(EOFError):
        ends.stream.read_opening()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"G", ProtocolError),
        (b"q\xf2\x02\x01", ProtocolError),
        (b"q\xf2\x03", ProtocolError),
        (b"\x16\x03\x02", ProtocolError),
        (opening("peer:k"), ProtocolError),
        (struct.pack("<ii", 0xFF271, -1), ProtocolError),
        (struct.pack("<ii", 0xFF271, MAX_GREETING + 1), LimitExceeded),
    ],
)
def test_an_invalid_opening_is_detected_at_once(ends: Ends, data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        ends.feed(data, 1)


@given(st.binary(max_size=60), st.sampled_from([b"", LINK, LINK[:2], opening("client:k")[:8]]), st.integers(1, 70))
def test_random_bytes_are_an_opening_or_an_error(data: bytes, start: bytes, step: int) -> None:
    ends = Ends()
    try:
        whole = ends.feed(start + data, step)
    except ProtocolError:
        return
    finally:
        ends.close()
    assert len(ends.stream.raw) <= 8 + MAX_GREETING
    assert (start + data).startswith(bytes(ends.stream.raw))
    assert whole or ends.stream.greeting is None


@pytest.mark.parametrize("step", [1, 2, 3, 4, 100])
def test_a_link_that_begins_with_tls_is_told_apart_and_no_byte_is_lost(ends: Ends, step: int) -> None:
    hello = b"\x16\x03\x01\x02\x00" + bytes(100)
    assert ends.feed(hello, step)
    assert ends.stream.encrypted
    assert ends.stream.greeting is None
    assert bytes(ends.stream.raw) + ends.rest() == hello
