"""The supervisor gives the front connections, and takes back their plain sides."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.link.admission import Admission
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import FRONT, ChildKind, Job
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import ChildProcess, Spawner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.fronts_io import FrontsIo
from rpcsys.server.supervisor.loop import Loop

CHILD = 4


class FrontIoHarness:
    """The supervisor's parts, the front's end of its control socket, and a client."""

    def __init__(self) -> None:
        self.loop = Loop(lambda: 100.0)
        self.clients = Clients(self.loop, None, "k", Admission())
        self.spawner = Spawner(self.loop, {})
        control, self.front = messages.pair()
        self.spawner.children[CHILD] = ChildProcess(ChildKind.FRONT, control, messages.Allowance(0.0, 99))
        self.io = FrontsIo(self.loop, self.clients, self.spawner, "/")
        self.client, ours = socket.socketpair()
        self.conn = self.clients.adopt(ours, False)
        self.loop.events.clear()

    def do(self, action: do.Action) -> None:
        self.io.actions()[type(action)](*vars(action).values())

    def close(self) -> None:
        self.clients.drop(self.conn)
        self.client.close()
        self.front.close()
        self.loop.close()


@pytest.fixture
def harness() -> Iterator[FrontIoHarness]:
    made = FrontIoHarness()
    yield made
    made.close()


def test_the_front_gets_its_job(harness: FrontIoHarness) -> None:
    harness.do(do.BeFront(CHILD))
    assert Job.from_bytes(messages.receive(harness.front)[0]).kind == FRONT


def test_a_connection_is_lent_and_its_plain_side_takes_its_place(harness: FrontIoHarness) -> None:
    harness.do(do.Secure(CHILD, harness.conn, "k:t1-x", "00", False))
    data, descriptor = messages.receive(harness.front)
    assert descriptor is not None
    order = json.loads(data)
    assert order == {"secure": harness.conn, "matchkey": "k:t1-x", "seed": "00", "answer": ""}  # a proxy has answered
    os.close(descriptor)
    ours, theirs = socket.socketpair()
    told = {"secured": harness.conn, "timeout_s": 5.0}
    assert harness.spawner.on_front is not None
    assert harness.spawner.on_front(CHILD, told, theirs.detach()) is None
    assert harness.loop.events.pop() == ev.Secured(100.0, harness.conn, None, None, 5.0)
    assert harness.clients.answer(harness.conn, False) != b""  # the greeting inside has no answer yet
    harness.clients.drop(harness.conn, b"last")
    assert ours.recv(10) == b"last"
    ours.close()


def test_what_is_not_known_any_more_goes_back(harness: FrontIoHarness) -> None:
    hear = harness.spawner.on_front
    assert hear is not None
    assert hear(CHILD, {"secured": 99}, 77) == 77
    assert not harness.loop.events
    with pytest.raises(ProtocolError):
        hear(CHILD, {"secured": harness.conn}, None)


def test_a_refusal_is_a_broken_opening(harness: FrontIoHarness) -> None:
    assert harness.spawner.on_front is not None
    harness.spawner.on_front(CHILD, {"refused": harness.conn, "why": "no TLS"}, None)
    assert harness.loop.events.pop() == ev.Broken(100.0, harness.conn, "no TLS")
