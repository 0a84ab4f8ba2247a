"""A scripted tracker of another site, and frames over asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from rpcsys.wire.tracker import MAGIC_BYTES, TrackerFrameReader, decode_json, encode

SOON_S = 30.0
RAW = b"\xff\xff\xff\xff"  # no length of a frame
WELCOME = {"ok": True, "tracker": "rpcsys", "version": "0", "capabilities": []}
Script = Callable[[Any], Any]


def paris(message: Any) -> Any:
    """What a tracker of the site Paris answers to all."""
    if type(message) is list:
        return WELCOME if len(message) > 1 else 0
    if message["op"] == "site":
        return {"id": message["id"], "ok": True, "site": "paris"}
    return {"id": message["id"], "ok": True}


async def until(found: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until something is found."""
    end = time.monotonic() + SOON_S
    while not found():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
        meanwhile()


class ScriptedSite:
    """A tracker whose ``script`` makes an answer of each message, None for none. ``heard``: all messages."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.heard: list[Any] = []

    async def serve(self) -> int:
        """Begin; the port."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self.server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = TrackerFrameReader()
        writer.write(MAGIC_BYTES)
        while data := await reader.read(1 << 16):
            frames.feed(data)
            while (frame := frames.next()) is not None:
                message = decode_json(frame)
                self.heard.append(message)
                answer = self.script(message)
                if answer is not None:
                    writer.write(answer if answer is RAW else encode(answer))
        writer.close()


class FramesPeer:
    """A connection to a tracker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = TrackerFrameReader()

    @classmethod
    async def connect(cls, port: int) -> FramesPeer:
        """Connect, and say the magic."""
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        made._writer.write(MAGIC_BYTES)
        return made

    async def receive(self) -> Any:
        """The next message; None where the connection has ended."""
        while (frame := self._frames.next()) is None:
            data = await asyncio.wait_for(self._reader.read(1 << 16), SOON_S)
            if not data:
                return None
            self._frames.feed(data)
        return decode_json(frame)

    async def ask(self, message: Any) -> Any:
        """Send a message; the next one that comes."""
        self._writer.write(encode(message))
        return await self.receive()

    def close(self) -> None:
        """End the connection."""
        self._writer.close()
