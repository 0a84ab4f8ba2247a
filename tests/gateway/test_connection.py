"""A client's socket in the loop: order, turns of the loop, what is not taken yet, and the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from rpcsys.daemon.sockets import Sockets
from rpcsys.gateway.connection import JOINED, ClientCrowd, ClientSocket, _rest
from tests.gateway.test_upstream import until


class Told(ClientSocket):
    """A connection that keeps what it is told."""

    def __init__(self, crowd: ClientCrowd, sock: socket.socket) -> None:
        self.received = b""
        self.events: list[str] = []
        super().__init__(crowd, sock)

    def readable(self) -> None:
        data = self.sock.recv(1000)
        self.received += data
        if not data:
            self.close()

    def drained(self) -> None:
        self.events.append("drained")

    def ended(self) -> None:
        self.events.append("ended")

    def overdue(self, now: float) -> None:
        self.events.append("overdue")

    @property
    def busy(self) -> bool:
        return self.full


def run(test: Callable[[ClientCrowd, Told, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        sockets = Sockets()
        crowd = ClientCrowd(sockets)
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setblocking(False)
        await test(crowd, Told(crowd, ours), theirs)
        crowd.close()
        sockets.close()
        theirs.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_first_goes_at_once_and_the_rest_at_the_end_of_the_turn() -> None:
    async def test(crowd: ClientCrowd, connection: Told, theirs: socket.socket) -> None:
        for word in (b"one", b"two", b"three"):
            connection.say([word])
        assert theirs.recv(100) == b"one"
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
        await asyncio.sleep(0)
        await until(lambda: not connection.pushed)
        assert theirs.recv(100) == b"twothree"
        assert crowd.sent == 11

    run(test)


def test_much_of_one_turn_is_not_gathered_without_end() -> None:
    async def test(crowd: ClientCrowd, connection: Told, theirs: socket.socket) -> None:
        connection.say([b"one"])
        connection.say([bytes(JOINED + 1)])
        assert len(theirs.recv(2 * JOINED)) == JOINED + 4

    run(test)


def test_what_the_socket_does_not_take_is_sent_later_in_order() -> None:
    async def test(crowd: ClientCrowd, connection: Told, theirs: socket.socket) -> None:
        pieces = [bytes([number]) * 100_000 for number in range(30)]
        connection.say(pieces)
        connection.say([b"end"])
        assert connection.full
        got = b""
        while not got.endswith(b"end"):
            await asyncio.sleep(0.001)
            try:
                got += theirs.recv(1 << 20)
            except BlockingIOError:
                continue
        assert got == b"".join(pieces) + b"end"
        await until(lambda: not connection.full)
        assert connection.events == ["drained"]

    run(test)


def test_a_pause_reads_nothing_and_notices_the_end() -> None:
    async def test(crowd: ClientCrowd, connection: Told, theirs: socket.socket) -> None:
        connection.pause(True)
        theirs.send(b"hello")
        await asyncio.sleep(0.05)
        assert connection.received == b""
        connection.pause(False)
        await until(lambda: connection.received == b"hello")
        connection.pause(True)
        theirs.close()
        await until(lambda: connection.closed)
        assert connection.events == ["ended"]
        assert len(crowd) == 0
        connection.say([b"to nobody"])
        connection.close()
        assert connection.events == ["ended"]

    run(test)


def test_each_is_asked_whether_it_is_overdue() -> None:
    async def test(crowd: ClientCrowd, connection: Told, theirs: socket.socket) -> None:
        await until(lambda: connection.events == ["overdue"])
        assert crowd.all() == [connection]

    run(test)


def test_the_rest_of_pieces() -> None:
    pieces = [b"abc", b"de", b"f"]
    assert [b"".join(map(bytes, _rest(pieces, sent))) for sent in range(7)] == [b"abcdef"[sent:] for sent in range(7)]
