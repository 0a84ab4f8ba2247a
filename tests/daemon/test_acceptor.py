"""Accepting connections, and the limits on their number."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket

import pytest

from rpcsys.daemon import acceptor
from rpcsys.daemon.acceptor import (
    LOG_EVERY_S,
    PLENTY,
    Acceptor,
    ConnectionLimit,
    descriptor_limit,
    raise_descriptor_limit,
)


class Listener:
    """A listener whose first calls of accept fail with ``errors``; everything else is the socket's own."""

    def __init__(self, *errors: int) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.errors = list(errors)

    def accept(self):
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, f"error {number}")
        return self.socket.accept()

    def __getattr__(self, name: str):
        return getattr(self.socket, name)


async def accepted(listener: Listener, count: int) -> tuple[Acceptor, list[socket.socket]]:
    """Connect ``count`` times; the acceptor and the accepted connections."""
    taken: list[socket.socket] = []
    made = Acceptor(listener, lambda sock, address: taken.append(sock))  # type: ignore[arg-type]
    for _ in range(count):
        socket.create_connection(("127.0.0.1", made.port)).close()
    for _ in range(300):
        if len(taken) == count:
            break
        await asyncio.sleep(0.01)
    return made, taken


def close(made: Acceptor, taken: list[socket.socket]) -> None:
    made.close()
    for sock in taken:
        sock.close()


def test_connections_are_non_blocking_and_more_than_a_burst_are_accepted() -> None:
    async def main() -> None:
        made, taken = await accepted(Listener(), acceptor.BURST + 5)
        assert len(taken) == acceptor.BURST + 5
        assert not any(sock.getblocking() for sock in taken)
        close(made, taken)

    asyncio.run(main())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_without_descriptors_it_pauses_logs_and_goes_on(number: int, caplog) -> None:
    async def main() -> None:
        made, taken = await accepted(Listener(number, number), 3)
        assert len(taken) == 3
        close(made, taken)

    asyncio.run(main())
    (record,) = caplog.records
    assert "cannot accept connections" in record.getMessage()


def test_a_connection_that_ended_before_it_is_accepted_is_skipped(caplog) -> None:
    async def main() -> None:
        made, taken = await accepted(Listener(errno.ECONNABORTED), 2)
        assert len(taken) == 2
        close(made, taken)

    asyncio.run(main())
    assert not caplog.records


def test_closed_while_it_pauses_it_stays_closed() -> None:
    async def main() -> None:
        listener = Listener(errno.EMFILE)
        made, _ = await accepted(listener, 0)
        with socket.create_connection(("127.0.0.1", made.port)):
            await asyncio.sleep(acceptor.PAUSE_S / 2)
            assert not listener.errors
        made.close()
        await asyncio.sleep(2 * acceptor.PAUSE_S)
        assert listener.fileno() == -1

    asyncio.run(main())


def test_connections_are_limited_by_address_and_in_all(caplog) -> None:
    limit = ConnectionLimit(2, 3, logging.getLogger("test"), "see there")
    assert [limit.admit(address, 0.0) for address in "aaabc"] == [True, True, False, True, False]
    assert [row.getMessage() for row in caplog.records] == ["a has 2 connections and gets no more: see there"]
    assert not limit.admit("c", LOG_EVERY_S)
    assert len(caplog.records) == 2
    limit.leave("a")
    assert limit.admit("c", LOG_EVERY_S)
    for address in "abc":
        limit.leave(address)
    assert not limit.counts


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """This process's limits on descriptors, in order of setting: the last holds."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: made[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: made.append(both))
    return made


@pytest.mark.parametrize(
    ("before", "after", "logged"),
    [
        ((1024, 1 << 20), 1 << 20, False),
        ((1024, 4096), 4096, True),
        ((1024, resource.RLIM_INFINITY), PLENTY, False),
        ((1 << 18, resource.RLIM_INFINITY), 1 << 18, False),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY, False),
    ],
)
def test_the_limit_on_descriptors_is_raised_as_far_as_possible(limits, before, after, logged, caplog) -> None:
    limits.append(before)
    assert raise_descriptor_limit() == after
    assert descriptor_limit() == (None if after == resource.RLIM_INFINITY else after)
    assert ("ulimit -Hn" in caplog.text) == logged


def test_a_refused_higher_limit_is_ignored(limits, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, both: tuple[int, int]) -> None:
        raise ValueError

    limits.append((1024, 1 << 20))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_descriptor_limit() == 1024
