"""A leader whose process has died is noticed at once; one that answers is not taken for dead."""

from __future__ import annotations

import asyncio
import socket

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
