"""HELLO, the first frame of a session."""

from __future__ import annotations

import json
import socket

import pytest

from rpcsys import stream
from rpcsys.errors import ProtocolError
from rpcsys.server import capabilities
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello
from rpcsys.stream import Ended
from rpcsys.wire import frames


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield stream.open(ours), stream.open(theirs)


def test_hello_has_the_sessions_fields():
    job = Job("rpcsys/1", b"", ".", "rpi4", "peer")
    fields = hello.fields(job, {"numpy": True}, 3, 1 << 20, limit_s=None)
    assert fields.pop("pid") > 0
    assert fields == {
        "version": 1, "key": "rpi4", "capabilities": {"numpy": True}, "limit_s": None,
        "window": {"calls": 3, "bytes": 1 << 20},
    }  # fmt: skip
    assert hello.board(job)["devices"] == ["cpu:0"]


def test_the_frame_of_a_hello_has_the_same_fields(ends):
    job, flags = Job("rpcsys/1", b"", ".", "rpi4", "peer"), (True, False, True, True)
    able = {**capabilities.capabilities(pickle=True, cache=False, deploy=True, execs=True), "devices": []}
    ours, theirs = ends
    ours.send(hello.frame(job, hello.capable(*flags), 3, 1 << 20, limit_s=None, **hello.board(job)))
    received = theirs.receive()
    assert received.kind == frames.HELLO
    assert received.parsed.head == hello.fields(job, able, 3, 1 << 20, limit_s=None, **hello.board(job))


def test_capabilities_are_found_again_after_imports(monkeypatch):
    before = hello.capable(False, False, False, False)
    monkeypatch.setattr(capabilities, "capabilities", lambda **flags: flags)
    assert hello.capable(False, False, False, False) == before
    hello.prepare(True, False, False, False)
    assert json.loads(hello.capable(True, False, False, False)) == {
        "pickle": True,
        "cache": False,
        "deploy": False,
        "execs": False,
    }
    monkeypatch.undo()
    hello.prepare(False, False, False, False)
    assert hello.capable(False, False, False, False) == before


def test_the_clients_hello_is_received(ends):
    ours, theirs = ends
    theirs.send(frames.encode(frames.HELLO, 0, {"limit_s": 5}))
    assert hello.received(ours).get("limit_s") == 5


@pytest.mark.parametrize("sent", [frames.pack(frames.PING, 1), []])
def test_another_frame_or_none_in_time_is_refused(ends, sent, monkeypatch):
    monkeypatch.setattr(hello, "HELLO_S", 0.05)
    ours, theirs = ends
    theirs.send(sent)
    with pytest.raises(ProtocolError, match="begins with HELLO"):
        hello.received(ours)


def test_a_closed_connection_raises_ended(ends):
    ours, theirs = ends
    theirs.close()
    with pytest.raises(Ended):
        hello.received(ours)


@pytest.mark.parametrize(
    ("memory", "window"), [(1 << 20, 1 << 20), (1 << 30, 64 << 20), (1 << 40, 256 << 20), (0, 256 << 20)]
)
def test_the_window_is_a_part_of_the_memory(monkeypatch, memory, window):
    monkeypatch.setattr(capabilities, "memory", lambda: memory)
    assert hello.window_bytes() == window
    assert hello.memory() <= frames.MAX_BODY
