"""Held calls, and replies that no thread waits for: the device is the other end of a socket pair."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from rpcsys import stream
from rpcsys.client.calls import PendingCall, flusher
from rpcsys.client.calls.flusher import Flusher
from rpcsys.client.calls.receiver import Receiver
from rpcsys.errors import SessionClosed
from rpcsys.wire import frames
from tests.device import Raw, until


class FlushedSession:
    """A flusher whose batches are only recorded, and the device's end of its session."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.stream = stream.open(ours)
        self.device = Raw(theirs)
        self.receiver = Receiver(self.stream, "device")
        self.held: dict[int, bytes] = {}
        self.flushed: list[list[int]] = []
        self.flusher = Flusher(self.receiver, self.held, self.flush)

    def flush(self) -> None:
        self.flushed.append(list(self.held))
        self.held.clear()
        self.flusher.sent += 1

    def close(self) -> None:
        self.receiver.break_(SessionClosed("over"))
        self.receiver.hang_up()
        self.stream.close()
        self.flusher.wake()
        self.device.sock.close()


@pytest.fixture
def session() -> Iterator[FlushedSession]:
    session = FlushedSession()
    yield session
    session.close()


def test_held_calls_are_flushed(session: FlushedSession) -> None:
    session.flusher.start()
    session.held[1] = b"one"
    session.flusher.wake()
    until(lambda: session.flushed == [[1]])
    session.held[2] = b"two"
    session.flusher.wake()  # which it does not need while ``looking`` is set
    until(lambda: session.flushed == [[1], [2]])


def test_an_interrupted_wake_up_leaves_nothing_locked(session: FlushedSession) -> None:
    """Ctrl-C comes as soon as the first function inside has returned."""

    def interrupt(frame: object, event: str, about: object) -> None:
        if event == "return":
            raise KeyboardInterrupt

    def wake() -> None:
        sys.setprofile(interrupt)  # until it raises
        session.flusher.wake()

    with pytest.raises(KeyboardInterrupt):
        wake()
    session.flusher.start()
    session.held[1] = b"one"
    session.flusher.wake()
    until(lambda: session.flushed == [[1]])


def test_a_reply_without_a_waiting_thread_is_read(session: FlushedSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "TICK_S", 100.0)
    session.flusher.start()
    time.sleep(0.1)  # it dozes by then, or looks by itself: the reply is read either way
    call = PendingCall()
    call.call_id = 1
    session.receiver.pending[1] = call
    session.device.send(frames.RESULT, 1, {"r": 5})
    session.flusher.start()
    until(lambda: call.answered)
