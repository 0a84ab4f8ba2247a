"""Forwarded ports of a session."""

import socket

import pytest

from rpcsys.errors import ProgramError, UsageError
from tests.device import Device, until


@pytest.fixture(scope="module")
def session():
    with Device(allow_exec=True) as device, device.session() as session:
        yield session


@pytest.fixture
def served():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.parametrize("reverse", [False, True])
def test_a_connection_goes_through_until_the_port_is_closed(session, served, reverse):
    port = served.getsockname()[1]
    ports = (0, port) if reverse else (port,)
    with (
        session.forward(*ports, reverse=reverse) as forward,
        socket.create_connection(("127.0.0.1", forward.port)) as here,
    ):
        there, _ = served.accept()
        here.sendall(b"x")
        assert there.recv(1) == b"x"
        there.sendall(b"y")
        assert here.recv(1) == b"y"
    assert there.recv(1) == b""
    there.close()
    until(lambda: socket.socket().connect_ex(("127.0.0.1", forward.port)))


def test_a_port_in_use_is_one_line(session, served):
    port = served.getsockname()[1]
    with pytest.raises(UsageError, match=f"port {port} here"):
        session.forward(80, port)
    with pytest.raises(ProgramError, match=f"port {port} of the device"):
        session.forward(port, 80, reverse=True)
