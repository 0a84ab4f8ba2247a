"""Streams that are dead when they are joined, before the proxy has noticed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rpcsys.proxy.config import ProxyConfig
from rpcsys.proxy.service import ProxyService
from tests.proxy.streams import opening


class Proxy:
    """A service without a listener, which gets its streams directly."""

    def __init__(self) -> None:
        self.service = ProxyService(ProxyConfig())

    def connect(self, text: str) -> socket.socket:
        outer, inner = socket.socketpair()
        inner.setblocking(False)
        outer.sendall(opening(text))
        outer.setblocking(False)
        self.service.accept(inner, ("10.0.0.1", 1))
        return outer


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0.01)


@pytest.fixture
def running():
    loop = asyncio.new_event_loop()
    made = []

    async def make() -> Proxy:
        made.append(Proxy())
        return made[0]

    yield loop, loop.run_until_complete(make())
    made[0].service.close()
    loop.close()


def test_the_client_of_a_dead_server_is_joined_with_the_next(running) -> None:
    loop, proxy = running

    async def main() -> None:
        dead = proxy.connect("server:k -server=7")
        dead.close()
        client = proxy.connect("client:k")  # before the loop reads
        await settle()
        assert not proxy.service.pairs
        assert len(proxy.service.waiting) == 1
        server = proxy.connect("server:k -server=7")
        await settle()
        assert len(proxy.service.pairs) == 1
        assert client.recv(100) == opening("server:k -server=7")
        assert server.recv(100) == opening("client:k")
        client.close()
        server.close()
        await settle()
        assert not proxy.service.pairs
        assert not proxy.service.state.joined

    loop.run_until_complete(main())


def test_the_server_of_a_dead_client_is_closed(running) -> None:
    """It already has the client's greeting: it must dial again."""
    loop, proxy = running

    async def main() -> None:
        dead = proxy.connect("client:k")
        dead.close()
        server = proxy.connect("server:k")
        await settle()
        assert server.recv(100) == opening("client:k")
        assert server.recv(100) == b""
        assert not proxy.service.waiting
        assert not proxy.service.state.joined
        server.close()

    loop.run_until_complete(main())


def test_both_streams_may_be_dead(running) -> None:
    loop, proxy = running

    async def main() -> None:
        dead = proxy.connect("server:k")
        dead.close()
        proxy.connect("client:k").close()
        await settle()
        assert not proxy.service.waiting
        assert not proxy.service.state.waiting
        assert not proxy.service.pairs

    loop.run_until_complete(main())
