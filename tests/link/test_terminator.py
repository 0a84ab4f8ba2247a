"""Ends of TLS in one thread: many connections, their limit, and what is left of them."""

from __future__ import annotations

import gc
import os
import socket
import weakref

import pytest

from rpcsys.errors import LimitExceeded
from rpcsys.link import terminator
from rpcsys.link.terminator import SHORT, Terminator
from rpcsys.link.tls import STRETCH
from tests.link.terminators import INNER, KEY, Reading, at_end, both


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_session_through_both_roles() -> None:
    with both() as one:
        client = one.dial()
        one.accept()
        one.until(lambda: bool(one.opened))
        greeting, server = one.opened[0]
        assert greeting == INNER
        server.send(b"hello")
        one.until(lambda: Reading(client).go_on() > 0)


def test_many_connections_at_once_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminator, "MANY", 8)
    before = descriptors()
    with both() as one:
        sessions = [one.session() for _ in range(20)]
        assert one.terminator.stretch == SHORT
        for number, (client, _) in enumerate(sessions):
            client.send(b"%d" % number)
        for number, (_, server) in enumerate(sessions):
            one.until(lambda server=server, text=b"%d" % number: _got(server, text))  # type: ignore[misc]
        left = [weakref.ref(each._tunnel) for each in one.terminator._terminations]
        gc.disable()
        for client, server in sessions:
            client.close()
            one.until(lambda server=server: at_end(server))  # type: ignore[misc]
            server.close()
        one.closed()
        assert one.terminator.stretch == STRETCH
        assert not any(each() for each in left)  # without the help of the garbage collector
        gc.enable()
        assert one.ended == one.dialled == [None] * 20
    assert descriptors() == before


def _got(sock: socket.socket, text: bytes) -> bool:
    reading = Reading(sock)
    reading.go_on()
    return bytes(reading.data) == text


def test_more_than_the_limit_are_refused() -> None:
    with both(limit=2) as one:
        one.session()
        client = one.dial()
        assert isinstance(one.dialled[0], LimitExceeded)
        assert client.recv(4) == b"\x73\xf2\x0f\x00"  # TVM's refusal
        assert at_end(client)


def test_close_ends_all() -> None:
    before = descriptors()
    one = Terminator()
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    ended: list[Exception | None] = []
    one.dial(listener.getsockname(), KEY, INNER.options, theirs, ended.append)
    one.close()
    assert ended == [None]
    listener.close()
    ours.close()
    assert descriptors() == before
