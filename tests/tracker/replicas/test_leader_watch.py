"""A leader whose process has died is noticed at once; one that answers is not taken for dead."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rpcsys.daemon import dialling
from rpcsys.tracker.replicas import leader_watch
from rpcsys.tracker.replicas.leader_watch import LeaderWatch
from rpcsys.wire.tracker import MAGIC_BYTES

SOON_S = 30.0


def test_a_leader_that_dies_refuses() -> None:
    async def run() -> None:
        refused: asyncio.Queue[int] = asyncio.Queue()
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        peers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peers.append(writer)
            heard.put_nowait(await reader.readexactly(4))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        watch = LeaderWatch(refused.put_nowait)
        watch.follow(server.sockets[0].getsockname()[:2], 7)
        assert await asyncio.wait_for(heard.get(), SOON_S) == MAGIC_BYTES
        peers[0].close()  # it connects again
        await asyncio.wait_for(heard.get(), SOON_S)
        assert refused.empty()
        server.close()
        peers[1].close()
        assert await asyncio.wait_for(refused.get(), SOON_S) == 7
        watch.close()

    asyncio.run(run())


def test_a_host_of_several_addresses_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]

        async def lookup(*args: object, **kwargs: object) -> list[object]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"127.0.0.{end}", port)) for end in (1, 2)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        refused: asyncio.Queue[int] = asyncio.Queue()
        watch = LeaderWatch(refused.put_nowait)
        watch.follow(("lab-1", port), 7)
        assert await asyncio.wait_for(refused.get(), SOON_S) == 7
        watch.close()

    asyncio.run(run())


def test_a_host_that_does_not_answer_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: asyncio.Queue[None] = asyncio.Queue()

    async def dial(host: str, port: int) -> socket.socket:
        tries.put_nowait(None)
        return await dialling.dial(host, port)

    async def run() -> None:
        refused: asyncio.Queue[int] = asyncio.Queue()
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for sock in (first, second):  # they fill its queue: the kernel drops what comes
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
            watch = LeaderWatch(refused.put_nowait)
            watch.follow(full.getsockname(), 7)
            for _ in range(3):
                await asyncio.wait_for(tries.get(), SOON_S)
            assert refused.empty()
            watch.close()

    monkeypatch.setattr(dialling, "CONNECT_S", 0.2)
    monkeypatch.setattr(leader_watch, "dial", dial)
    asyncio.run(run())


def test_another_leader_is_watched_in_place_of_the_first() -> None:
    async def run() -> None:
        refused: asyncio.Queue[int] = asyncio.Queue()
        with socket.create_server(("127.0.0.1", 0)) as gone:
            address = gone.getsockname()
        watch = LeaderWatch(refused.put_nowait)
        watch.follow(address, 1)
        watch.follow(address, 2)
        assert [await asyncio.wait_for(refused.get(), SOON_S) for _ in range(2)] == [2, 2]
        watch.follow(None, 2)
        await asyncio.sleep(0.3)
        assert refused.empty()

    asyncio.run(run())
