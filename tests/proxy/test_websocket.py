"""Frames of WebSockets: any cut, any damage, and no message is held."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from tornado.iostream import IOStream

from rpcsys.proxy.websocket import CHUNK, NOT_BINARY, VIOLATION, Refused, WebSocket


def frame(opcode: int, data: bytes = b"", *, final: bool = True, mask: bytes = b"abcd", length: int | None = None):
    """A frame as a client sends it; ``length`` to announce another one than it has."""
    count = len(data) if length is None else length
    first = (0x80 if final else 0) | opcode
    if count < 126:
        head = bytes((first, 0x80 | count))
    elif count < 1 << 16:
        head = struct.pack(">BBH", first, 0xFE, count)
    else:
        head = struct.pack(">BBQ", first, 0xFF, count)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))


def read(sent: bytes, cut: int = 0) -> tuple[list[bytes], object, bytes]:
    """The pieces of what was sent, how it ended (None, a close code, "gone"), and what was answered."""

    async def run() -> tuple[list[bytes], object, bytes]:
        near, far = socket.socketpair()
        pieces: list[bytes] = []
        websocket = WebSocket(IOStream(near, max_buffer_size=2 * CHUNK))

        def send() -> None:
            with contextlib.suppress(OSError):  # it was refused in the middle
                for start in range(0, len(sent), cut or len(sent) or 1):
                    far.sendall(sent[start : start + (cut or len(sent))])
                far.shutdown(socket.SHUT_WR)

        sending = asyncio.ensure_future(asyncio.to_thread(send))
        end: object = None
        try:
            async for piece in websocket.pieces():
                assert 0 < len(piece) <= CHUNK
                pieces.append(piece)
        except Refused as problem:
            end = problem.code
        except OSError:
            end = "gone"
        near.close()
        await sending
        far.settimeout(10)
        answered = b""
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                answered += data
        far.close()
        return pieces, end, answered

    return asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5),
    st.binary(min_size=4, max_size=4),
    st.integers(1, 40),
)
def test_messages_come_out_in_order_however_they_are_cut(messages, mask, cut) -> None:
    sent = b""
    for parts in messages:
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            sent += frame(0 if number else 2, part, final=last, mask=mask) + frame(9, b"still there?")
    pieces, end, answered = read(sent + frame(8), cut)
    assert end is None
    assert b"".join(pieces) == b"".join(part for parts in messages for part in parts)
    assert answered == b"\x8a\x0cstill there?" * sum(map(len, messages))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_end_it_and_nothing_else(sent) -> None:
    _, end, _ = read(sent)
    assert end in (None, "gone", VIOLATION, NOT_BINARY)


def test_a_piece_is_passed_on_before_its_frame_is_whole() -> None:
    pieces, end, _ = read(frame(2, b"x" * 1000, length=1 << 40))
    assert (b"".join(pieces), end) == (b"x" * 1000, "gone")


def test_what_a_client_may_not_send() -> None:
    assert read(frame(1, b"text"))[1] == NOT_BINARY
    for wrong in (
        b"\x82\x01x",  # not masked
        b"\xc2" + frame(2, b"x")[1:],  # compressed
        frame(0, b"x"),  # goes on with nothing
        frame(2, b"x", final=False) + frame(2, b"x"),
        frame(9, b"x" * 126),
        frame(9, final=False),
        frame(3),
        frame(2, length=1 << 63),
    ):
        assert read(wrong)[1] == VIOLATION, wrong
