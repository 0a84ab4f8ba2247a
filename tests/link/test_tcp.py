"""Settings of TCP sockets, an orderly close, and live peers with a closed window."""

from __future__ import annotations

import socket
import struct
import sys
import time

import pytest

from rpcsys.link import tcp
from rpcsys.link.tcp import (
    _INFO,
    EXTENSION_MS,
    KEEPALIVE_S,
    UNANSWERED,
    USER_TIMEOUT_MS,
    _wanted_ms,
    drain_and_close,
    has_sent,
    keep_alive,
    tune,
)


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    theirs.settimeout(10)
    with ours, theirs:
        yield ours, theirs


def test_unread_data_does_not_turn_the_close_into_a_reset(ends) -> None:
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


def test_a_close_does_not_wait_for_a_peer_that_reads_nothing_or_is_unconnected(ends) -> None:
    ours, _theirs = ends
    ours.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ours.sendall(bytes(64 << 20))
    ours.setblocking(True)
    drain_and_close(ours, b"nobody takes this")
    with socket.socket() as unconnected:
        drain_and_close(unconnected, b"nobody is there")
        assert unconnected.fileno() == -1


def test_a_vanished_peer_is_detected_within_15_s():
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
def test_connections_within_one_machine_use_reno_and_a_small_unsent_limit():
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


def test_tune_works_on_a_system_without_these_options(monkeypatch):
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    monkeypatch.delattr(socket, "TCP_NOTSENT_LOWAT", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            tune(client)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# A peer that reads nothing.


@pytest.fixture
def tuned():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
    sender.setblocking(False)
    tune(sender)
    with sender, reader:
        yield sender, reader


def fill(sender: socket.socket) -> int:
    """Send until the reader's window and our own buffer are full; the number of bytes sent."""
    sent, until = 0, time.monotonic() + 0.3
    while time.monotonic() < until:
        try:
            sent += sender.send(bytes(65536))
        except BlockingIOError:
            time.sleep(0.02)
    return sent


def take(reader: socket.socket, count: int) -> None:
    while count:
        count -= len(reader.recv(min(count, 1 << 20)))


def allowed_ms(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def info(
    *, retransmissions: int = 0, probes: int = 0, unacknowledged: int = 0, sent_ms: int = 0, unsent: int = 0
) -> bytes:
    return _INFO.pack(retransmissions, probes, unacknowledged, sent_ms, unsent)


CLOSED = {"sent_ms": 60_000, "unsent": 1}


@pytest.mark.parametrize(
    ("state", "before", "wanted"),
    [
        ({"sent_ms": 60_000}, USER_TIMEOUT_MS, USER_TIMEOUT_MS),  # nothing to send
        ({"sent_ms": 500, "unsent": 1}, USER_TIMEOUT_MS, USER_TIMEOUT_MS),  # closed just now
        (CLOSED, USER_TIMEOUT_MS, 60_000 + EXTENSION_MS),
        (CLOSED, 60_000, 60_000 + EXTENSION_MS),
        ({**CLOSED, "probes": UNANSWERED - 1}, USER_TIMEOUT_MS, 60_000 + EXTENSION_MS),
        ({**CLOSED, "probes": UNANSWERED}, 90_000, USER_TIMEOUT_MS),  # it does not answer
        (
            {"sent_ms": 500, "unsent": 1},
            60_000,
            60_000 + KEEPALIVE_S * 1000,
        ),  # it read something, and the kernel may still count from earlier
        ({**CLOSED, "unacknowledged": 1}, USER_TIMEOUT_MS, USER_TIMEOUT_MS),  # an acknowledgement is due
        ({**CLOSED, "unacknowledged": 1}, 60_000, 60_000),
        ({**CLOSED, "unacknowledged": 1, "retransmissions": UNANSWERED}, 60_000, USER_TIMEOUT_MS),  # it is missing
        ({"sent_ms": 60_000}, 60_000, USER_TIMEOUT_MS),  # it has read all
        ({"sent_ms": (1 << 32) - 1, "unsent": 1}, USER_TIMEOUT_MS, (1 << 31) - 1),  # for weeks: the maximum
    ],
)
def test_the_next_timeout_of_a_stream(state: dict[str, int], before: int, wanted: int) -> None:
    assert _wanted_ms(info(**state), before) == wanted


def test_an_extension_outlasts_two_calls_and_a_dead_peer_is_found_within_40_s() -> None:
    assert 2 * KEEPALIVE_S * 1000 < EXTENSION_MS < USER_TIMEOUT_MS
    assert (UNANSWERED + 1) * EXTENSION_MS < 40_000


def test_a_live_peer_that_reads_nothing_gets_an_extension_until_it_has_read_all(
    tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, reader = tuned
    keep_alive(sender)
    assert allowed_ms(sender) == USER_TIMEOUT_MS
    sent = fill(sender)
    monkeypatch.setattr(tcp, "EXTENSION_MS", USER_TIMEOUT_MS)  # as if the data was sent long ago
    keep_alive(sender)
    assert USER_TIMEOUT_MS < allowed_ms(sender) < 2 * USER_TIMEOUT_MS
    take(reader, sent)
    keep_alive(sender)
    assert allowed_ms(sender) == USER_TIMEOUT_MS


def test_keep_alive_ignores_other_and_closed_sockets(tuned) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        keep_alive(inner)
    keep_alive(inner)


def test_keep_alive_does_nothing_on_a_system_without_tcp_info(tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    keep_alive(tuned[0])
    assert allowed_ms(tuned[0]) == USER_TIMEOUT_MS


def test_the_kernel_tells_whether_anything_was_sent(tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, reader = tuned
    assert not has_sent(sender)
    sender.send(b"x")
    assert has_sent(sender)
    assert reader.recv(1) == b"x"
    assert has_sent(sender)
    assert not has_sent(reader)  # it has received, and acknowledged
    reader.send(b"y")
    assert has_sent(reader)
    monkeypatch.setattr(tcp, "_SENDING", struct.Struct("2000x2I"))
    assert has_sent(sender), "an old kernel"


def test_other_sockets_count_as_written_to(tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        assert has_sent(inner)
    assert has_sent(inner)
    monkeypatch.delattr(socket, "TCP_INFO")
    assert has_sent(tuned[0])


@pytest.mark.slow
def test_a_stopped_reader_outlives_the_kernels_timeout(tuned) -> None:
    sender, reader = tuned
    sent = fill(sender)
    end = time.monotonic() + 3 * USER_TIMEOUT_MS / 1000
    while time.monotonic() < end:
        keep_alive(sender)
        time.sleep(KEEPALIVE_S)
    take(reader, sent)
    assert sender.send(b"still there") == 11
    assert reader.recv(100) == b"still there"
