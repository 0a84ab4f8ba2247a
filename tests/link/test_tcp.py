"""Settings of TCP sockets, and how a connection is closed."""

from __future__ import annotations

import socket
import sys

import pytest

from rpcsys.link import drain_and_close, tune


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def test_what_the_peer_has_sent_makes_no_reset_of_the_close(ends) -> None:
    ours, theirs = ends
    theirs.sendall(bytes(100_000))
    drain_and_close(ours, b"last words")
    assert ours.fileno() == -1
    assert theirs.recv(100) == b"last words"
    assert theirs.recv(100) == b""


def test_a_copy_of_the_connection_does_not_keep_it_open(ends) -> None:
    ours, theirs = ends
    with ours.dup():
        drain_and_close(ours)
        assert theirs.recv(100) == b""


def test_a_peer_that_takes_nothing_or_has_gone_is_not_waited_for(ends) -> None:
    ours, _theirs = ends
    ours.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ours.sendall(bytes(64 << 20))
    ours.setblocking(True)
    drain_and_close(ours, b"nobody takes this")
    with socket.socket() as unconnected:
        drain_and_close(unconnected, b"nobody is there")
        assert unconnected.fileno() == -1


def test_a_vanished_peer_is_noticed_within_15_s():
    with socket.socket() as sock:
        tune(sock)
        get = sock.getsockopt
        assert get(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert get(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            idle, every, count = (
                get(socket.IPPROTO_TCP, name)
                for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + every * count < 15
    left, right = socket.socketpair()
    tune(left)  # not TCP: left as it is
    left.close()
    right.close()


def congestion(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def unsent(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="options of Linux")
def test_between_two_ends_of_one_machine_nothing_is_paced_and_little_waits_unsent():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
            for sock in (client, server):
                tune(sock)
                assert congestion(sock) == b"reno"
                assert 0 < unsent(sock) <= 1 << 20
    with socket.socket() as unconnected:
        usual = congestion(unconnected), unsent(unconnected)
        tune(unconnected)
        assert (congestion(unconnected), unsent(unconnected)) == usual


def test_a_system_without_these_options_has_connections_all_the_same(monkeypatch):
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    monkeypatch.delattr(socket, "TCP_NOTSENT_LOWAT", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            tune(client)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
