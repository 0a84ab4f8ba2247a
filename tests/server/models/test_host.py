"""A model host's clients, without its threads: each step of the one that leads is taken here."""

from __future__ import annotations

import select
import socket
import time

import pytest

from rpcsys.server.models.call_queue import CallQueue
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.models.host import MOST_UNSENT, STALLED_S, ModelHost

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


def welcomed(host: ModelHost, sock: socket.socket) -> ClientConnection:
    host._welcome(sock, {"client": "here", "greeted": True, "reply": None})
    return host._connections[sock.fileno()]


def test_a_client_that_takes_a_little_now_and_then_is_not_dropped(host, client, monkeypatch) -> None:
    ours, theirs = client
    connection = welcomed(host, ours)
    began = time.monotonic()
    connection.send([bytes(8 << 20)])
    host._rewatch(connection)
    assert connection.by >= began + STALLED_S
    connection.by = began  # as if it had taken nothing for so long
    theirs.recv(1 << 20)
    host._attend(ours.fileno(), select.EPOLLOUT, alone=True)
    assert connection.by >= began + STALLED_S
    connection.by = began
    host._rewatch(connection)  # another answer for it is no sign of life
    host._look(time.monotonic())
    assert connection.closed


def test_clients_that_take_nothing_have_a_bounded_share_of_the_memory(host) -> None:
    """The one for whom most waits goes when all together are above the limit."""
    connections, ends = [], []
    for number in range(4):
        ours, theirs = socket.socketpair()
        ends += [ours, theirs]
        connections.append(welcomed(host, ours))
        connections[-1].send([bytes((number + 1) << 20)])
        host._rewatch(connections[-1])
    host._shed()
    assert [connection.closed for connection in connections] == [False, False, True, True]
    assert 0 < sum(connection.unsent for connection in connections) <= MOST_UNSENT << 20
    for end in ends:
        end.close()
