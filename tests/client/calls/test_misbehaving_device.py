"""A device that breaks the protocol: the client stays intact, and reports an error."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

import rpcsys
from rpcsys.client import RemoteFunction, connect
from rpcsys.errors import DeadlineExceeded, ProtocolError, RemoteError, SessionClosed, SessionLost, SessionTimeout
from rpcsys.wire import frames, handshake
from rpcsys.wire.values import Ref
from tests.device import OURS, WAIT_S, Raw, until


class FakeDevice:
    """The other end of a session, whose frames a test sends."""

    def __init__(self, window):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = threading.Thread(target=self._connect, args=listener.getsockname())
            ours.start()
            sock, _ = listener.accept()
        sock.recv(4096)
        sock.sendall(handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key", OURS)))
        self.raw = Raw(sock)
        self.raw.send(frames.HELLO, 0, {"version": 1, "window": window})
        assert self.raw.receive().kind == frames.HELLO
        ours.join(WAIT_S)
        self.nop = self.call_of("nop")

    def _connect(self, host, port):
        self.session = connect(host, port, key="key")

    def call_of(self, name):
        return RemoteFunction(self.session, name, name)

    def answer(self, data):
        """Submit a call and answer with ``data``, bytes or a function of the call's id."""
        future = self.nop.submit()
        call = self.raw.receive()
        self.raw.sock.sendall(data(call.call_id) if callable(data) else data)
        return future


@pytest.fixture
def fake():
    fakes = []

    def make(**window):
        fakes.append(FakeDevice(window))
        return fakes[-1]

    yield make
    for made in fakes:
        made.session.close()
        made.raw.sock.close()


def encoded(kind, fields, body=None):
    def data(call_id):
        head, buffers = frames.encode_head(fields)
        return b"".join(map(bytes, frames.pack(kind, call_id, head, buffers if body is None else [body])))

    return data


BAD_TEXT = frames.HEADER.pack(56, frames.ERROR, 0, 0, 0, 1, 1) + (
    b'{"type":"X","message":{"@":"text","size":1,"buffer":0}}'.ljust(56) + b"\xff"
)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3,
        b"\0" * 24,
        frames.HEADER.pack(1 << 30, frames.RESULT, 0, 0, 0, 1, 0),
        frames.HEADER.pack(0, frames.RESULT, 0, 0, 0, 1, 1 << 62),
        frames.HEADER.pack(3, frames.RESULT, 0, 0, 0, 1, 0) + b"{a}",
        BAD_TEXT,
    ],
)
@pytest.mark.parametrize("submitted", [True, False])
def test_an_invalid_frame_from_the_device_is_session_lost(fake, data, submitted):
    device = fake()
    if submitted:
        future = device.answer(data)
        with pytest.raises(SessionLost, match=r"127.0.0.1:\d+ sent what is no rpcsys/1 frame"):
            future.result()
    else:
        device.raw.sock.sendall(data)
        with pytest.raises(SessionLost):
            device.nop()
    with pytest.raises(SessionLost):
        device.nop()


@pytest.mark.parametrize("fields", [{"r": [1, 2], "w": 5}, {}, {"r": {"is": "array"}}])
def test_a_result_of_any_form_is_a_result(fake, fields):
    future = fake().answer(encoded(frames.RESULT, fields))
    assert future.result(WAIT_S) == fields.get("r")


def test_an_object_of_unknown_kind_is_session_lost(fake):
    future = fake().answer(encoded(frames.RESULT, {"r": Ref(1, {"is": "hologram"})}))
    with pytest.raises(SessionLost, match="unknown kind 'hologram'; update this client"):
        future.result()


@pytest.mark.parametrize("about", [{"is": "array", "shape": 5}, {"is": "module", "functions": 5}])
def test_an_invalid_description_of_an_object_is_refused(fake, about):
    future = fake().answer(encoded(frames.RESULT, {"r": Ref(1, about)}))
    with pytest.raises(ProtocolError, match="makes no sense"):
        future.result()


def test_missing_written_arrays_are_a_protocol_error(fake):
    device = fake()
    future = device.nop.submit(rpcsys.empty(3), rpcsys.inout(np.zeros(2)))
    device.raw.receive()
    device.raw.sock.sendall(encoded(frames.RESULT, {"r": None, "w": [np.zeros(3)]})(1))
    with pytest.raises(ProtocolError, match="did not send back"):
        future.result()


def test_replies_to_unknown_calls_are_ignored(fake):
    device = fake()
    others = b"".join(
        frames.pack(kind, 77, head)[0]
        for kind, head in (
            (frames.RESULT, b'{"r":1}'), (frames.ERROR, b"{}"), (frames.CHUNK, b""), (frames.PONG, b""),
            (frames.CALL, b"{}"),
        )
    )  # fmt: skip
    assert device.answer(lambda call_id: others + encoded(frames.RESULT, {"r": 5})(call_id)).result() == 5


def test_a_goodbye_ends_the_session_with_its_reason(fake):
    future = fake().answer(b"".join(frames.encode(frames.GOODBYE, 0, {"reason": "out of hours"})))
    with pytest.raises(SessionLost, match=r"127.0.0.1:\d+ ended the session: out of hours"):
        future.result()


def test_an_empty_error_is_a_remote_error(fake):
    future = fake().answer(encoded(frames.ERROR, {}))
    with pytest.raises(RemoteError, match="Error: the device gave no message"):
        future.result()


def test_the_window_of_calls_is_kept(fake):
    device = fake(calls=5)
    submitted = []

    def submit():
        submitted.extend(device.nop.submit(number) for number in range(20))

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    open_calls = []
    answered = 0
    while answered < 20:
        while device.raw.stream.wait(0.1):
            open_calls.append(device.raw.receive().call_id)
        assert len(open_calls) <= 5
        device.raw.send(frames.RESULT, open_calls.pop(0), {"r": answered})
        answered += 1
    thread.join(WAIT_S)
    assert [future.result() for future in submitted] == list(range(20))


def test_the_window_of_bytes_is_kept(fake):
    device = fake(bytes=1000)
    futures = []
    thread = threading.Thread(
        target=lambda: futures.extend(device.nop.submit(np.zeros(400, "u1")) for _ in range(5)), daemon=True
    )
    thread.start()
    calls = [device.raw.receive().call_id, device.raw.receive().call_id]
    assert not device.raw.stream.wait(0.2)
    for answered in range(5):
        device.raw.send(frames.RESULT, calls.pop(0), {"r": answered})
        if answered < 3:
            calls.append(device.raw.receive().call_id)
    thread.join(WAIT_S)
    assert [future.result() for future in futures] == list(range(5))


def test_a_call_larger_than_the_window_is_sent_alone(fake):
    device = fake(bytes=10)
    future = device.nop.submit(np.zeros(100_000, "u1"))
    device.raw.send(frames.RESULT, device.raw.receive().call_id, {"r": 1})
    assert future.result() == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_call_in_a_full_window_can_be_cancelled(fake, which):
    """Another thread waits for the window meanwhile. The device answers the call that runs, and drops the other."""
    device = fake(calls=2)
    calls = [device.nop.submit(number) for number in range(2)]
    ids = [device.raw.receive().call_id for _ in calls]
    submitted = []
    thread = threading.Thread(target=lambda: submitted.append(device.nop.submit(2)), daemon=True)
    thread.start()
    until(device.session._channel._receiver.lock.locked)
    canceller = threading.Thread(target=calls[which].cancel, daemon=True)
    canceller.start()
    came = {frame.kind: frame.call_id for frame in (device.raw.receive(), device.raw.receive())}
    assert came[frames.CANCEL] == ids[which]
    device.raw.send(frames.ERROR, ids[which], {"type": "Cancelled", "message": "cancelled"})
    canceller.join(WAIT_S)
    thread.join(WAIT_S)
    assert calls[which].cancelled()
    third = came[frames.CALL]
    for call_id in (ids[1 - which], third):
        device.raw.send(frames.RESULT, call_id, {"r": call_id})
    assert [future.result(WAIT_S) for future in (calls[1 - which], *submitted)] == [ids[1 - which], third]


@pytest.mark.slow
def test_a_device_that_does_not_stop_a_call_is_hung_up_on(fake):
    device = fake(calls=1)
    running = device.nop.submit()
    device.raw.receive()
    assert running.cancel()
    with pytest.raises(SessionLost, match="did not stop a cancelled call within 2 s"):
        device.nop()


def test_no_answer_is_expected_to_a_cancelled_call_that_was_still_held(fake, monkeypatch):
    """It became the oldest call before its batch was sent."""
    device = fake()
    channel = device.session._channel
    monkeypatch.setattr(channel._flusher, "_flush", lambda: None)
    calls = [device.nop.submit(number) for number in range(4)]
    for future in calls[:3]:
        device.raw.send(frames.RESULT, device.raw.receive().call_id, {"r": None})
        until(future.done)
    assert list(channel._held) == [calls[3].call_id]
    assert calls[3].cancel()
    assert not channel._receiver.awaited


def test_close_works_while_the_device_reads_nothing(fake):
    """A large call cannot be sent; another thread may still close the session."""
    device = fake()
    errors = []

    def call():
        try:
            device.nop(np.zeros(8 << 20, "u1"))
        except SessionClosed as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    time.sleep(0.2)
    device.session.close()
    thread.join(WAIT_S)
    assert len(errors) == 1


@pytest.mark.slow
def test_a_silent_device_is_hung_up_on_after_a_deadline(fake):
    device = fake()
    with pytest.raises(DeadlineExceeded, match=r"no reply 2 s after the call's deadline of 0.1 s"):
        device.nop(deadline_s=0.1)
    assert device.raw.receive().kind == frames.CALL
    assert device.raw.ended()


def test_a_ping_without_an_answer_is_deadline_exceeded(fake):
    device = fake()
    with pytest.raises(DeadlineExceeded, match=r"no sign of life from 127.0.0.1:\d+ within 0.2 s"):
        device.session.ping(deadline_s=0.2)
    assert device.session.closed is None


def test_the_devices_reason_is_read_after_a_failed_send(fake):
    """The device sends the reason before it hangs up; the client notices the end only when it sends."""
    device = fake()
    head, _ = frames.encode_head({"type": "SessionTimeout", "message": "over"})
    device.raw.sock.sendall(frames.pack(frames.ERROR, 0, head)[0])
    device.raw.sock.close()

    with pytest.raises(SessionTimeout, match="over"):
        device.nop(np.zeros(1 << 20))


def test_call_ids_start_again_after_the_last(fake):
    device = fake()
    device.session._channel._stream.last_id = 0xFFFFFFFE
    for expected in (0xFFFFFFFF, 1, 2):
        future = device.nop.submit()
        assert device.raw.receive().call_id == expected
        device.raw.send(frames.RESULT, expected, {"r": expected})
        assert future.result() == expected


def test_one_client_may_fill_both_directions(shared):
    """It sends and receives far more large arrays than all buffers between the ends hold."""
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(np.full(1 << 20, number, "u1")) for number in range(100)]
    for number, future in enumerate(futures):
        assert (future.result() == number).all()
