"""What hosts and deployers say, as events; what they are told, as messages."""

from __future__ import annotations

import json
import os
import socket

import pytest

from rpcsys.errors import ProtocolError
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


class Scene:
    """A host whose end of the control socket a test holds, and a client."""

    def __init__(self, folder) -> None:
        self.loop = Loop(lambda: 100.0)
        self.clients = Clients(self.loop, None, "k")
        self.spawner = Spawner(self.loop, {})
        control, self.host = messages.pair()
        self.spawner.children[HOST] = ChildProcess(ChildKind.HOST, control, messages.Allowance(0.0, 99))
        config = parse(["--key", "k", "--deploy", str(folder), "--deploy-workers", "2"])
        self.told: list[object] = []
        self.io = DeploymentsIo(self.loop, config, self.clients, self.spawner, lambda *told: self.told.append(told))
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
def scene(tmp_path):
    made = Scene(tmp_path)
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
def test_what_is_said(scene, said, event):
    assert scene.io.hear(HOST, said, None) is None
    assert list(scene.loop.events) == [event]


def test_a_version_that_has_no_name_is_not_tried(scene):
    scene.io.hear(HOST, {"try": ["../head", *VERSION[1:]]}, None)
    assert not scene.loop.events


def test_a_client_is_handed_over_and_comes_back(scene):
    scene.do(do.Hand(HOST, scene.conn, "peer", True, False))
    data, descriptor = messages.receive(scene.host)
    assert json.loads(data) == {"client": "peer", "reply": "", "greeted": False}
    assert scene.io.hear(HOST, {"moved": "peer", "greeted": True}, descriptor) is None
    (moved,) = scene.loop.events
    assert (type(moved), moved.peer, moved.greeted) == (ev.Moved, "peer", True)
    scene.clients.drop(moved.conn)


def test_what_comes_back_is_a_connection_or_nothing(scene):
    reading, writing = os.pipe()
    with pytest.raises(ProtocolError):
        scene.io.hear(HOST, {"moved": "peer", "greeted": True}, reading)
    os.close(reading)
    os.close(writing)


def test_a_client_that_no_host_takes_waits_for_another(scene):
    scene.spawner.children[HOST].control.close()
    scene.do(do.Hand(HOST, scene.conn, "peer", True, False))
    assert list(scene.loop.events) == [ev.NotTaken(100.0, HOST, scene.conn, "peer", True, False)]


def test_what_the_disk_says_and_what_a_tracker_is_told(scene):
    scene.do(do.Reread())
    assert list(scene.loop.events) == [ev.Catalogue(100.0, ())]
    scene.do(do.ReportDeployed(()))
    assert scene.told == [((), 2)]
    scene.do(do.SendToChild(HOST, "leave", ""))
    assert json.loads(messages.receive(scene.host)[0]) == {"leave": ""}
