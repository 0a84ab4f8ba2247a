"""Threads that read and threads that wait: the device is the other end of a socket pair."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from collections.abc import Iterator

import pytest

from rpcsys.client.calls.receiver import PendingCall, Receiver
from rpcsys.errors import RemoteError, SessionClosed, SessionLost
from rpcsys.wire import frames
from tests import secured
from tests.device import WAIT_S, Raw, until


class Ends:
    """A receiver, and the device's end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.stream, device = secured.open_both((ours, theirs))
        self.receiver = Receiver(self.stream, "device")
        self.device = Raw(theirs, device)

    def under_way(self, call_id: int, size: int = 0) -> PendingCall:
        call = PendingCall()
        call.call_id, call.bytes = call_id, size
        self.receiver.pending[call_id] = call
        self.receiver.bytes_under_way += size
        return call

    def answer(self, call_id: int, result: object) -> None:
        self.device.send(frames.RESULT, call_id, {"r": result})

    def waits(self, call: PendingCall) -> threading.Thread:
        thread = threading.Thread(target=self.receiver.wait, args=(call,), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def ends(speedups: str) -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.stream.close()
    ends.device.sock.close()


def result(call: PendingCall) -> object:
    assert call.frame is not None
    return call.frame.get("r")


def test_the_reading_thread_completes_other_calls(ends: Ends) -> None:
    calls = [ends.under_way(number, 100) for number in (1, 2, 3)]
    for number in (1, 2, 3):
        ends.answer(number, number * 10)
    ends.receiver.wait(calls[1])
    # The third came in the same read, or is still to be read.
    ends.receiver.drain()
    assert [result(call) for call in calls] == [10, 20, 30]
    assert (ends.receiver.bytes_under_way, ends.receiver.pending) == (0, {})


def test_a_sleeping_thread_gets_its_reply_from_the_reading_one(ends: Ends) -> None:
    first, second = ends.under_way(1), ends.under_way(2)
    reads = ends.waits(first)
    until(ends.receiver.lock.locked)
    sleeps = ends.waits(second)
    until(lambda: ends.receiver.sleepers)
    ends.answer(2, "second")
    sleeps.join(WAIT_S)
    assert result(second) == "second"
    assert reads.is_alive()
    ends.answer(1, "first")
    reads.join(WAIT_S)
    assert result(first) == "first"


def test_a_sleeping_thread_reads_on_after_the_reading_one(ends: Ends) -> None:
    first, second = ends.under_way(1), ends.under_way(2)
    reads = ends.waits(first)
    until(ends.receiver.lock.locked)
    sleeps = ends.waits(second)
    until(lambda: ends.receiver.sleepers)
    ends.answer(1, "first")
    reads.join(WAIT_S)
    assert sleeps.is_alive()
    ends.answer(2, "second")
    sleeps.join(WAIT_S)
    assert (result(first), result(second)) == ("first", "second")


def test_a_timeout_leaves_the_call_under_way(ends: Ends) -> None:
    call = ends.under_way(1)
    with pytest.raises(concurrent.futures.TimeoutError):
        ends.receiver.wait(call, 0.05)
    ends.answer(1, "late")
    ends.receiver.wait(call, WAIT_S)
    assert result(call) == "late"


def test_an_error_belongs_to_its_call(ends: Ends) -> None:
    failed, other = ends.under_way(1), ends.under_way(2)
    ends.device.send(frames.ERROR, 1, {"type": "ValueError", "message": "no"})
    ends.answer(2, "yes")
    ends.receiver.wait(other)
    assert isinstance(failed.error, RemoteError)
    assert result(other) == "yes"


def test_a_reply_after_its_call_was_forgotten_is_dropped(ends: Ends) -> None:
    gone, other = ends.under_way(1, 10), ends.under_way(2)
    assert ends.receiver.forget(gone)
    assert not ends.receiver.forget(gone)
    ends.answer(1, "dropped")
    ends.answer(2, "taken")
    ends.receiver.wait(other)
    assert (gone.answered, ends.receiver.bytes_under_way) == (False, 0)


def test_the_end_of_the_session_is_expected_after_the_end_of_a_stopped_call(ends: Ends) -> None:
    call = ends.under_way(1)
    call.submitted = True
    assert ends.receiver.stop(call)
    ends.device.send(frames.ERROR, 1, {"kind": "Cancelled", "message": "the call was cancelled"})
    until(lambda: not ends.receiver.drain() and not ends.receiver._stopping, "the error of the call")
    reads_on = ends.receiver.awaited
    assert reads_on


def test_the_end_of_the_session_ends_every_call(ends: Ends) -> None:
    calls = [ends.under_way(number) for number in (1, 2)]
    ends.device.sock.close()
    ends.receiver.wait(calls[0])
    assert [type(call.error) for call in calls] == [SessionLost, SessionLost]
    late = ends.under_way(3)
    with pytest.raises(SessionLost, match="the session with device is gone"):
        ends.receiver.wait(late)


def test_the_first_error_of_the_session_counts(ends: Ends) -> None:
    first, second = SessionClosed("first"), SessionClosed("second")
    assert ends.receiver.break_(first) is first
    assert ends.receiver.break_(second) is first
    assert ends.receiver.broken is first
