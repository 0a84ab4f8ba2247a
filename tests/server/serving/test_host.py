"""A model host's clients, without its threads: each step of the one that leads is taken here."""

from __future__ import annotations

import select
import socket
import time

import pytest

from rpcsys.server.serving.desk import Desk
from rpcsys.server.serving.host import STALLED_S, Host
from rpcsys.server.serving.line import Line

HELLO = {"serve": {"name": "model"}}


@pytest.fixture
def host():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Host(None, Desk(1, 4, 1 << 20), ours, HELLO, 1 << 20)


@pytest.fixture
def client():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def welcomed(host: Host, sock: socket.socket) -> Line:
    host._welcome(sock, {"client": "here", "greeted": True, "reply": None})
    return host._lines[sock.fileno()]


def test_a_client_that_takes_a_little_now_and_then_is_not_dropped(host, client, monkeypatch) -> None:
    ours, theirs = client
    line = welcomed(host, ours)
    began = time.monotonic()
    line.send([bytes(8 << 20)])
    host._rewatch(line)
    assert line.by >= began + STALLED_S
    line.by = began  # as if it had taken nothing for so long
    theirs.recv(1 << 20)
    host._attend(ours.fileno(), select.EPOLLOUT, alone=True)
    assert line.by >= began + STALLED_S
    line.by = began
    host._rewatch(line)  # another answer for it is no sign of life
    host._look(time.monotonic())
    assert line.closed
