"""Keepalive of clients' connections."""

from __future__ import annotations

import os
import socket

import pytest

from rpcsys.link.admission import Admission
from rpcsys.link.tcp import KEEPALIVE_S
from rpcsys.server.supervisor import clients as clients_module
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.clients import Clients
from rpcsys.server.supervisor.loop import Loop
from rpcsys.wire import frames, last_words, pinned_keys
from rpcsys.wire.reader import FrameReader


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


def test_keepalive_runs_every_few_seconds(listener, monkeypatch: pytest.MonkeyPatch):
    now, looked = [100.0], []
    loop = Loop(lambda: now[0])
    monkeypatch.setattr(clients_module, "keep_alive", looked.append)
    clients = Clients(loop, listener, "key", Admission())
    assert not loop.timers  # an idle board sleeps
    for _ in range(2):
        looked.clear()
        now[0] += 2 * KEEPALIVE_S / 3  # the second connection begins before the first one's next turn
        with socket.create_connection(listener.getsockname()):
            while not loop.events:
                loop.run_once(5.0)
            accepted = loop.events.popleft()
            assert isinstance(accepted, ev.Accepted)
            for turns in (0, 1, 2):
                assert [sock.fileno() for sock in looked] == turns * [clients.descriptor(accepted.conn)]
                now[0] += KEEPALIVE_S / 2
                loop.run_once(0.0)
                assert len(looked) == turns
                now[0] += KEEPALIVE_S / 2
                loop.run_once(0.0)
            clients.drop(accepted.conn)
        assert not loop.timers


PINNED = f"k:t1-{'1f' * 32}-{'5c' * 16}"


@pytest.mark.parametrize("unanswered", [False, True])
def test_the_error_of_an_encrypted_session_is_its_last_words(listener, unanswered: bool):
    loop = Loop()
    clients = Clients(loop, listener, "k", Admission(()))
    with socket.create_connection(listener.getsockname()) as sock:
        sock.settimeout(20)
        while not loop.events:
            loop.run_once(1.0)
        conn = loop.events.popleft().conn
        clients.turn_away(conn, "MemoryLimit", "too much", unanswered, PINNED)
        said = sock.recv(10_000, socket.MSG_WAITALL)
    answer = clients.success(True) if unanswered else b""
    assert said.startswith(answer + last_words.MAGIC)
    match_key = pinned_keys.parse(PINNED)
    assert match_key is not None
    assert last_words.find(said, match_key)["message"] == "too much"
    clients.stop_listening()
    loop.close()


@pytest.mark.parametrize("answered", [False, True])
def test_an_error_follows_an_answer_whoever_has_sent_it(listener, answered: bool):
    loop = Loop()
    clients = Clients(loop, listener, "k", Admission(()))
    with socket.create_connection(listener.getsockname()) as sock:
        sock.settimeout(20)
        while not loop.events:
            loop.run_once(1.0)
        conn = loop.events.popleft().conn
        answer = clients.success(True)
        if answered:  # by a session's process, which has the connection, too
            os.write(clients.descriptor(conn), answer)
        clients.turn_away(conn, "SessionLost", "killed", False)
        said = sock.recv(10_000, socket.MSG_WAITALL)
    assert said.startswith(answer)
    (frame,) = FrameReader().feed(said[len(answer) :])
    assert (frame.kind, frame.fields()["message"]) == (frames.ERROR, "killed")
    clients.stop_listening()
    loop.close()
