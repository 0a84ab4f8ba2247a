"""The relay of bytes between two streams, on both event loops."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import mmap
import os
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from rpcsys.daemon import relay
from rpcsys.daemon.relay import BUFFER, COPIED, MAX_FREE, MAX_KEPT, BufferPool, Pair, Relay
from rpcsys.daemon.sockets import Sockets

Run = Callable[[Coroutine[Any, Any, None]], None]
BLOB = os.urandom(1 << 20) * 16


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """A function that runs a coroutine with a deadline."""

    def run_it(main: Coroutine[Any, Any, None]) -> None:
        loop = request.param()
        try:
            loop.run_until_complete(asyncio.wait_for(main, 60))
        finally:
            loop.close()

    return run_it


class Joined:
    """A pair, and the outer ends of its two streams."""

    def __init__(self) -> None:
        self.relay = Relay(Sockets())
        (self.left, inner_left), (self.right, inner_right) = _ends(), _ends()
        self.ended = asyncio.Event()
        self.pair = Pair(self.relay, inner_left, inner_right, lambda pair: self.ended.set())
        self.pair.start()

    @property
    def pool(self) -> BufferPool:
        return self.relay.pool


def _ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname())
        inner, _ = listener.accept()
    outer.setblocking(False)
    inner.setblocking(False)
    return outer, inner


@asynccontextmanager
async def joined() -> AsyncIterator[Joined]:
    one = Joined()
    try:
        yield one
    finally:
        one.pair.close()
        one.left.close()
        one.right.close()
        one.relay.sockets.close()


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def read(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, min(count - len(data), 1 << 20))
        if not piece:
            break
        data += piece
    return bytes(data)


async def stuck(sock: socket.socket, data: bytes) -> asyncio.Task[None]:
    """Send until the stream takes no more, and go on in a task."""
    sending = asyncio.ensure_future(send(sock, data))
    await asyncio.sleep(0.5)
    assert not sending.done()
    return sending


def test_every_byte_arrives_in_order_both_ways(run: Run) -> None:
    async def main() -> None:
        async with joined() as one:
            got = await asyncio.gather(
                send(one.left, BLOB), send(one.right, BLOB[::-1]), read(one.right, len(BLOB)), read(one.left, len(BLOB))
            )
            assert got[2] == BLOB
            assert got[3] == BLOB[::-1]
            assert [flow.moved for flow in one.pair.flows] == [len(BLOB)] * 2
            assert one.pool.kept == 0

    run(main())


def test_a_slow_receiver_keeps_one_buffer(run: Run) -> None:
    async def main() -> None:
        async with joined() as one:
            data = BLOB * 4
            sending = await stuck(one.left, data)
            assert one.pair.flows[0].stuck
            assert one.pool.kept <= 1
            await send(one.right, b"the other way is open")
            assert await read(one.left, 21) == b"the other way is open"
            digest = hashlib.sha256(await read(one.right, len(data))).digest()
            await sending
            assert digest == hashlib.sha256(data).digest()
            assert one.pool.kept == 0
            assert not one.pair.flows[0].stuck

    run(main())


def test_the_end_arrives_after_the_last_byte(run: Run) -> None:
    async def main() -> None:
        async with joined() as one:
            sending = await stuck(one.left, BLOB * 4)
            reading = asyncio.ensure_future(read(one.right, 1 << 40))
            await sending
            one.left.shutdown(socket.SHUT_WR)
            assert len(await reading) == 4 * len(BLOB)
            await send(one.right, b"answer")
            assert await read(one.left, 6) == b"answer"
            assert not one.ended.is_set()
            one.right.close()
            await one.ended.wait()
            assert await read(one.left, 1) == b""

    run(main())


def break_(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_the_partner_of_a_dead_stream_is_read_to_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER_S", 30.0)

    async def main() -> None:
        async with joined() as one:
            await send(one.right, b"last words")
            break_(one.right)
            await send(one.left, BLOB)  # more than the buffers hold: the pair has to read it
            assert await read(one.left, 1 << 20) == b"last words"
            one.left.close()
            await one.ended.wait()
            assert one.pool.kept == 0

    run(main())


def test_the_last_bytes_before_a_break_arrive(run: Run) -> None:
    async def main() -> None:
        async with joined() as one:
            one.right.send(b"last words")
            break_(one.right)
            assert await read(one.left, 1 << 20) == b"last words"
            one.left.close()
            await one.ended.wait()

    run(main())


def test_the_partner_of_a_dead_stream_is_closed_after_a_timeout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER_S", 0.2)

    async def main() -> None:
        async with joined() as one:
            sending = await stuck(one.left, BLOB * 4)  # and the receiver reads nothing
            sending.cancel()
            break_(one.left)
            await one.ended.wait()
            assert one.pool.kept == 0

    run(main())


def test_closing_gives_all_buffers_back(run: Run) -> None:
    async def main() -> None:
        async with joined() as one:
            sending = await stuck(one.left, BLOB * 4)
            one.pair.close()
            one.pair.close()
            assert one.ended.is_set()
            assert one.pool.kept == 0
            with pytest.raises(ConnectionError):
                await sending

    run(main())


@pytest.mark.parametrize("how", ["both ends", "a reset", "by hand"])
def test_an_ended_pair_is_freed_without_the_garbage_collector(run: Run, no_collector: None, how: str) -> None:
    async def main() -> None:
        one = Joined()
        pair = weakref.ref(one.pair)
        if how == "a reset":
            one.left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == "by hand":
            one.pair.close()
        del one.pair
        one.left.close()
        one.right.close()
        await one.ended.wait()
        await asyncio.sleep(0.1)  # the loop releases its callbacks
        assert pair() is None
        one.relay.sockets.close()

    run(main())


# The pool.


def test_buffers_begin_at_page_starts() -> None:
    pool = BufferPool()
    kept = [pool.keep(0, BUFFER) for _ in range(3)]
    for memory in (pool.buffer, *kept):
        assert len(memory) == BUFFER
        assert ctypes.addressof(ctypes.c_char.from_buffer(memory)) % mmap.PAGESIZE == 0
    for one in kept:
        pool.give_back(one)


def test_small_remainders_are_copied() -> None:
    pool = BufferPool()
    pool.buffer[:4] = b"abcd"
    rest = pool.keep(1, 3)
    pool.buffer[:4] = b"wxyz"
    assert bytes(rest) == b"bc"
    assert pool.kept == 0
    pool.give_back(rest)


def test_large_remainders_keep_their_buffer_and_the_last_given_back_is_used_first() -> None:
    pool = BufferPool()
    first = pool.buffer
    first[:4] = b"abcd"
    rest = pool.keep(1, COPIED + 2)
    assert pool.buffer is not first
    assert bytes(rest[:3]) == b"bcd"
    second = pool.keep(0, BUFFER)
    pool.give_back(rest[COPIED:])  # a part gives the whole buffer back
    pool.give_back(second)
    assert pool.kept == 0
    kept = pool.keep(0, BUFFER)
    assert pool.buffer.obj is second.obj
    pool.give_back(kept)


def test_beyond_a_number_of_buffers_reads_are_small() -> None:
    pool = BufferPool()
    kept = [pool.keep(0, BUFFER) for _ in range(MAX_KEPT)]
    assert pool.kept == MAX_KEPT
    assert len(pool.buffer) == COPIED
    rest = pool.keep(0, COPIED)
    assert pool.kept == MAX_KEPT
    pool.give_back(rest)
    for one in kept:
        pool.give_back(one)
    assert len(pool.buffer) == BUFFER
    assert pool.kept == 0
    assert len(pool._free) == MAX_FREE


@pytest.mark.parametrize("size", [0, 100, 16 << 20])
def test_first_bytes_come_before_all_others(run: Run, size: int) -> None:
    async def main() -> None:
        first = BLOB[:size]
        (left, inner_left), (right, inner_right) = _ends(), _ends()
        await send(left, b"then this")
        ended = asyncio.Event()
        pair = Pair(Relay(Sockets()), inner_left, inner_right, lambda pair: ended.set())
        pair.start(first)
        assert await read(right, size) == first
        assert await read(right, 9) == b"then this"
        await send(right, b"back")
        assert await read(left, 4) == b"back"
        left.close()
        assert await read(right, 1) == b""
        right.close()
        await ended.wait()

    run(main())


def test_first_bytes_for_a_dead_stream_end_the_pair(run: Run) -> None:
    async def main() -> None:
        (left, inner_left), (right, inner_right) = _ends(), _ends()
        right.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        right.close()
        ended = asyncio.Event()
        Pair(Relay(Sockets()), inner_left, inner_right, lambda pair: ended.set()).start(b"first")
        await read(left, 1)
        left.close()
        await ended.wait()

    run(main())
