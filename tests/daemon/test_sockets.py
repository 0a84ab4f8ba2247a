"""Many sockets, watched with one epoll."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

from rpcsys.daemon.sockets import BATCH, BREAKS, BROKEN, ENDED, FAILED, READ, WRITE, Sockets

RDHUP = select.EPOLLRDHUP
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(BATCH + 22)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


def run(test: Callable[[Sockets], Awaitable[None]], after: Callable[[], None] = lambda: None) -> None:
    """Run a test in a loop with `Sockets`, which are closed after it."""

    async def main() -> None:
        sockets = Sockets(after)
        await test(sockets)
        sockets.close()

    asyncio.run(asyncio.wait_for(main(), 30))


async def turns(count: int = 20) -> None:
    """Wait for ``count`` turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_every_socket_is_called_back_with_its_conditions(pairs: list[Pair]) -> None:
    reported: list[tuple[int, int, bytes]] = []

    async def watch(sockets: Sockets) -> None:
        for number, (ours, theirs) in enumerate(pairs):
            sockets.add(ours.fileno(), lambda found, n=number, ours=ours: reported.append((n, found, ours.recv(9))))
            theirs.send(str(number).encode())
        await turns()

    counts: list[int] = []
    run(watch, lambda: counts.append(len(reported)))
    assert sorted(reported) == [(number, READ, str(number).encode()) for number in range(len(pairs))]
    assert sorted(set(counts)) == [*range(BATCH, len(pairs), BATCH), len(pairs)]


def test_the_watched_conditions_can_change(pairs: list[Pair]) -> None:
    ours, theirs = pairs[0]
    reported: list[int] = []

    async def watch(sockets: Sockets) -> None:
        sockets.add(ours.fileno(), reported.append)
        sockets.expect(ours.fileno(), WRITE)
        theirs.send(b"x")
        await turns()
        assert set(reported) == {WRITE}
        sockets.expect(ours.fileno(), 0)
        reported.clear()
        await turns()
        assert reported == []
        theirs.close()  # always reported
        await turns()
        assert reported
        assert reported[0] & BROKEN

    run(watch)


def test_a_socket_removed_in_the_same_turn_is_not_called(pairs: list[Pair]) -> None:
    reported: list[int] = []

    async def watch(sockets: Sockets) -> None:
        def remove_both(found: int) -> None:
            reported.append(found)
            for ours, _ in pairs[:2]:
                sockets.remove(ours.fileno())

        for ours, theirs in pairs[:2]:
            sockets.add(ours.fileno(), remove_both)
            theirs.send(b"x")
        await turns()

    run(watch)
    assert reported == [READ]


# Ends and breaks of unread streams


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest):
    made = request.param()
    yield made
    made.close()


def ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname())
        return outer, listener.accept()[0]


async def watched(wanted: int, act) -> tuple[list[int], bytes]:
    """The conditions reported after ``act(the stream's other end)``, and the bytes that are still unread."""
    sockets = Sockets()
    outer, inner = ends()
    reported: list[int] = []
    sockets.add(inner.fileno(), reported.append, wanted)
    act(outer)
    for _ in range(10):
        await asyncio.sleep(0.01)
    sockets.remove(inner.fileno())
    sockets.remove(inner.fileno())
    sockets.close()
    inner.setblocking(False)
    try:
        rest = inner.recv(100)
    except OSError:
        rest = b""
    outer.close()
    inner.close()
    return reported, rest


def sends_and_ends(outer: socket.socket) -> None:
    outer.sendall(b"words")
    outer.shutdown(socket.SHUT_WR)


def sends_and_breaks(outer: socket.socket) -> None:
    outer.sendall(b"words")
    outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    outer.close()


def test_an_end_is_reported_once_without_reading(loop) -> None:
    assert loop.run_until_complete(watched(ENDED, sends_and_ends)) == ([RDHUP], b"words")


@pytest.mark.parametrize("wanted", [ENDED, BREAKS])
def test_a_break_is_reported_once_without_reading(loop, wanted: int) -> None:
    (found,), rest = loop.run_until_complete(watched(wanted, sends_and_breaks))
    assert found & FAILED
    assert rest == b"words"


def test_data_alone_is_not_an_end(loop) -> None:
    assert loop.run_until_complete(watched(ENDED, lambda outer: outer.sendall(b"words"))) == ([], b"words")


def test_an_end_is_not_a_break(loop) -> None:
    assert loop.run_until_complete(watched(BREAKS, sends_and_ends)) == ([], b"words")
