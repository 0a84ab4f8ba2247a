"""A forwarder in this process's loop, and a client of it that speaks in the clear."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.forward.config import listen
from rpcsys.forward.service import ForwardService
from tests.scripted_peers import MAGIC, framed

PATIENCE_S = 30.0


class Desk:
    """A client at the forwarder's port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Desk:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def tracker(cls, port: int) -> Desk:
        desk = await cls.open(port)
        desk.writer.write(MAGIC)
        assert await desk.reader.readexactly(4) == MAGIC
        return desk

    def send(self, *messages: Any) -> None:
        self.writer.write(b"".join(map(framed, messages)))

    async def receive(self) -> Any:
        (size,) = struct.unpack("<i", await self.reader.readexactly(4))
        return json.loads(await self.reader.readexactly(size))

    async def ask(self, message: Any) -> Any:
        self.send(message)
        return await self.receive()


@asynccontextmanager
async def forwarder(tracker: tuple[str, int]) -> AsyncIterator[ForwardService]:
    """A forwarder to a tracker; its port is in its ``port``."""
    listener = listen(("127.0.0.1", 0))
    service = ForwardService(listener.getsockname(), tracker)
    acceptor = Acceptor(listener, service.accept)
    try:
        yield service
    finally:
        acceptor.close()
        service.close()
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true, about which nothing else tells."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test to its end."""
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))
