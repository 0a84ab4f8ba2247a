"""What a model host loads, and its clients. There are no threads: the tests take each step of the leader."""

from __future__ import annotations

import json
import select
import socket
import threading
import time

import numpy as np
import pytest

from rpcsys.errors import ModelError, RemoteArgumentError
from rpcsys.server.models import host as host_module
from rpcsys.server.models.call_queue import CallQueue
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.models.host import MOST_UNSENT, STALLED_S, ModelHost
from rpcsys.server.sandbox import messages
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
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


def test_it_says_that_it_has_a_connection_before_it_uses_it(monkeypatch, client) -> None:
    ours, theirs = client
    supervisor, control = messages.pair()
    with supervisor, control:
        control.setblocking(False)
        host = ModelHost(None, CallQueue(1, 4, 1 << 20), control, HELLO, 1 << 20)
        while host._send(load=[0, 0, 0]):
            pass  # until the supervisor's end is full
        messages.send_json(supervisor, ours.fileno(), conn=7, client="here", greeted=False, reply="answer")
        waiting = threading.Thread(target=host._take_order)
        waiting.start()
        theirs.settimeout(1.0)
        with pytest.raises(TimeoutError):
            theirs.recv(1)
        while json.loads(messages.receive(supervisor)[0]) != {"took": 7}:
            pass
        theirs.settimeout(30.0)
        assert theirs.recv(6) == b"answer"
        waiting.join()
        (connection,) = host._connections.values()
        connection.close()


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


def test_a_client_of_another_host_gets_hello_again(host, client) -> None:
    ours, theirs = client
    connected(host, ours)
    (frame,) = FrameReader().feed(theirs.recv(1 << 16))
    assert (frame.kind, frame.fields()) == (frames.HELLO, HELLO)
