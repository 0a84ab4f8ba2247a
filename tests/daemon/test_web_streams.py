"""Connections that are told apart by their first byte."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rpcsys.daemon.web_streams import tell_apart


@pytest.mark.parametrize(
    ("said", "found"), [(b"\x16\x03\x01", "tls"), (b"GET /", "plain"), (b"", "end"), (None, "end")]
)
def test_the_first_byte_decides_and_is_not_read(said, found) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    calls: list[str] = []

    async def run() -> None:
        done = asyncio.Event()

        def called(name):
            return lambda: (calls.append(name), done.set())

        tell_apart(ours, 1.0, called("plain"), called("tls"), called("end"))
        if said:
            theirs.sendall(said)
        elif said is not None:
            theirs.close()
        await asyncio.wait_for(done.wait(), 30)

    asyncio.run(run())
    assert calls == [found]
    if said:
        assert ours.recv(10) == said
    else:
        assert ours.fileno() == -1
    ours.close()
    theirs.close()
