"""Sessions in the clear, with a server of a network that the lab's rules allow; those through TLS: test_service."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rpcsys.wire.handshake import Greeting, Options, encode_greeting, encode_mismatch
from tests.forward.desks import Desk, forwarder, run, until
from tests.scripted_peers import ScriptedTracker

KEY = "rpi4:0.4711"
OPENING = encode_greeting(Greeting("client", KEY, Options(timeout_s=60.0)))
ANSWER = encode_greeting(Greeting("server", "rpi4", Options()))


def leases(address: tuple[str, int]) -> ScriptedTracker:
    """A tracker that hands out a server in the clear."""
    return ScriptedTracker(commands=lambda asked: [[0, [*address, KEY], {"plain": True}]])


@asynccontextmanager
async def session(server: socket.socket) -> AsyncIterator[tuple[Desk, socket.socket]]:
    """A session through a forwarder, and the server's end of it, which has answered."""
    loop = asyncio.get_running_loop()
    server.setblocking(False)
    with leases(server.getsockname()) as tracker:
        async with forwarder(tracker.address) as service:
            assert (await (await Desk.tracker(service.port)).ask([4, "rpi4", "", 1]))[1][2] == KEY
            desk = await Desk.open(service.port)
            desk.writer.write(OPENING)
            device, _ = await loop.sock_accept(server)
            with device:
                assert await loop.sock_recv(device, 1 << 16) == OPENING
                await loop.sock_sendall(device, ANSWER)
                assert await desk.reader.readexactly(len(ANSWER)) == ANSWER
                assert len(service.sessions) == 1
                yield desk, device
                await until(lambda: len(service.sessions) == 0)


def test_bytes_and_the_end_pass_both_ways(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with session(server) as (desk, device):
                desk.writer.write(b"hello")
                assert await asyncio.get_running_loop().sock_recv(device, 100) == b"hello"
                desk.writer.write_eof()
                assert await asyncio.get_running_loop().sock_recv(device, 100) == b""
                device.send(b"last")
                device.close()
                assert await desk.reader.read() == b"last"

    with caplog.at_level(logging.INFO):
        run(main())
    assert ", in the clear" in caplog.text
    assert "session of rpi4:… at" in caplog.text
    assert "4711" not in caplog.text


def test_a_connection_that_breaks_is_a_lost_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with session(server) as (desk, device):
                device.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                device.close()
                assert await desk.reader.read() == b""
                desk.writer.close()

    run(main())
    assert "is lost: the connection broke" in caplog.text


def test_a_server_that_is_not_there_is_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with leases(("127.0.0.1", 1)) as tracker:
            async with forwarder(tracker.address) as service:
                await (await Desk.tracker(service.port)).ask([4, "rpi4", "", 1])
                desk = await Desk.open(service.port)
                desk.writer.write(OPENING)
                assert await desk.reader.read() == encode_mismatch()

    run(main())
    assert "no device server for rpi4" in caplog.text
