"""WebSockets at the proxy: frames in any pieces and with any damage; then streams that are joined like others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import IOStream
from tornado.websocket import WebSocketClientConnection, websocket_connect

from rpcsys.proxy.websocket import CHUNK, NOT_BINARY, VIOLATION, WebSocket, WebSocketError
from tests.live.daemons import free_port, rss_mb, wait_until
from tests.proxy.streams import MISMATCH, Stream, gone, met, opening

BLOB = os.urandom(1 << 20) * 24
TIMEOUT_S = 60.0


# Frames


def frame(opcode: int, data: bytes = b"", *, final: bool = True, mask: bytes = b"abcd", length: int | None = None):
    """A frame as a client sends it; ``length`` replaces its true length."""
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
    """The pieces read from ``sent``, how reading ended (None, a close code, "gone"), and the answer."""

    async def run() -> tuple[list[bytes], object, bytes]:
        near, far = socket.socketpair()
        pieces: list[bytes] = []
        websocket = WebSocket(IOStream(near, max_buffer_size=2 * CHUNK))

        def send() -> None:
            with contextlib.suppress(OSError):  # refused in the middle
                for start in range(0, len(sent), cut or len(sent) or 1):
                    far.sendall(sent[start : start + (cut or len(sent))])
                far.shutdown(socket.SHUT_WR)

        sending = asyncio.ensure_future(asyncio.to_thread(send))
        end: object = None
        try:
            async for piece in websocket.pieces():
                assert 0 < len(piece) <= CHUNK
                pieces.append(piece)
        except WebSocketError as problem:
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
def test_messages_arrive_in_order_whatever_the_frames(messages, mask, cut) -> None:
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
def test_random_bytes_end_only_their_own_websocket(sent) -> None:
    _, end, _ = read(sent)
    assert end in (None, "gone", VIOLATION, NOT_BINARY)


def test_a_piece_is_passed_on_before_its_frame_is_whole() -> None:
    pieces, end, _ = read(frame(2, b"x" * 1000, length=1 << 40))
    assert (b"".join(pieces), end) == (b"x" * 1000, "gone")


def test_invalid_frames_are_refused() -> None:
    assert read(frame(1, b"text"))[1] == NOT_BINARY
    for wrong in (
        b"\x82\x01x",  # not masked
        b"\xc2" + frame(2, b"x")[1:],  # compressed
        frame(0, b"x"),  # continues no message
        frame(2, b"x", final=False) + frame(2, b"x"),
        frame(9, b"x" * 126),
        frame(9, final=False),
        frame(3),
        frame(2, length=1 << 63),
    ):
        assert read(wrong)[1] == VIOLATION, wrong


# Streams


@pytest.fixture
def web_port() -> int:
    return free_port()


@pytest.fixture
def proxy(daemons, web_port):
    return daemons.proxy("--web-port", str(web_port), "--timeout-client", "1", "--web-origin", "https://lab.example")


class WebStream:
    """A WebSocket that sends a greeting; reads bytes without regard to messages."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self.connection = connection
        self._buffer = b""

    @classmethod
    async def open(cls, port: int, text: str) -> WebStream:
        """Connect and send the greeting in three messages, as TVM's server does."""
        connection = await websocket_connect(f"ws://127.0.0.1:{port}/ws")
        whole = opening(text)
        for piece in (whole[:4], whole[4:8], whole[8:]):
            await connection.write_message(piece, binary=True)
        return cls(connection)

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), 3 << 20):
            await self.connection.write_message(data[start : start + (3 << 20)], binary=True)

    async def read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            message = await asyncio.wait_for(self.connection.read_message(), TIMEOUT_S)
            if message is None:
                raise EOFError
            self._buffer += message
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    async def answer(self) -> str | int:
        code = int.from_bytes(await self.read(4), "little")
        if code != 0xFF271:
            return code
        return (await self.read(int.from_bytes(await self.read(4), "little"))).decode()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.connection.read_message(), TIMEOUT_S) is None


@pytest.mark.live
@pytest.mark.parametrize("web", ["client", "server"])
def test_a_websocket_is_joined_with_a_tcp_stream(proxy, web_port, web) -> None:
    tcp = {"client": "server", "server": "client"}[web]

    async def meet() -> None:
        stream = await WebStream.open(web_port, f"{web}:a:b -timeout=3")
        other = Stream(proxy.address, f"{tcp}:a:b -server=7")
        assert await stream.answer() == f"{tcp}:a:b -server=7"
        assert other.answer() == f"{web}:a:b -timeout=3"
        await both_ways(stream, other)
        other.close()
        assert await stream.ended()

    asyncio.run(meet())


async def both_ways(stream: WebStream, other: Stream) -> None:
    """Send much in both directions at once; every byte arrives in order."""
    digests: list[str] = []
    threads = [
        threading.Thread(target=other.socket.sendall, args=(BLOB,)),
        threading.Thread(target=lambda: digests.append(hashlib.sha256(other.read(len(BLOB))).hexdigest())),
    ]
    for thread in threads:
        thread.start()
    _, received = await asyncio.gather(stream.send(BLOB), stream.read(len(BLOB)))
    for thread in threads:
        await asyncio.to_thread(thread.join, TIMEOUT_S)
    assert received == BLOB
    assert digests == [hashlib.sha256(BLOB).hexdigest()]


@pytest.mark.live
def test_two_websockets_are_joined(proxy, web_port) -> None:
    async def meet() -> None:
        server = await WebStream.open(web_port, "server:k")
        client = await WebStream.open(web_port, "client:k")
        assert await client.answer() == "server:k"
        assert await server.answer() == "client:k"
        await client.send(b"question")
        assert await server.read(8) == b"question"
        client.connection.close()
        assert await server.ended()

    asyncio.run(meet())


@pytest.mark.live
def test_a_refusal_is_sent_before_the_close(proxy, web_port) -> None:
    async def meet() -> None:
        client = await WebStream.open(web_port, "client:unknown")
        assert await client.answer() == MISMATCH
        assert await client.ended()

    asyncio.run(meet())


@pytest.mark.live
def test_a_closed_websocket_is_removed(proxy, web_port) -> None:
    async def come_and_go() -> None:
        server = await WebStream.open(web_port, "server:k")
        server.connection.close()
        assert await server.ended()

    asyncio.run(come_and_go())
    assert Stream(proxy.address, "client:k").answer() == MISMATCH


@pytest.mark.live
def test_a_slow_receiver_slows_its_sender(proxy, web_port) -> None:
    """The proxy does not store bytes that a TCP client or a WebSocket does not read."""

    async def meet() -> None:
        for fast, slow in (("server", "client"), ("client", "server")):
            stream = await WebStream.open(web_port, f"{fast}:k")
            other = Stream(proxy.address, f"{slow}:k")
            await stream.answer()
            met(other)
            before = rss_mb([proxy.pid])
            sending = asyncio.ensure_future(stream.send(BLOB * 4))
            await asyncio.sleep(1)
            assert not sending.done()
            assert rss_mb([proxy.pid]) - before < 40
            digest = await asyncio.to_thread(lambda other=other: hashlib.sha256(other.read(4 * len(BLOB))).digest())
            await sending
            assert digest == hashlib.sha256(BLOB * 4).digest()
            stream.connection.close()
            await asyncio.to_thread(gone, other, 10)
            other.close()

    asyncio.run(meet())


@pytest.mark.live
def test_a_text_message_is_refused(proxy, web_port) -> None:
    async def meet() -> None:
        stream = await WebStream.open(web_port, "server:k")
        await stream.connection.write_message("hello")
        assert await stream.ended()
        assert stream.connection.close_code == 1003

    asyncio.run(meet())


@pytest.mark.live
@pytest.mark.parametrize(
    ("origin", "taken"), [("http://evil.example", False), ("https://lab.example", True), ("http://{host}", True)]
)
def test_only_pages_of_allowed_origins_may_open_websockets(proxy, web_port, origin, taken) -> None:
    async def meet() -> None:
        headers = {"Origin": origin.format(host=f"127.0.0.1:{web_port}")}
        request = HTTPRequest(f"ws://127.0.0.1:{web_port}/ws", headers=headers)
        if taken:
            (await websocket_connect(request)).close()
        else:
            with pytest.raises(HTTPClientError, match="403"):
                await websocket_connect(request)

    asyncio.run(meet())


@pytest.mark.live
@pytest.mark.slow
def test_other_requests_are_answered_and_dropped(proxy, web_port) -> None:
    with socket.create_connection(("127.0.0.1", web_port), timeout=20) as stranger:
        stranger.sendall(b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stranger.recv(100).startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", web_port), timeout=20) as silent:
        silent.sendall(b"GET /ws HTTP/1.1\r\n")
        assert silent.recv(100) == b""  # after 10 s
    wait_until(lambda: "Traceback" not in proxy.stderr(), 1, "the log has no traceback")


def upgraded(port: int) -> socket.socket:
    """A new WebSocket that has sent nothing."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.sendall(
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += sock.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return sock


@pytest.mark.live
@pytest.mark.parametrize("final", [True, False])
def test_unfinished_messages_take_no_memory(proxy, web_port, final) -> None:
    before = rss_mb([proxy.pid])
    socks = [upgraded(web_port) for _ in range(24)]
    first = (0x82 if final else 0x02).to_bytes(1, "big")
    for sock in socks:
        sock.settimeout(0.2)
        with contextlib.suppress(OSError):  # the proxy reads no more, or has closed it
            sock.sendall(first + b"\xff" + (60 << 20).to_bytes(8, "big") + b"mask")
            for _ in range(20):
                sock.sendall(bytes(1 << 20))
    assert rss_mb([proxy.pid]) - before < 30
    for sock in socks:
        sock.close()
    assert Stream(proxy.address, "client:k").answer() == MISMATCH


@pytest.mark.live
def test_a_message_of_any_length_is_passed_on(proxy, web_port) -> None:
    async def meet() -> None:
        stream = await WebStream.open(web_port, "server:k")
        other = Stream(proxy.address, "client:k")
        await stream.answer()
        met(other)
        before = rss_mb([proxy.pid])
        sending = asyncio.ensure_future(stream.connection.write_message(BLOB * 4, binary=True))
        digest = await asyncio.to_thread(lambda: hashlib.sha256(other.read(4 * len(BLOB))).digest())
        await sending
        assert digest == hashlib.sha256(BLOB * 4).digest()
        assert rss_mb([proxy.pid]) - before < 40
        other.close()

    asyncio.run(meet())
