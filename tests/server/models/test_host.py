"""A model host's clients, without its threads: each step of the one that leads is taken here."""

from __future__ import annotations

import select
import socket
import time

import pytest

from rpcsys.server.models.call_queue import Desk
from rpcsys.server.models.host import MOST_UNSENT, STALLED_S, Host
from rpcsys.server.models.line import Line

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


def test_clients_that_take_nothing_have_a_bounded_share_of_the_memory(host) -> None:
    """The one for whom most waits goes when all together are above the limit."""
    lines, ends = [], []
    for number in range(4):
        ours, theirs = socket.socketpair()
        ends += [ours, theirs]
        lines.append(welcomed(host, ours))
        lines[-1].send([bytes((number + 1) << 20)])
        host._rewatch(lines[-1])
    host._shed()
    assert [line.closed for line in lines] == [False, False, True, True]
    assert 0 < sum(line.unsent for line in lines) <= MOST_UNSENT << 20
    for end in ends:
        end.close()
