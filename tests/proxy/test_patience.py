"""A closed window is no dead peer."""

from __future__ import annotations

import socket
import time

import pytest

from rpcsys.link import tune
from rpcsys.proxy.patience import LOOK_S, PATIENCE_MS, Patience


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
    sender.setblocking(False)
    tune(sender)
    with sender, reader:
        yield sender, reader


def fill(sender: socket.socket) -> int:
    """Send until the reader's window and our own buffer are full; how much went."""
    sent, until = 0, time.monotonic() + 0.3
    while time.monotonic() < until:
        try:
            sent += sender.send(bytes(65536))
        except BlockingIOError:
            time.sleep(0.02)
    return sent


def allowed_ms(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_who_reads_nothing_but_answers_is_given_more_time_and_loses_it_again(ends) -> None:
    sender, reader = ends
    patience = Patience()
    patience.look([sender], 0)
    assert allowed_ms(sender) == PATIENCE_MS
    sent = fill(sender)
    for now in (100, 104, 160):
        patience.look([sender], now)
        assert allowed_ms(sender) == PATIENCE_MS + 1000 * (now - 100 + LOOK_S)
    while sent:
        sent -= len(reader.recv(min(sent, 1 << 20)))
    patience.look([sender], 164)
    assert allowed_ms(sender) == PATIENCE_MS


def test_what_is_no_tcp_stream_or_no_stream_any_more_is_passed_over(ends) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        Patience().look([inner], 0)
    Patience().look([inner], 0)


@pytest.mark.slow
def test_a_stopped_reader_outlives_the_kernels_patience(ends) -> None:
    sender, reader = ends
    patience = Patience()
    sent = fill(sender)
    end = time.monotonic() + 3 * PATIENCE_MS / 1000
    while time.monotonic() < end:
        patience.look([sender], time.monotonic())
        time.sleep(LOOK_S)
    while sent:
        sent -= len(reader.recv(min(sent, 1 << 20)))
    assert sender.send(b"still there") == 11
    assert reader.recv(100) == b"still there"
