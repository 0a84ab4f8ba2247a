"""Replicas that run in one loop, on an engine in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.serve import bind
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas.service import ReplicaService, new_leader
from rpcsys.tracker.webhooks import Webhooks
from rpcsys.wire.tracker import MAGIC_BYTES, encode
from tests.tracker.replicas.memory_engine import MemoryEngine
from tests.tracker.replicas.simulation import SimulatedEngine

SOON_S = 30.0
REQUEST = encode([4, "rpi4", "", 1])
PUT = encode([3, "rpi4", [9090, "rpi4:0.1"], None])


async def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.01)


class Running:
    """A replica that accepts connections."""

    def __init__(
        self, folder: Path, stored: SimulatedEngine, webhooks: Webhooks | None = None, **flags: object
    ) -> None:
        listener = bind("127.0.0.1", 0, 1)
        self.address = listener.getsockname()[:2]
        self.engine, self.folder = MemoryEngine(stored), folder
        config = TrackerConfig(state_dir=str(folder), **flags)  # type: ignore[arg-type]
        self.service = ReplicaService(config, self.engine, new_leader(*self.address, 0), webhooks)
        self.acceptor = Acceptor(listener, self.service.accept)

    async def close(self) -> None:
        if not self.engine.closed:
            self.acceptor.close()
            await self.service.close()

    @property
    def leads(self) -> bool:
        return self.service.tracker is not None

    async def says(self, *frames: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(MAGIC_BYTES + b"".join(frames))
        return reader, writer


Act = Callable[..., Awaitable[None]]


def run(act: Act, tmp_path: Path, count: int = 1, stored: SimulatedEngine | None = None, **flags: object) -> None:
    @asynccontextmanager
    async def running() -> AsyncIterator[list[Running]]:
        engine = stored or SimulatedEngine()
        made = [Running(tmp_path / str(number), engine, **flags) for number in range(count)]
        try:
            yield made
        finally:
            for each in made:
                await each.close()

    async def main() -> None:
        async with running() as made:
            await act(*made)

    asyncio.run(main())
