"""What a model host loads, and its clients. There are no threads: the tests take each step of the leader."""

from __future__ import annotations

import select
import socket
import time

import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError
from rpcsys.server.models import host as host_module
from rpcsys.server.models.call_queue import CallQueue
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.models.host import MOST_UNSENT, STALLED_S, ModelHost
from tests.live import deployed

HELLO = {"serve": {"name": "model"}}


@pytest.fixture
def host():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ModelHost(None, CallQueue(1, 4, 1 << 20), ours, HELLO, 1 << 20)


@pytest.fixture
def client():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def connected(host: ModelHost, sock: socket.socket) -> ClientConnection:
    host._add_client(sock, {"client": "here", "greeted": True, "reply": None})
    return host._connections[sock.fileno()]


def test_a_client_that_receives_slowly_is_not_dropped(host, client, monkeypatch) -> None:
    ours, theirs = client
    connection = connected(host, ours)
    began = time.monotonic()
    connection.send([bytes(8 << 20)])
    host._rewatch(connection)
    assert connection.by >= began + STALLED_S
    connection.by = began  # as if it had received nothing for so long
    theirs.recv(1 << 20)
    host._attend(ours.fileno(), select.EPOLLOUT, alone=True)
    assert connection.by >= began + STALLED_S
    connection.by = began
    host._rewatch(connection)  # a further answer does not extend its time
    host._do_due(time.monotonic())
    assert connection.closed


def test_unsent_data_of_all_clients_is_limited(host) -> None:
    """Above the limit for all, the clients with the most unsent data are dropped."""
    connections, ends = [], []
    for number in range(4):
        ours, theirs = socket.socketpair()
        ends += [ours, theirs]
        connections.append(connected(host, ours))
        connections[-1].send([bytes((number + 1) << 20)])
        host._rewatch(connections[-1])
    host._shed()
    assert [connection.closed for connection in connections] == [False, False, True, True]
    assert 0 < sum(connection.unsent for connection in connections) <= MOST_UNSENT << 20
    for end in ends:
        end.close()


@pytest.mark.parametrize("runtime", [True, False])
def test_an_onnx_file_runs_with_or_without_onnxruntime(tmp_path, monkeypatch, runtime):
    path = deployed.onnx_model(tmp_path / "model.onnx", 3.0)
    monkeypatch.setattr(host_module, "installed", lambda package: runtime)
    module = host_module.load(str(path), "model", allow_pickle=False)
    x = np.arange(4, dtype="float32")
    assert np.array_equal(module(x), x * 3)
    assert np.array_equal(module.run({"x": x}, ["y"])["y"], x * 3)
    described = module.describe()
    assert (described["kind"], described["functions"]) == ("rpcsys.onnx", ["main"])
    assert [value["name"] for value in described["inputs"]] == ["x"]
    with pytest.raises(RemoteArgumentError, match="takes 1 input"):
        module(x, x)


def test_python_functions_are_loaded_only_if_allowed(tmp_path):
    path = str(deployed.library(tmp_path / "scale.so", 2.0))
    assert host_module.load(path, "scale", allow_pickle=True)(np.float32(2)) == 4
    with pytest.raises(ModelError):
        host_module.load(path, "scale", allow_pickle=False)
