"""Connecting without blocking: names are looked up, addresses are tried in turn."""

from __future__ import annotations

import selectors
import socket
import sys
import time

import pytest

from rpcsys.link import dialling
from rpcsys.link.dialling import Dialling
from tests.link.test_tcp import congestion, unsent


def connect(host: str, port: int) -> socket.socket:
    """A connection, dialled as a loop does it."""
    dialled = Dialling(host, port)
    try:
        with selectors.DefaultSelector() as selector:
            while True:
                selector.register(*dialled.awaited)
                assert selector.select(30)
                selector.unregister(dialled.awaited[0])
                sock = dialled.advance()
                if sock is not None:
                    return sock
    finally:
        dialled.close()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="options of Linux")
def test_a_dialled_connection_within_one_machine_is_tuned(listener) -> None:
    with connect(*listener.getsockname()) as sock:
        assert not sock.getblocking()
        assert congestion(sock) == b"reno"
        assert 0 < unsent(sock) <= 1 << 20


def entries(*ports: int):
    """The result of a lookup: these ports of this machine."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return gone.getsockname()[1]


def test_a_name_is_looked_up_and_its_addresses_are_tried_in_turn(listener, monkeypatch) -> None:
    port = listener.getsockname()[1]

    def found(host, port_, family, kind, protocol, flags):
        if flags:
            raise OSError("a name")
        time.sleep(0.1)
        return entries(closed_port(), port)

    monkeypatch.setattr(dialling.socket, "getaddrinfo", found)
    with connect("board.lab", 1) as sock:
        assert sock.getpeername()[1] == port


def test_if_no_address_accepts_the_last_error_is_raised(monkeypatch) -> None:
    monkeypatch.setattr(dialling.socket, "getaddrinfo", lambda *args: entries(closed_port(), closed_port()))
    with pytest.raises(ConnectionRefusedError):
        connect("127.0.0.1", 1)


@pytest.mark.parametrize("host", ["no such host", "a..b", "x" * 200])
def test_an_unknown_host_raises(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        connect(host, 1)


def test_close_works_in_each_state_and_twice(listener) -> None:
    dialled = Dialling(*listener.getsockname())
    dialled.close()
    dialled.close()
    dialled = Dialling(*listener.getsockname())
    dialled.advance()
    dialled.close()
