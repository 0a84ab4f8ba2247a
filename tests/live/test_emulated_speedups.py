"""The compiled library on boards with other processors: packed by one command, and used."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

import rpcsys
from rpcsys.pack import build
from tests.live.boards import KEY, unpacked
from tests.live.daemons import Daemon, Daemons
from tests.live.emulated import MACHINES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Whether the archive has the library.
PACKED = {"packed": True, "none": False}


@pytest.fixture(scope="module", params=[(name, "packed") for name in MACHINES] + [("armhf", "none")], ids="-".join)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_daemons: Callable[[], Daemons]
) -> Daemon:
    name, packed = request.param
    folder = tmp_path_factory.mktemp(name)
    archive = build.pack(MACHINES[name].triple, folder / "a.tar.gz", speedups=PACKED[packed]).path
    board = unpacked(archive, MACHINES[name], folder / "board")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RPCSYS_SPEEDUPS", raising=False)
        daemon = board.start(module_daemons(), "--host", "127.0.0.1", "--port", "0")
    daemon.await_ready_line()
    return daemon


def test_a_board_uses_what_is_packed(server: Daemon, request: pytest.FixtureRequest) -> None:
    with rpcsys.connect(*server.address, key=KEY) as session:
        assert session.info["capabilities"]["speedups"] is PACKED[request.node.callspec.params["server"][1]]
        echo = session.get_function("testing.echo")
        assert [echo(number) for number in range(100)] == list(range(100))
        assert [future.result() for future in [echo.submit(i) for i in range(300)]] == list(range(300))
        for count in (0, 1, 1_000, 400_000):
            sent = np.arange(count, dtype="float64")
            assert (echo(sent) == sent).all()
        content = os.urandom(3_000_000)
        session.upload(content, "file")
        assert bytes(session.download("file")) == content


def test_the_server_stops_with_status_0(server: Daemon) -> None:
    assert server.terminate(60) == 0
