"""A server with --session-network none: a session reaches its client, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rpcsys
from rpcsys.errors import RemoteError
from rpcsys.server.sandbox import network_namespace
from tests.live.daemons import ROOT, Daemon, Daemons
from tests.live.test_contained import as_user

WHY_NOT = network_namespace.probe()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no network namespaces here: {WHY_NOT}")

FLAGS = ("--session-network", "none", "--allow-pickle")


@pytest.fixture(scope="module", params=[("root", ()), ("root", ("--no-fork",)), ("nobody", ())], ids=str)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    user, flags = request.param
    daemons = Daemons(tmp_path_factory.mktemp("daemons"))
    yield as_user(daemons, user, (*FLAGS, *flags))
    daemons.stop()


def dial(*address: object) -> None:
    socket.create_connection(address, 5).close()  # type: ignore[arg-type]


def dial_unix(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(name)


def interfaces() -> list[tuple[int, str]]:
    return socket.if_nameindex()


def talk_to_itself() -> bytes:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname(), 5) as sock:
            sock.sendall(b"hello")
            return listener.accept()[0].recv(5)


def test_a_session_reaches_nothing(server: Daemon):
    host, port = server.address
    with socket.socket(socket.AF_UNIX) as listener, rpcsys.connect(host, port, key="k") as session:
        abstract = f"\0rpcsys-test-{os.getpid()}"
        listener.bind(abstract)
        listener.listen()
        dial_unix(abstract)
        assert session.run(interfaces) == [(1, "lo")]
        with pytest.raises(RemoteError, match="Connection refused"):
            session.run(dial, "127.0.0.1", port)
        with pytest.raises(RemoteError, match="Network is unreachable"):
            session.run(dial, "192.0.2.1", 9)
        with pytest.raises(RemoteError, match="Connection refused"):
            session.run(dial_unix, abstract)


def test_its_client_and_its_loopback_are_there(server: Daemon, tmp_path: Path):
    sent = np.arange(1_000_000, dtype="float32")
    (tmp_path / "file").write_bytes(b"content")
    with rpcsys.connect(*server.address, key="k") as session:
        echo = session.get_function("testing.echo")
        assert (echo(sent) == sent).all()
        assert [call.result() for call in [echo.submit(number) for number in range(300)]] == list(range(300))
        session.upload(tmp_path / "file")
        assert session.download("file") == b"content"
        assert session.run(talk_to_itself) == b"hello"


def test_tvms_client_is_served(daemons: Daemons, tmp_path: Path):
    from tvm import rpc

    (tmp_path / "file").write_bytes(b"content")
    server = daemons.server("k", *FLAGS, flavour="ctypes")
    session = rpc.connect(*server.address, key="k")
    session.upload(str(tmp_path / "file"))
    assert session.download("file") == b"content"
    del session


def test_a_server_that_cannot_do_it_does_not_start():
    without_right = ["setpriv", "--bounding-set", "-sys_admin", "--"]
    command = [*without_right, sys.executable, "-m", "rpcsys.server", "--host", "127.0.0.1", "--port", "0", *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2
    assert "--session-network none: sessions get no network of their own here (" in done.stderr
    assert "Traceback" not in done.stderr
