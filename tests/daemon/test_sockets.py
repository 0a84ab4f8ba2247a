"""Many sockets, watched as one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rpcsys.daemon.sockets import BATCH, BROKEN, READ, WRITE, Sockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(BATCH + 22)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


def run(test: Callable[[Sockets], Awaitable[None]], after: Callable[[], None] = lambda: None) -> None:
    """Run a test in a loop, with sockets that are closed after it."""

    async def main() -> None:
        sockets = Sockets(after)
        await test(sockets)
        sockets.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def turns(count: int = 20) -> None:
    """Let the loop make some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_every_socket_is_called_back_for_what_is_so(pairs: list[Pair]) -> None:
    told: list[tuple[int, int, bytes]] = []

    async def watch(sockets: Sockets) -> None:
        for number, (ours, theirs) in enumerate(pairs):
            sockets.add(ours.fileno(), lambda found, n=number, ours=ours: told.append((n, found, ours.recv(9))))
            theirs.send(str(number).encode())
        await turns()

    counts: list[int] = []
    run(watch, lambda: counts.append(len(told)))
    assert sorted(told) == [(number, READ, str(number).encode()) for number in range(len(pairs))]
    assert sorted(set(counts)) == [*range(BATCH, len(pairs), BATCH), len(pairs)]


def test_what_is_expected_can_change(pairs: list[Pair]) -> None:
    ours, theirs = pairs[0]
    told: list[int] = []

    async def watch(sockets: Sockets) -> None:
        sockets.add(ours.fileno(), told.append)
        sockets.expect(ours.fileno(), WRITE)
        theirs.send(b"x")
        await turns()
        assert set(told) == {WRITE}
        sockets.expect(ours.fileno(), 0)
        told.clear()
        await turns()
        assert told == []
        theirs.close()  # which is told unasked
        await turns()
        assert told
        assert told[0] & BROKEN

    run(watch)


def test_one_that_was_removed_in_the_same_turn_is_not_called(pairs: list[Pair]) -> None:
    told: list[int] = []

    async def watch(sockets: Sockets) -> None:
        def remove_both(found: int) -> None:
            told.append(found)
            for ours, _ in pairs[:2]:
                sockets.remove(ours.fileno())

        for ours, theirs in pairs[:2]:
            sockets.add(ours.fileno(), remove_both)
            theirs.send(b"x")
        await turns()

    run(watch)
    assert told == [READ]
