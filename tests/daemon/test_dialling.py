"""Connections to other daemons."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys

import pytest

from rpcsys.daemon import dialling
from rpcsys.daemon.dialling import dial, take_magic
from rpcsys.wire.tracker import MAGIC_BYTES


def test_a_refused_connection_is_freed_without_the_garbage_collector(no_collector: None) -> None:
    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            for _ in range(2):
                gc.collect()  # after the first attempt: frees objects that are made once
                with pytest.raises(ConnectionRefusedError):
                    await dial(*closed.getsockname())
                await asyncio.sleep(0.1)
        assert gc.collect() == 0

    asyncio.run(main())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="options of Linux")
def test_a_dialled_local_connection_uses_reno() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with await dial(*listener.getsockname()) as sock:
                used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert used.rstrip(b"\0") == b"reno"

    asyncio.run(main())


def test_the_addresses_of_a_host_are_tried_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, listener.getsockname()[1])) for host in HOSTS]

            async def lookup(*args, **kwargs):
                return found

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
            (await dial("board.lab", 1)).close()
            found.pop()
            with pytest.raises(ConnectionRefusedError):
                await dial("board.lab", 1)
            found.clear()
            with pytest.raises(OSError, match="has no address"):
                await dial("board.lab", 1)

    monkeypatch.setattr(dialling, "CONNECT_S", 0.5)
    asyncio.run(main())


def test_one_address_that_refuses_says_more_than_one_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]

        async def lookup(*args, **kwargs):
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port)) for host in ("127.0.0.1", "255.1.1.1")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
        with pytest.raises(ConnectionRefusedError):
            await dial("board.lab", port)

    asyncio.run(main())


HOSTS = ("127.1.2.3", "127.0.0.1")  # no server listens at the first


def test_an_invalid_host_name_is_an_error() -> None:
    with pytest.raises(OSError, match="is no host"):
        asyncio.run(dial("a..b", 1))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (MAGIC_BYTES + b"rest", ""),
        (MAGIC_BYTES[:2], "no answer in 1 s"),
        (MAGIC_BYTES[:2] + b"x", "it is no tracker"),
        (b"HTTP", "it is no tracker"),
        (b"", "it is no tracker"),
    ],
)
def test_a_tracker_is_known_by_its_magic(monkeypatch: pytest.MonkeyPatch, said: bytes, problem: str) -> None:
    monkeypatch.setattr(dialling, "CONNECT_S", 1.0)

    async def main() -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(said)
            if not said:
                theirs.shutdown(socket.SHUT_WR)
            try:
                await take_magic(ours)
            except OSError as error:
                return str(error)
            assert ours.recv(100) == b"rest"
            return ""

    assert asyncio.run(main()) == problem
