"""Whose connections they are, by the kernel's tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from rpcsys.forward.owners import uid_of

CONNECT = """
import encodings.idna, os, socket, sys
os.setuid(12345)
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sock.recv(1)
"""


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_an_own_connection(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]):
            inner, address = listener.accept()
            with inner:
                assert uid_of(address, inner.getsockname()) == os.geteuid()


def test_a_socket_of_both_families() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET6) as outer:
        outer.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        inner, address = listener.accept()
        with inner:
            assert uid_of(address, inner.getsockname()) == os.geteuid()


def test_nobody_has_it_any_more() -> None:
    assert uid_of(("127.0.0.1", 1), ("127.0.0.1", 2)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_connection_of_another_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = subprocess.Popen([sys.executable, "-c", CONNECT, *map(str, listener.getsockname())])
        inner, address = listener.accept()
        with inner:
            assert uid_of(address, inner.getsockname()) == 12345
        assert other.wait(30) == 0
