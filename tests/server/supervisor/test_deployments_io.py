"""Messages of hosts and deployers become events; actions become messages to them."""

from __future__ import annotations

import json
import os
import socket

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.link.admission import Admission
from rpcsys.server.config import parse
from rpcsys.server.models.store import Version
from rpcsys.server.sandbox import messages
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.children import ChildProcess, Spawner
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.deployments_io import DeploymentsIo
from rpcsys.server.supervisor.loop import Loop

HOST = 4
VERSION = Version("head", "0001-aaaaaaaaaaaa", "head.so", "a" * 64)


class HostHarness:
    """A host, with its end of the control socket, and a client."""

    def __init__(self, folder) -> None:
        self.loop = Loop(lambda: 100.0)
        self.clients = Clients(self.loop, None, "k", Admission())
        self.spawner = Spawner(self.loop, {})
        control, self.host = messages.pair()
        self.spawner.children[HOST] = ChildProcess(ChildKind.HOST, control, messages.Allowance(0.0, 99))
        config = parse(["--key", "k", "--deploy", str(folder), "--deploy-workers", "2"])
        self.reports: list[object] = []
        self.io = DeploymentsIo(
            self.loop, config, self.clients, self.spawner, lambda *report: self.reports.append(report)
        )
        self.client, ours = socket.create_server(("127.0.0.1", 0)), None
        self.client.setblocking(True)
        self.dialled = socket.create_connection(self.client.getsockname())
        ours, _ = self.client.accept()
        self.conn = self.clients.adopt(ours, True)
        self.loop.events.clear()

    def do(self, action):
        self.io.actions()[type(action)](*vars(action).values())

    def close(self):
        for sock in (self.host, self.client, self.dialled):
            sock.close()
        self.clients.drop(self.conn)
        self.loop.close()
        os.close(self.io._lock)


@pytest.fixture
def harness(tmp_path):
    made = HostHarness(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("said", "event"),
    [
        ({"load": [1, 2, 3]}, ev.Load(100.0, HOST, 1, 2, 3)),
        ({"loaded": ("onnx", ())}, ev.Loaded(100.0, HOST)),
        ({"unloadable": "it is broken"}, ev.Unloadable(100.0, HOST, "it is broken")),
        ({"stuck": True}, ev.Stuck(100.0, HOST)),
        ({"leaving": True}, ev.Leaving(100.0, HOST)),
        ({"try": list(VERSION)}, ev.Try(100.0, HOST, VERSION)),
        ({"changed": True}, ev.Changed(100.0, HOST)),
        ({"states": True}, ev.Asked(100.0, HOST)),
    ],
)
def test_each_message_posts_its_event(harness, said, event):
    assert harness.io.hear(HOST, said, None) is None
    assert list(harness.loop.events) == [event]


def test_a_version_with_an_invalid_name_is_not_tested(harness):
    harness.io.hear(HOST, {"try": ["../head", *VERSION[1:]]}, None)
    assert not harness.loop.events


def test_a_client_is_handed_over_and_returned(harness):
    harness.do(do.Hand(HOST, harness.conn, "peer", True, False))
    data, descriptor = messages.receive(harness.host)
    assert json.loads(data) == {"conn": harness.conn, "client": "peer", "reply": "", "greeted": False}
    assert harness.io.hear(HOST, {"took": harness.conn}, None) is None
    assert list(harness.loop.events) == [ev.HandedOver(100.0, HOST, harness.conn)]
    harness.loop.events.clear()
    assert harness.io.hear(HOST, {"moved": "peer", "greeted": True}, descriptor) is None
    (moved,) = harness.loop.events
    assert (type(moved), moved.peer, moved.greeted) == (ev.Moved, "peer", True)
    harness.clients.drop(moved.conn)


def test_a_returned_descriptor_must_be_a_connection(harness):
    reading, writing = os.pipe()
    with pytest.raises(ProtocolError):
        harness.io.hear(HOST, {"moved": "peer", "greeted": True}, reading)
    os.close(reading)
    os.close(writing)


def test_a_client_that_no_host_takes_is_posted_as_not_taken(harness):
    harness.spawner.children[HOST].control.close()
    harness.do(do.Hand(HOST, harness.conn, "peer", True, False))
    assert list(harness.loop.events) == [ev.NotTaken(100.0, HOST, harness.conn)]


def test_the_disk_is_read_and_modules_are_reported(harness):
    harness.do(do.Reread())
    assert list(harness.loop.events) == [ev.Catalogue(100.0, ())]
    harness.do(do.ReportDeployed(()))
    assert harness.reports == [((), 2)]
    harness.do(do.SendToChild(HOST, "leave", ""))
    assert json.loads(messages.receive(harness.host)[0]) == {"leave": ""}
