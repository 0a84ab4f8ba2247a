"""Keepalive of clients' connections."""

from __future__ import annotations

import socket

import pytest

from rpcsys.link.tcp import KEEPALIVE_S
from rpcsys.server.supervisor import clients as clients_module
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.loop import Loop


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_keepalive_runs_every_few_seconds(listener, monkeypatch: pytest.MonkeyPatch):
    now, looked = [100.0], []
    loop = Loop(lambda: now[0])
    monkeypatch.setattr(clients_module, "keep_alive", looked.append)
    clients = Clients(loop, listener, "key")
    assert not loop.timers  # an idle board sleeps
    with socket.create_connection(listener.getsockname()):
        while not loop.events:
            loop.run_once(5.0)
        (accepted,) = loop.events
        assert isinstance(accepted, ev.Accepted)
        assert [sock.fileno() for sock in looked] == [clients.descriptor(accepted.conn)]
        now[0] += KEEPALIVE_S / 2
        loop.run_once(0.0)
        assert len(looked) == 1
        now[0] += KEEPALIVE_S / 2
        loop.run_once(0.0)
        assert len(looked) == 2
        clients.drop(accepted.conn)
    assert not loop.timers
