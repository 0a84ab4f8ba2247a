"""A closed window is no dead peer."""

from __future__ import annotations

import socket
import time

import pytest

from rpcsys.link import LOOK_S, be_patient, patience, tune
from rpcsys.link.patience import _INFO, GRANTED_MS, PATIENCE_MS, UNANSWERED, _wanted_ms


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
        ({"sent_ms": 60_000}, PATIENCE_MS, PATIENCE_MS),  # nothing to send
        ({"sent_ms": 500, "unsent": 1}, PATIENCE_MS, PATIENCE_MS),  # closed just now
        (CLOSED, PATIENCE_MS, 60_000 + GRANTED_MS),
        (CLOSED, 60_000, 60_000 + GRANTED_MS),
        ({**CLOSED, "probes": UNANSWERED - 1}, PATIENCE_MS, 60_000 + GRANTED_MS),
        ({**CLOSED, "probes": UNANSWERED}, 90_000, PATIENCE_MS),  # it does not answer
        (
            {"sent_ms": 500, "unsent": 1},
            60_000,
            60_000 + LOOK_S * 1000,
        ),  # it took something, and may be late still
        ({**CLOSED, "unacknowledged": 1}, PATIENCE_MS, PATIENCE_MS),  # it takes something, or is to say so
        ({**CLOSED, "unacknowledged": 1}, 60_000, 60_000),
        ({**CLOSED, "unacknowledged": 1, "retransmissions": UNANSWERED}, 60_000, PATIENCE_MS),  # it does not
        ({"sent_ms": 60_000}, 60_000, PATIENCE_MS),  # it has taken all
        ({"sent_ms": (1 << 32) - 1, "unsent": 1}, PATIENCE_MS, (1 << 31) - 1),  # for weeks: the most there is
    ],
)
def test_what_a_stream_is_allowed(state: dict[str, int], before: int, wanted: int) -> None:
    assert _wanted_ms(info(**state), before) == wanted


def test_a_grant_outlasts_two_looks_and_the_promise_holds() -> None:
    assert 2 * LOOK_S * 1000 < GRANTED_MS < PATIENCE_MS
    assert (UNANSWERED + 1) * GRANTED_MS < 40_000


def test_who_reads_nothing_but_answers_is_given_more_time_and_loses_it_again(
    ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, reader = ends
    be_patient(sender)
    assert allowed_ms(sender) == PATIENCE_MS
    sent = fill(sender)
    monkeypatch.setattr(patience, "GRANTED_MS", PATIENCE_MS)  # as if that had been long ago
    be_patient(sender)
    assert PATIENCE_MS < allowed_ms(sender) < 2 * PATIENCE_MS
    take(reader, sent)
    be_patient(sender)
    assert allowed_ms(sender) == PATIENCE_MS


def test_what_is_no_tcp_stream_or_no_stream_any_more_is_passed_over(ends) -> None:
    inner, outer = socket.socketpair()
    with inner, outer:
        be_patient(inner)
    be_patient(inner)


def test_a_system_without_any_of_this_is_left_alone(ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    be_patient(ends[0])
    assert allowed_ms(ends[0]) == PATIENCE_MS


@pytest.mark.slow
def test_a_stopped_reader_outlives_the_kernels_patience(ends) -> None:
    sender, reader = ends
    sent = fill(sender)
    end = time.monotonic() + 3 * PATIENCE_MS / 1000
    while time.monotonic() < end:
        be_patient(sender)
        time.sleep(LOOK_S)
    take(reader, sent)
    assert sender.send(b"still there") == 11
    assert reader.recv(100) == b"still there"
