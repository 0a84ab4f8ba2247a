"""What a session does while a call runs: PING, CANCEL, deadlines, limits, and closed connections."""

from __future__ import annotations

import random
import socket
import struct
import time

import numpy as np
import psutil
import pytest

from rpcsys.wire import frames
from tests import secured
from tests.device import Device, until

LONG_S = 300.0


@pytest.fixture
def device(speedups):
    with Device() as device:
        yield device


def fields(raw, kind, call_id):
    frame = raw.receive()
    assert (frame.kind, frame.call_id) == (kind, call_id), frame.fields()
    return frame.fields()


@pytest.mark.parametrize("function", ["test.sleep", "test.compute"])
def test_ping_is_answered_while_a_call_runs(device, function):
    raw = device.raw()
    raw.call(1, function, LONG_S)
    device.wait_for_call()
    for call_id in (8, 9):
        raw.send(frames.PING, call_id)
        fields(raw, frames.PONG, call_id)


@pytest.mark.parametrize("kind", [frames.PING, frames.GOODBYE, frames.CANCEL])
def test_frames_read_with_a_long_call_do_not_wait_for_it(device, kind):
    raw = device.raw()
    call = frames.encode(frames.CALL, 1, {"f": "test.sleep", "a": [LONG_S]})
    raw.stream.send([*frames.pack(frames.PING, 5), *call, *frames.pack(kind, 1)])
    fields(raw, frames.PONG, 5)
    if kind == frames.PING:
        fields(raw, frames.PONG, 1)
    elif kind == frames.CANCEL:
        assert fields(raw, frames.ERROR, 1)["type"] == "Cancelled"
    else:
        assert raw.ended()


def test_calls_that_arrive_during_a_call_run_after_it(device):
    raw = device.raw()
    raw.call(1, "testing.sleep", 0.3)
    large = np.arange(1 << 20)
    for call_id in range(2, 50):
        raw.call(call_id, "testing.echo", call_id)
    raw.call(50, "testing.echo", large)
    raw.send(frames.PING, 99)
    kinds = [raw.receive() for _ in range(51)]
    assert [frame.call_id for frame in kinds if frame.kind == frames.RESULT] == list(range(1, 51))
    assert (kinds[-1].get("r").numpy() == large).all() or kinds[-2].get("r").numpy().size == large.size


def test_long_and_short_calls_alternate(device):
    """The two threads take turns at reading, and no frame is lost."""
    raw = device.raw()
    for call_id in range(1, 61):
        if call_id % 3:
            raw.call(call_id, "testing.echo", np.full(50_000, call_id))
        else:
            raw.call(call_id, "testing.sleep", 0.03)
    for call_id in range(1, 61):
        came = fields(raw, frames.RESULT, call_id)["r"]
        assert came is None or set(came.numpy()) == {call_id}


def test_a_waiting_call_is_cancelled(device):
    raw = device.raw()
    raw.call(1, "testing.sleep", 0.5)
    raw.call(2, "testing.echo", "two")
    raw.call(3, "testing.echo", "three")
    raw.send(frames.CANCEL, 2)
    reply = fields(raw, frames.ERROR, 2)
    assert (reply["type"], reply["message"]) == ("Cancelled", "the call was cancelled before it began")
    fields(raw, frames.RESULT, 1)
    assert fields(raw, frames.RESULT, 3) == {"r": "three"}


def test_cancelling_a_call_before_it_begins_never_ends_the_session(device, tmp_path):
    """At every moment of the call before: read with it, read by the watcher, still in the socket."""
    raw = device.raw()
    chance = random.Random(7)
    for first in range(1, 200, 2):
        gate = tmp_path / str(first)
        raw.call(first, "test.gate", str(gate))
        raw.call(first + 1, "testing.sleep", LONG_S)
        time.sleep(chance.choice([0, 0.001, 0.018, 0.02, 0.022]) * chance.uniform(0.8, 1.2))
        raw.send(frames.CANCEL, first + 1)
        gate.touch()
        came = sorted((frame.call_id, frame.kind) for frame in (raw.receive(), raw.receive()))
        assert came == [(first, frames.RESULT), (first + 1, frames.ERROR)]


def test_a_running_call_is_cancelled_with_its_process(device):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    raw.call(2, "testing.nop")
    raw.send(frames.CANCEL, 1)
    reply = fields(raw, frames.ERROR, 1)
    assert reply["type"] == "Cancelled"
    assert "its process was ended, and the session with it" in reply["message"]
    assert fields(raw, frames.ERROR, 0)["type"] in ("Cancelled", "SessionLost")
    assert raw.ended()
    assert device.reports() == [{"outcome": "ended", "why": reply["message"]}]


@pytest.mark.parametrize("function", ["test.sleep", "test.compute"])
def test_an_overdue_call_is_ended_with_its_process(device, function):
    raw = device.raw()
    raw.call(1, function, LONG_S, deadline_ms=200)
    reply = fields(raw, frames.ERROR, 1)
    assert reply["type"] == "DeadlineExceeded"
    assert reply["message"].startswith("the call was not done in its 0.2 s;")
    assert device.reports() == [{"outcome": "ended", "why": reply["message"]}]


def test_an_overdue_call_ends_even_if_its_client_does_not_read(device):
    """The answer cannot be sent; the process ends all the same."""
    raw = device.raw()
    for call_id in range(1, 4):
        raw.call(call_id, "test.zeros", 8 << 20)
    raw.call(4, "test.sleep", LONG_S, deadline_ms=100)
    for _ in range(3):
        raw.receive()
    raw.sock.close()
    last = device.reports()[-1]
    assert last.get("outcome", last.get("served")) in ("ended", "lost")


def test_a_call_within_its_deadline_is_answered(device):
    raw = device.raw()
    raw.call(1, "testing.sleep", 0.1, deadline_ms=60_000)
    assert fields(raw, frames.RESULT, 1) == {"r": None}


@pytest.mark.parametrize("busy", [True, False])
def test_the_lease_limit_ends_the_session(busy):
    with Device(limit_s=1.5) as device:
        raw = device.raw()
        if busy:
            raw.call(1, "test.compute", LONG_S)
        reply = fields(raw, frames.ERROR, 0)
        assert reply["type"] == "SessionTimeout"
        assert reply["message"].startswith("the session's time limit of 1.5 s is over")
        assert raw.ended()
        assert device.reports() == [{"outcome": "timeout"}]


@pytest.mark.slow
def test_the_clients_limit_ends_the_session(device):
    raw = device.raw(limit_s=3)
    raw.call(1, "testing.nop")
    fields(raw, frames.RESULT, 1)
    assert fields(raw, frames.ERROR, 0)["type"] == "SessionTimeout"
    assert device.reports() == [{"limit_s": 3.0}, {"outcome": "timeout"}]


@pytest.mark.slow
def test_an_idle_session_keeps_its_limit():
    """The watcher goes to sleep after a second without calls."""
    with Device(limit_s=4) as device:
        raw = device.raw()
        time.sleep(1.5)
        raw.call(1, "test.sleep", LONG_S)
        raw.send(frames.PING, 5)
        fields(raw, frames.PONG, 5)
        assert fields(raw, frames.ERROR, 0)["type"] == "SessionTimeout"


def test_a_limit_of_centuries_is_accepted(device):
    raw = device.raw(limit_s=1e15)
    time.sleep(1.5)  # until the watcher sleeps
    raw.call(1, "test.sleep", LONG_S)
    raw.send(frames.PING, 5)
    fields(raw, frames.PONG, 5)


def test_a_closed_connection_ends_a_running_call(device):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    raw.sock.close()
    assert device.reports() == [{"outcome": "lost"}]


def test_goodbye_ends_a_running_call(device):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    raw.send(frames.GOODBYE)
    assert raw.ended()
    assert device.reports() == [{"outcome": "closed"}]


def test_invalid_frames_end_a_running_call(device):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    raw.stream.send([b"\0" * 100])
    assert fields(raw, frames.ERROR, 0)["type"] == "ProtocolError"
    assert device.reports() == [{"outcome": "lost"}]


def test_more_calls_than_the_window_end_a_running_call(device):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    one = b"".join(frames.encode(frames.CALL, 2, {"f": "testing.echo", "a": ["x" * 40]}))
    raw.stream.send([one * 1000])
    reply = fields(raw, frames.ERROR, 0)
    assert reply["type"] == "ProtocolError"
    assert "more calls were sent than may be under way" in reply["message"]
    assert device.reports() == [{"outcome": "lost"}]


def flood(raw, piece):
    def full():
        if not raw.stream.wait(1.0, read=False, write=True):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        raw.stream.send([piece * 64], full)


@pytest.mark.slow
def test_an_upload_waits_in_the_socket_while_a_call_runs(device):
    """Its client receives a frame now and then: without these its end would not be detected."""
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    flood(raw, b"".join(frames.pack(frames.CHUNK, 2, b"", (bytes(1 << 20),))))
    assert device.alive()
    with open(f"/proc/{device.process.pid}/statm") as statm:
        assert int(statm.read().split()[1]) * 4096 < 300 << 20
    frame = raw.receive()
    assert (frame.kind, frame.call_id) == (frames.PONG, 0)
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    raw.sock.close()
    until(lambda: connection_is_closed(device), "the kernel to close the client's connection")


def connection_is_closed(device):
    """Whether the device's process has no open connection any more: its supervisor sees a reset."""
    return not psutil.Process(device.process.pid).net_connections("tcp")


def test_a_slow_reader_of_a_large_result_does_not_end_the_session(device):
    raw = device.raw()
    raw.call(1, "test.zeros", 30 << 20)
    time.sleep(0.3)
    assert fields(raw, frames.RESULT, 1)["r"].nbytes == 30 << 20


def test_hello_is_the_first_frame():
    with Device(limit_s=LONG_S) as device:
        assert device.opened().receive().kind == frames.HELLO


# ---------------------------------------------------------------- calls that can be stopped


@pytest.mark.parametrize("deadline_ms", [0, 300])
def test_a_call_that_can_be_stopped_ends_alone(device, deadline_ms):
    raw = device.raw()
    raw.call(1, "test.stoppable", LONG_S, deadline_ms=deadline_ms)
    raw.call(2, "testing.echo", "two")
    if not deadline_ms:
        device.wait_for_call()
        raw.send(frames.CANCEL, 1)
    reply = fields(raw, frames.ERROR, 1)
    kind, what = ("DeadlineExceeded", "was not done in its 0.3 s") if deadline_ms else ("Cancelled", "was cancelled")
    assert (reply["type"], reply["message"]) == (kind, f"the call {what}; it was stopped, and the session goes on")
    assert fields(raw, frames.RESULT, 2) == {"r": "two"}


def test_a_measurement_can_be_stopped_between_its_repeats(device):
    raw = device.raw()
    options = {"number": 1, "repeat": 3, "cooldown_s": LONG_S}
    raw.call(1, "session.time", "test.sleep", [0.0], options)
    device.wait_for_call()  # what a measurement needs is loaded
    raw.send(frames.CANCEL, 1)
    assert fields(raw, frames.ERROR, 1)["type"] == "Cancelled"
    raw.call(3, "testing.echo", "three")
    assert fields(raw, frames.RESULT, 3) == {"r": "three"}


@pytest.mark.parametrize("grace_s", [LONG_S, None, 10**400])
def test_a_call_with_grace_may_end_by_itself(device, grace_s):
    raw = device.raw()
    raw.call(1, "test.sleep", 0.5)
    device.wait_for_call()
    raw.send(frames.CANCEL, 1, {"grace_s": grace_s})
    assert fields(raw, frames.RESULT, 1) == {"r": None}
    raw.call(2, "testing.echo", "two")
    assert fields(raw, frames.RESULT, 2) == {"r": "two"}


@pytest.mark.parametrize("grace_s", [0.3, "long", -1, True, [1]])
def test_after_its_grace_a_call_is_ended_with_its_process(device, grace_s):
    raw = device.raw()
    raw.call(1, "test.sleep", LONG_S)
    device.wait_for_call()
    raw.send(frames.CANCEL, 1, {"grace_s": None})
    raw.send(frames.CANCEL, 1, {"grace_s": grace_s})
    why = fields(raw, frames.ERROR, 1)["message"]
    assert "its process was ended" in why
    assert device.reports() == [{"outcome": "ended", "why": why}]


# ---------------------------------------------------------------- encryption


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_session_whose_key_has_encrypted_enough_ends_between_two_calls(device, way):
    raw = device.raw()
    raw.call(1, "test.most_moved", 1 << 20)
    assert fields(raw, frames.RESULT, 1)
    sent = frames.encode(frames.CALL, 2, {"f": "test.types", "a": [memoryview(bytearray(2 << 20))]})
    raw.stream.send(sent) if way == "in" else raw.call(2, "test.zeros", 2 << 20)
    assert fields(raw, frames.RESULT, 2)
    if not secured.secure:
        raw.call(3, "testing.echo", 1)
        assert fields(raw, frames.RESULT, 3)["r"] == 1
        return
    error = fields(raw, frames.ERROR, 0)
    assert error["type"] == "SessionLost"
    assert "256 GiB have gone one way, and one key encrypts no more; open another one" in error["message"]
    assert [report["outcome"] for report in device.reports()] == ["ended"]
