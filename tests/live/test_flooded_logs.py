"""Many connections with invalid or no messages: the logs name their address and stay short."""

from __future__ import annotations

import socket

import pytest

from tests.live.daemons import Daemon, Daemons, wait_until
from tests.live.probe import opening

MANY = 300
MOST_LINES = 30


@pytest.fixture(params=["tracker", "proxy", "server"])
def daemon(daemons: Daemons, request: pytest.FixtureRequest) -> Daemon:
    return daemons.server("k") if request.param == "server" else getattr(daemons, request.param)()


def connect(daemon: Daemon, data: bytes) -> socket.socket:
    sock = socket.create_connection(daemon.address, timeout=30)
    sock.sendall(data)
    return sock


def ended(sock: socket.socket) -> None:
    with sock:
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            pass


def logged(daemon: Daemon) -> list[str]:
    lines = [line for line in daemon.stderr().splitlines() if "127.0.0.1" in line and "serving" not in line]
    assert all("connection dropped" not in line for line in lines)
    return lines


def flood(daemon: Daemon, data: bytes) -> None:
    for _ in range(MANY):
        ended(connect(daemon, data))
    wait_until(lambda: "more lines about 127.0.0.1 are left out" in "\n".join(logged(daemon)), 10, "a line about it")
    assert len(daemon.stderr().splitlines()) <= MOST_LINES


def test_invalid_messages_do_not_fill_the_log(daemon: Daemon):
    flood(daemon, b"GET / HTTP/1.1\r\n\r\n")


def test_unknown_keys_do_not_fill_the_log(daemons: Daemons):
    flood(daemons.server("k"), opening("another:1"))


@pytest.mark.slow
def test_silent_connections_do_not_fill_the_log(daemon: Daemon):
    held = [connect(daemon, b"") for _ in range(MANY)]
    for sock in held:
        ended(sock)
    wait_until(lambda: "more lines about" in "\n".join(logged(daemon)), 10, "a line about them")
    assert len(daemon.stderr().splitlines()) <= MOST_LINES
