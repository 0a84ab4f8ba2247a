"""The server's connections at a scripted proxy."""

from __future__ import annotations

import os
import socket
import time

import pytest

from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.loop import Loop
from rpcsys.server.supervisor.proxies import ProxyConnections
from rpcsys.wire import handshake

SOON_S = 15.0
CLIENT = handshake.encode_greeting(
    handshake.Greeting("client", "k:1", handshake.Options(timeout_s=2.5, others=("-new=1",)))
)


class ScriptedProxy:
    """A proxy that the test plays, and connections that dial it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.adopted = []
        self.loop = Loop()
        self.events = self.loop.events
        proxies = [self.listener.getsockname(), ("no.such.host.invalid", 1), ("127.0.0.1", 1)]
        self.connections = ProxyConnections(self.loop, proxies, self.adopt)
        self.sock = None

    def adopt(self, sock, rpcsys):
        self.adopted.append((sock, rpcsys))
        return 70 + len(self.adopted)

    def next_event(self):
        """Run the loop until an event is posted; the event."""
        end = time.monotonic() + SOON_S
        while not self.events:
            assert time.monotonic() < end
            self.loop.run_once(0.01)
        return self.events.popleft()

    def park(self, number=1, key="k", offered=False):
        """Dial and accept the connection; its greeting."""
        self.connections.park(number, 0, key, offered)
        assert isinstance(self.next_event(), ev.Parked)
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(SOON_S)
        reader = handshake.OpeningReader()
        greeting = None
        while greeting is None:
            greeting = reader.receive(self.sock.recv(reader.needed))
        return greeting

    def close(self):
        for sock, _ in self.adopted:
            sock.close()
        if self.sock is not None:
            self.sock.close()
        self.listener.close()
        self.loop.close()


@pytest.fixture
def script():
    script = ScriptedProxy()
    yield script
    script.close()


def test_the_greeting_has_key_and_options(script):
    said = script.park(key="k:1", offered=True)
    assert (said.role, said.key) == ("server", "k:1")
    assert (said.options.session, said.options.offered) == ("rpcsys/1", True)
    assert said.options.server == script.connections.identity
    assert not script.park(2).options.offered


def test_of_a_pinned_match_key_the_public_name_is_said(script):
    name = f"k:t1-{'1f' * 32}"
    assert script.park(key=f"{name}-{'5c' * 16}", offered=True).key == name


def test_no_byte_beyond_a_clients_greeting_is_read(script):
    script.park()
    script.sock.sendall(CLIENT + b"the session's")
    paired = script.next_event()
    assert (paired.parked, paired.conn, paired.role, paired.key) == (1, 71, "client", "k:1")
    assert (paired.session, paired.serve, paired.timeout_s) == (None, None, 2.5)
    assert paired.peer == "a client through {}:{}".format(*script.listener.getsockname())
    (sock, rpcsys) = script.adopted[0]
    assert not rpcsys
    assert sock.recv(100) == b"the session's"


def test_a_greeting_may_arrive_byte_by_byte(script):
    script.park()
    for byte in CLIENT[:-1]:
        script.sock.sendall(bytes([byte]))
        assert isinstance(script.next_event(), ev.Answering)
    script.sock.sendall(CLIENT[-1:])
    assert isinstance(script.next_event(), ev.Opened)


@pytest.mark.parametrize(
    ("answer", "how", "why"),
    [
        (handshake.encode_duplicate(), "duplicate", "another --key"),
        (handshake.encode_mismatch(), "mismatch", "too long"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "lost", "of a page (HTTP)"),
        (b"\x71\xf2\x0f\x00\xff\xff\xff\x7f", "lost", "at most 4096"),
        (b"\x71\xf2\x0f\x00\xff\xff\xff\xff", "lost", "length -1"),
        (b"\x71\xf2\x0f\x00\x02\x00\x00\x00\xff\xfe", "lost", "UTF-8"),
        (b"", "lost", "closed the connection"),
    ],
)
def test_an_answer_without_a_client_unparks(script, answer, how, why):
    script.park()
    script.sock.sendall(answer)
    script.sock.shutdown(socket.SHUT_WR)
    lost = script.next_event()
    assert isinstance(lost, ev.Unparked)
    assert (lost.number, lost.how) == (1, how)
    assert why in lost.why
    assert 0 <= lost.jitter < 1
    try:
        assert script.sock.recv(1) == b""  # the server has closed it
    except ConnectionResetError:
        pass  # closed, with unread bytes


def test_random_bytes_end_a_connection_or_leave_it_waiting(script):
    for number in range(200):
        script.park(number)
        script.sock.sendall(os.urandom(1 + number % 40))
        script.sock.close()
        event = script.next_event()
        while isinstance(event, ev.Answering):
            event = script.next_event()
        assert isinstance(event, ev.Unparked)
    assert not script.adopted


@pytest.mark.parametrize("proxy", [1, 2])
def test_an_unreachable_proxy_unparks(script, proxy):
    script.connections.park(1, proxy, "k", False)
    lost = script.next_event()
    assert (lost.number, lost.how) == (1, "lost")
    assert lost.why


def test_without_descriptors_a_connection_is_lost(script, monkeypatch):
    def none(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("rpcsys.server.supervisor.proxies.Dialling", none)
    script.connections.park(1, 0, "k", False)
    assert script.next_event().why == "Too many open files"


def test_a_closed_connection_posts_no_event(script):
    script.park()
    script.connections.unpark(1)
    script.connections.unpark(1)
    assert script.sock.recv(1) == b""
    script.connections.park(2, 0, "k", False)
    script.connections.unpark(2)  # before it is connected
    script.loop.run_once(0.05)
    assert not script.events


def test_connections_leave_no_descriptors(script):
    def count():
        return len(os.listdir("/proc/self/fd"))

    script.park()
    script.connections.unpark(1)
    script.sock.close()
    before = count()
    for number in range(100):
        script.park(number)
        script.sock.close()
        script.next_event()
        script.connections.park(1000 + number, 2, "k", False)
        assert isinstance(script.next_event(), ev.Unparked)
    assert count() <= before
