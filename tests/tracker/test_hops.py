"""How many Python functions the tracker calls for a message, printed (``pytest -s``).

From the bytes of a frame that are read to the bytes of the answer that are written, on the service's own path.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rpcsys import logs
from rpcsys.tracker import observer
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.service import TrackerService
from rpcsys.wire.tracker import MAGIC_BYTES

#: What is measured is the shortest of so many: the first time something is worked out and kept.
TRIES = 20
HELLO = [1, {"op": "hello", "version": "0", "user": "ann"}]


class Peer:
    """The far end of a connection of the service's."""

    def __init__(self, service: TrackerService) -> None:
        self.sock, near = socket.socketpair()
        near.setblocking(False)
        self.sock.settimeout(5)
        service.accept(NamedSocket(near), ("10.0.0.5", 1))
        self.sock.sendall(MAGIC_BYTES)

    def send(self, message: Any) -> None:
        text = json.dumps(message).encode()
        self.sock.sendall(struct.pack("<i", len(text)) + text)


class NamedSocket(socket.socket):
    """One end of a pair, with an address as a TCP socket has."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock.family, sock.type, fileno=sock.detach())

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.1", 9190

    def setsockopt(self, *_: Any) -> None:
        """A pair has none of TCP's options."""


class Hops:
    """A profile function: the Python functions called between a ``recv`` and the ``send`` after it."""

    def __init__(self) -> None:
        self.counts: list[list[str]] = []
        self._now: list[str] | None = None

    def __call__(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and what.__name__ == "recv":
            self._now = []
        elif event == "c_call" and what.__name__ == "send" and self._now is not None:
            self.counts.append(self._now)
            self._now = None
        elif event == "call" and self._now is not None:
            self._now.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


async def shortest(service: TrackerService, asks: Iterator[tuple[Peer, Any]], what: str) -> int:
    """The fewest functions that the service calls for one of the messages."""
    hops = Hops()
    for peer, message in asks:
        sys.setprofile(hops)
        peer.send(message)
        await turns()
        sys.setprofile(None)
    found = min(hops.counts, key=len)
    print(f"{what}: {len(found)} hops: {' '.join(found)}")
    return len(found)


@pytest.fixture
def lab(monkeypatch):
    """Runs a coroutine with a service. One of our servers and one of TVM's have offers there."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs.Formatter("rpcsys-tracker", "text"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    monkeypatch.setattr(observer, "PASS_ON_S", 60.0)  # the first entry of a batch sets a timer

    async def go(do: Any) -> int:
        service = TrackerService(TrackerConfig())
        server, client, tvm_server, tvm_client = (Peer(service) for _ in range(4))
        for peer in (server, client):
            peer.send(HELLO)
        server.send({"op": "register", "id": 1, "key": "rpi4", "name": "board", "port": 9090, "slots": 64})
        for number in range(2 * TRIES):
            server.send([3, "rpi4", [9090, f"rpi4:{number}"], None])
            tvm_server.send([3, "gpu", [9090, f"gpu:{number}"], None])
            await turns(1)
        await turns(20)
        try:
            return await do(service, server, client, tvm_client)
        finally:
            sys.setprofile(None)
            service.close()

    return lambda do: asyncio.run(go(do))


def test_hops_of_a_request_that_is_granted_at_once(lab):
    async def do(service, server, client, tvm_client):
        asks = ((client, {"op": "request", "id": number, "key": "rpi4"}) for number in range(1, TRIES))
        return await shortest(service, asks, "a request of ours, of which a server of ours is told first")

    assert lab(do) <= 40


def test_hops_of_a_tvm_request(lab):
    async def do(service, server, client, tvm_client):
        asks = itertools.repeat((tvm_client, [4, "gpu", "", 1]), TRIES)
        return await shortest(service, asks, "a request of TVM's for a server of TVM's")

    assert lab(do) <= 40


def test_hops_of_an_offer(lab):
    async def do(service, server, client, tvm_client):
        asks = ((server, [3, "rpi4", [9090, f"rpi4:x{number}"], None]) for number in range(TRIES))
        return await shortest(service, asks, "an offer")

    assert lab(do) <= 40


def test_hops_of_an_answered_heartbeat(lab):
    """It gets no reply, so a ping follows, which has 31 hops of its own at most."""

    async def do(service, server, client, tvm_client):
        hops = Hops()
        for _ in range(TRIES):
            sys.setprofile(hops)
            server.send({"id": 0, "ok": True})
            server.send([1])
            await turns()
            sys.setprofile(None)
        found = min(hops.counts, key=len)
        print(f"a heartbeat's answer, and a ping: {len(found)} hops: {' '.join(found)}")
        return len(found)

    assert lab(do) <= 40
