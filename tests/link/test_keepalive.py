"""A closed window is no dead peer."""

from __future__ import annotations

import socket
import time

import pytest

from rpcsys.link import KEEPALIVE_S, keep_alive, keepalive, tune
from rpcsys.link.keepalive import _INFO, EXTENSION_MS, UNANSWERED, USER_TIMEOUT_MS, _wanted_ms


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
        ),  # it took something, and may be late still
        ({**CLOSED, "unacknowledged": 1}, USER_TIMEOUT_MS, USER_TIMEOUT_MS),  # it takes something, or is to say so
        ({**CLOSED, "unacknowledged": 1}, 60_000, 60_000),
        ({**CLOSED, "unacknowledged": 1, "retransmissions": UNANSWERED}, 60_000, USER_TIMEOUT_MS),  # it does not
        ({"sent_ms": 60_000}, 60_000, USER_TIMEOUT_MS),  # it has taken all
        ({"sent_ms": (1 << 32) - 1, "unsent": 1}, USER_TIMEOUT_MS, (1 << 31) - 1),  # for weeks: the most there is
    ],
)
def test_what_a_stream_is_allowed(state: dict[str, int], before: int, wanted: int) -> None:
    assert _wanted_ms(info(**state), before) == wanted


def test_a_grant_outlasts_two_looks_and_the_promise_holds() -> None:
    assert 2 * KEEPALIVE_S * 1000 < EXTENSION_MS < USER_TIMEOUT_MS
    assert (UNANSWERED + 1) * EXTENSION_MS < 40_000


def test_who_reads_nothing_but_answers_is_given_more_time_and_loses_it_again(
    ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, reader = ends
    keep_alive(sender)
    assert allowed_ms(sender) == USER_TIMEOUT_MS
    sent = fill(sender)
    monkeypatch.setattr(keepalive, "EXTENSION_MS", USER_TIMEOUT_MS)  # as if that had been long ago
    keep_alive(sender)
    assert USER_TIMEOUT_MS < allowed_ms(sender) < 2 * USER_TIMEOUT_MS
    take(reader, sent)
    keep_alive(sender)
    assert allowed_ms(sender) == USER_TIMEOUT_MS


def test_what_is_no_tcp_stream_or_no_stream_any_more_is_passed_over(ends) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        keep_alive(inner)
    keep_alive(inner)


def test_a_system_without_any_of_this_is_left_alone(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    keep_alive(ends[0])
    assert allowed_ms(ends[0]) == USER_TIMEOUT_MS


@pytest.mark.slow
def test_a_stopped_reader_outlives_the_kernels_patience(ends) -> None:
    sender, reader = ends
    sent = fill(sender)
    end = time.monotonic() + 3 * USER_TIMEOUT_MS / 1000
    while time.monotonic() < end:
        keep_alive(sender)
        time.sleep(KEEPALIVE_S)
    take(reader, sent)
    assert sender.send(b"still there") == 11
    assert reader.recv(100) == b"still there"
