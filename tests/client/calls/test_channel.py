"""Calls under way: futures, windows, deadlines, batches, cancelling, and what a device must not be able to do."""

from __future__ import annotations

import concurrent.futures as cf
import socket
import threading
import time

import numpy as np
import pytest

import rpcsys
from rpcsys.client import RemoteFunction, connect
from rpcsys.client.calls import flusher, receiver
from rpcsys.errors import (
    Cancelled,
    DeadlineExceeded,
    LimitExceeded,
    ProtocolError,
    RemoteError,
    SessionClosed,
    SessionLost,
    SessionTimeout,
)
from rpcsys.wire import frames, handshake
from rpcsys.wire.values import Ref
from tests.device import OURS, PATIENCE_S, Raw, until

LONG_S = 300.0


# ---------------------------------------------------------------- one call


def test_a_call_that_is_too_large_harms_nobody(shared, monkeypatch):
    echo = shared.get_function("testing.echo")
    with monkeypatch.context() as patched:
        patched.setattr(frames, "MAX_BODY", 100)
        for _ in range(2):
            with pytest.raises(LimitExceeded):
                echo(np.zeros(101, "u1"))
    assert echo(np.zeros(101, "u1")).shape == (101,)


# ---------------------------------------------------------------- futures


def test_results_of_many(shared):
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(number) for number in range(2000)]
    assert [future.result() for future in futures] == list(range(2000))
    assert all(future.done() and not future.running() for future in futures)


def test_results_in_any_order(shared):
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(np.full(number % 5000, number)) for number in range(300)]
    for number in (299, 0, 150, 298, 1):
        assert (futures[number].result() == number).all()


@pytest.mark.parametrize("wait", [cf.wait, lambda futures: cf.wait(futures, return_when=cf.FIRST_COMPLETED)])
def test_waiting_for_some(shared, wait):
    echo = shared.get_function("testing.echo")
    assert wait([echo.submit(number) for number in range(50)]).done


def test_as_completed(shared):
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(number) for number in range(50)]
    assert sorted(future.result() for future in cf.as_completed(futures)) == list(range(50))


def test_waiting_while_nobody_reads(shared):
    """Large results, that do not fit into any buffer, arrive without anybody asking for them."""
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(np.zeros(1 << 20)) for _ in range(8)]
    assert len(cf.wait(futures, timeout=PATIENCE_S).done) == 8


def test_exceptions(shared):
    future = shared.get_function("testing.fail").submit("later")
    assert isinstance(future.exception(), RemoteError)
    with pytest.raises(RemoteError, match="later"):
        future.result()
    assert shared.get_function("testing.nop").submit().exception() is None


def test_a_timeout_of_waiting_ends_nothing(shared):
    future = shared.get_function("testing.sleep").submit(0.5)
    with pytest.raises(cf.TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(cf.TimeoutError):
        future.exception(timeout=0)
    assert not future.done()
    assert future.running()
    assert future.result(timeout=PATIENCE_S) is None


def test_callbacks_may_use_the_session(shared):
    """They run in a thread that holds nothing, so they may call, submit, and wait for other futures."""
    echo = shared.get_function("testing.echo")
    found = []
    finished = threading.Event()

    def third(future):
        found.append(future.result())
        finished.set()

    def second(future):
        found.append(future.result())
        found.append(echo("called"))
        echo.submit("third").add_done_callback(third)

    echo.submit("first").add_done_callback(second)
    assert finished.wait(PATIENCE_S)
    assert found == ["first", "called", "third"]


def test_callbacks_of_what_is_done_and_of_what_fails(shared):
    future = shared.get_function("testing.fail").submit()
    future.exception()
    found = []
    for _ in range(2):
        future.add_done_callback(lambda done: found.append(done is future))
        future.add_done_callback(lambda done: 1 / 0)
    until(lambda: len(found) == 2)
    assert found == [True, True]


def test_a_callback_after_a_rest(session, monkeypatch):
    """One call alone, which fills no batch, after a while in which nothing was to come."""
    monkeypatch.setattr(flusher, "TICK_S", 100.0)
    echo = session.get_function("testing.echo")
    echo.submit(1).result()
    time.sleep(0.3)
    came = threading.Event()
    echo.submit(2).add_done_callback(lambda done: came.set())
    assert came.wait(PATIENCE_S)


def test_callbacks_when_the_device_is_lost(device, session):
    found = []
    future = session.get_function("testing.sleep").submit(LONG_S)
    future.add_done_callback(lambda done: found.append(done.exception()))
    device.process.kill()
    until(lambda: found)
    assert isinstance(found[0], SessionLost)


def test_callbacks_while_the_sockets_are_full(shared):
    echo = shared.get_function("testing.echo")
    found = []
    for number in range(30):
        future = echo.submit(np.full(1 << 19, number, "u1"))
        future.add_done_callback(lambda done: found.append(int(echo(done.result()[:1])[0])))
    until(lambda: len(found) == 30)
    assert sorted(found) == list(range(30))


def test_an_array_may_be_changed_once_it_is_submitted(shared):
    echo = shared.get_function("testing.echo")
    for size in (10, 100_000):
        array = np.zeros(size)
        futures = []
        for number in range(100):
            array[:] = number
            futures.append(echo.submit(array))
        array[:] = -1
        for number, future in enumerate(futures):
            assert (future.result() == number).all()


def test_submitted_calls_run_before_later_ones(shared):
    counter = shared.get_function("test.counter")(0)["add"]
    futures = [counter.submit(1) for _ in range(100)]
    assert counter(0) == 100
    assert [future.result() for future in futures] == list(range(1, 101))


def test_what_a_held_back_call_frees_is_freed_though_it_is_cancelled(shared):
    """The note of what was dropped travels with a call: it must arrive though the call does not."""
    kept, dropped = shared.get_function("test.kept"), shared.get_function("test.dropped")
    sleep, nop = shared.get_function("testing.sleep"), shared.get_function("testing.nop")
    thing = kept("freed with a cancelled call")
    waiting = [sleep.submit(0.05) for _ in range(4)]
    del thing
    assert nop.submit().cancel()
    for future in waiting:
        future.result()
    assert "freed with a cancelled call" in dropped()


# ---------------------------------------------------------------- cancelling


def test_a_waiting_call_is_dropped(device, session):
    sleep, counter = session.get_function("test.sleep"), session.get_function("test.counter")(0)["add"]
    running = sleep.submit(1.0)
    device.wait_for_call()
    waiting = [counter.submit(1) for _ in range(5)]
    assert waiting[2].cancel()
    assert waiting[2].cancelled()
    with pytest.raises(cf.CancelledError):
        waiting[2].result()
    assert running.result() is None
    assert [future.result() for future in waiting if not future.cancelled()] == [1, 2, 3, 4]
    assert not waiting[0].cancel()
    assert waiting[2].cancel()


def test_a_running_call_is_really_stopped(device, session):
    running = session.get_function("test.sleep").submit(LONG_S)
    device.wait_for_call()
    assert running.cancel()
    assert cf.wait([running], timeout=PATIENCE_S).done
    assert device.reports() == [{"outcome": "ended"}]
    with pytest.raises((SessionLost, Cancelled)):
        session.ping()


# ---------------------------------------------------------------- deadlines


def test_an_overdue_call(session):
    with pytest.raises(DeadlineExceeded, match=r"the call was not done in its 0.2 s; its process was ended"):
        session.get_function("testing.sleep")(LONG_S, deadline_s=0.2)
    with pytest.raises((SessionLost, DeadlineExceeded)):
        session.ping()


def test_an_overdue_submitted_call(session):
    echo, sleep = session.get_function("testing.echo"), session.get_function("testing.sleep")
    first, late, after = echo.submit(1), sleep.submit(LONG_S, deadline_s=0.2), echo.submit(2)
    assert first.result() == 1
    with pytest.raises(DeadlineExceeded):
        late.result()
    assert isinstance(after.exception(), (SessionLost, DeadlineExceeded))


def test_a_deadline_that_is_kept(shared):
    echo = shared.get_function("testing.echo")
    assert echo(1, deadline_s=60) == 1
    assert echo.submit(np.ones(5), deadline_s=60).result().sum() == 5


def test_a_deadline_counts_from_when_the_call_runs(shared):
    """Calls that each keep their deadline, and together last longer than it and the client's patience beyond it."""
    futures = [shared.get_function("testing.sleep").submit(0.2, deadline_s=1.0) for _ in range(18)]
    assert [future.result() for future in futures] == [None] * 18


def test_a_deadline_behind_a_call_that_has_none(device, session, monkeypatch):
    """The plain call of another thread is the one that runs."""
    monkeypatch.setattr(receiver, "GRACE_S", 0.1)
    sleep, echo = session.get_function("test.sleep"), session.get_function("testing.echo")
    ours = threading.Thread(target=sleep, args=(1.5,))
    ours.start()
    device.wait_for_call()
    assert echo("after it", deadline_s=0.2) == "after it"
    ours.join(PATIENCE_S)


def test_a_deadline_in_the_midst_of_others(session):
    echo, sleep = session.get_function("testing.echo"), session.get_function("testing.sleep")
    futures = [echo.submit(number) for number in range(10)]
    assert echo(10, deadline_s=60) == 10
    with pytest.raises(DeadlineExceeded):
        sleep(LONG_S, deadline_s=0.2)
    assert [future.result() for future in futures] == list(range(10))


# ---------------------------------------------------------------- a device that misbehaves


class FakeDevice:
    """The other end of a session, by hand."""

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
        ours.join(PATIENCE_S)
        self.nop = self.call_of("nop")

    def _connect(self, host, port):
        self.session = connect(host, port, key="key")

    def call_of(self, name):
        return RemoteFunction(self.session, name, name)

    def answer(self, data):
        """Submit a call and have ``data`` come back, with its number where it says so."""
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
def test_nonsense_from_the_device_is_a_lost_session(fake, data, submitted):
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
    assert future.result(PATIENCE_S) == fields.get("r")


def test_an_object_of_unknown_kind(fake):
    future = fake().answer(encoded(frames.RESULT, {"r": Ref(1, {"is": "hologram"})}))
    with pytest.raises(SessionLost, match="unknown kind 'hologram'; update this client"):
        future.result()


@pytest.mark.parametrize("about", [{"is": "array", "shape": 5}, {"is": "module", "functions": 5}])
def test_an_object_described_in_nonsense(fake, about):
    future = fake().answer(encoded(frames.RESULT, {"r": Ref(1, about)}))
    with pytest.raises(ProtocolError, match="makes no sense"):
        future.result()


def test_written_arrays_that_do_not_come(fake):
    device = fake()
    future = device.nop.submit(rpcsys.empty(3), rpcsys.inout(np.zeros(2)))
    device.raw.receive()
    device.raw.sock.sendall(encoded(frames.RESULT, {"r": None, "w": [np.zeros(3)]})(1))
    with pytest.raises(ProtocolError, match="did not send back"):
        future.result()


def test_replies_that_belong_to_nothing_are_ignored(fake):
    device = fake()
    others = b"".join(
        frames.pack(kind, 77, head)[0]
        for kind, head in (
            (frames.RESULT, b'{"r":1}'), (frames.ERROR, b"{}"), (frames.CHUNK, b""), (frames.PONG, b""), (frames.CALL, b"{}"),
        )
    )  # fmt: skip
    assert device.answer(lambda call_id: others + encoded(frames.RESULT, {"r": 5})(call_id)).result() == 5


def test_a_goodbye_with_its_reason(fake):
    future = fake().answer(b"".join(frames.encode(frames.GOODBYE, 0, {"reason": "out of hours"})))
    with pytest.raises(SessionLost, match=r"127.0.0.1:\d+ ended the session: out of hours"):
        future.result()


def test_an_error_without_anything(fake):
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
    thread.join(PATIENCE_S)
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
    thread.join(PATIENCE_S)
    assert [future.result() for future in futures] == list(range(5))


def test_a_call_larger_than_the_window_goes_alone(fake):
    device = fake(bytes=10)
    future = device.nop.submit(np.zeros(100_000, "u1"))
    device.raw.send(frames.RESULT, device.raw.receive().call_id, {"r": 1})
    assert future.result() == 1


def test_a_device_that_takes_nothing_and_says_nothing(fake):
    """A large call does not go out; another thread may still close the session."""
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
    thread.join(PATIENCE_S)
    assert len(errors) == 1


def test_a_device_that_keeps_silent_after_a_deadline_is_hung_up_on(fake):
    device = fake()
    with pytest.raises(DeadlineExceeded, match=r"no reply 2 s after the call's deadline of 0.1 s"):
        device.nop(deadline_s=0.1)
    assert device.raw.receive().kind == frames.CALL
    assert device.raw.ended()


def test_a_device_without_a_sign_of_life(fake):
    device = fake()
    with pytest.raises(DeadlineExceeded, match=r"no sign of life from 127.0.0.1:\d+ within 0.2 s"):
        device.session.ping(deadline_s=0.2)
    assert device.session.closed is None


def test_the_reason_is_read_though_the_call_could_not_be_sent(fake):
    """The device says why before it hangs up; the client notices only when it cannot send."""
    device = fake()
    head, _ = frames.encode_head({"type": "SessionTimeout", "message": "over"})
    device.raw.sock.sendall(frames.pack(frames.ERROR, 0, head)[0])
    device.raw.sock.close()

    with pytest.raises(SessionTimeout, match="over"):
        device.nop(np.zeros(1 << 20))


def test_numbers_of_calls_start_again(fake):
    device = fake()
    device.session._channel._next_id = 0xFFFFFFFE
    for expected in (0xFFFFFFFF, 1, 2):
        future = device.nop.submit()
        assert device.raw.receive().call_id == expected
        device.raw.send(frames.RESULT, expected, {"r": expected})
        assert future.result() == expected


def test_both_directions_full_by_one_client(shared):
    """Pipelined large arrays both ways, far more than all buffers between them hold."""
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(np.full(1 << 20, number, "u1")) for number in range(100)]
    for number, future in enumerate(futures):
        assert (future.result() == number).all()
