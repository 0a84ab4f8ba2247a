"""What is done when nobody waits: batches sent, replies read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from rpcsys.client.calls import flusher
from rpcsys.client.calls.flusher import Flusher
from rpcsys.client.calls.receiver import PendingCall, Receiver
from rpcsys.errors import SessionClosed
from rpcsys.stream import Stream
from rpcsys.wire import frames
from tests.device import Raw, until


class Scene:
    """A flusher, whose batches go nowhere, and the device's end of its session."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.stream = Stream(ours)
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
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def test_what_is_held_back_is_flushed(scene: Scene) -> None:
    scene.flusher.start()
    scene.held[1] = b"one"
    scene.flusher.wake()
    until(lambda: scene.flushed == [[1]])
    scene.held[2] = b"two"
    scene.flusher.wake()  # which it does not need while it is looking
    until(lambda: scene.flushed == [[1], [2]])


def test_a_reply_that_nobody_waits_for_is_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher, "TICK_S", 100.0)
    scene.flusher.start()
    time.sleep(0.1)  # it dozes by then, or looks by itself: the reply is read either way
    call = PendingCall()
    call.call_id = 1
    scene.receiver.pending[1] = call
    scene.device.send(frames.RESULT, 1, {"r": 5})
    scene.flusher.start()
    until(lambda: call.answered)
