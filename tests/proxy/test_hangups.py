"""Ends and breaks of streams that nobody reads."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

from rpcsys.proxy.hangups import BROKEN, ENDED, Hangups


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest):
    made = request.param()
    yield made
    made.close()


def ends() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname())
        return outer, listener.accept()[0]


async def watched(wanted: int, act) -> tuple[int, bytes]:
    """How often the end of a stream was told after ``act(its other end)``, and what can still be read."""
    hangups = Hangups()
    outer, inner = ends()
    told = []
    hangups.add(inner, wanted, lambda: told.append(1))
    act(outer)
    for _ in range(10):
        await asyncio.sleep(0.01)
    hangups.remove(inner)
    hangups.remove(inner)
    hangups.close()
    inner.setblocking(False)
    try:
        rest = inner.recv(100)
    except OSError:
        rest = b""
    outer.close()
    inner.close()
    return len(told), rest


def says_and_ends(outer: socket.socket) -> None:
    outer.sendall(b"words")
    outer.shutdown(socket.SHUT_WR)


def says_and_breaks(outer: socket.socket) -> None:
    outer.sendall(b"words")
    outer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    outer.close()


def test_an_end_is_told_once_and_nothing_is_read(loop) -> None:
    assert loop.run_until_complete(watched(ENDED, says_and_ends)) == (1, b"words")


def test_a_break_is_told_to_whoever_asked(loop) -> None:
    for wanted in (ENDED, BROKEN):
        assert loop.run_until_complete(watched(wanted, says_and_breaks)) == (1, b"words")


def test_words_alone_are_no_end(loop) -> None:
    assert loop.run_until_complete(watched(ENDED, lambda outer: outer.sendall(b"words"))) == (0, b"words")


def test_an_end_is_no_break(loop) -> None:
    assert loop.run_until_complete(watched(BROKEN, says_and_ends)) == (0, b"words")
