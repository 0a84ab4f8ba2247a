"""Clients' connections: when they are looked at, and what for."""

from __future__ import annotations

import socket

import pytest

from rpcsys.link import KEEPALIVE_S
from rpcsys.server.supervisor import clients as clients_module
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.loop import Loop


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_with_a_connection_it_is_patient_every_few_seconds(listener, monkeypatch: pytest.MonkeyPatch):
    loop, events, looked = Loop(), [], []
    monkeypatch.setattr(clients_module, "keep_alive", looked.append)
    clients = Clients(loop, listener, "key", events.append, lambda: 0.0)
    assert clients.due() is None  # an idle board sleeps
    with socket.create_connection(listener.getsockname()):
        loop.run_once(5.0)
        (accepted,) = events
        assert isinstance(accepted, ev.Accepted)
        clients.look(100.0)
        assert [sock.fileno() for sock in looked] == [clients.descriptor(accepted.conn)]
        clients.look(100.0 + KEEPALIVE_S / 2)
        assert len(looked) == 1
        assert clients.due() == 100.0 + KEEPALIVE_S
        clients.look(clients.due())
        assert len(looked) == 2
        clients.drop(accepted.conn)
    assert clients.due() is None
    clients.look(200.0)
    assert len(looked) == 2
