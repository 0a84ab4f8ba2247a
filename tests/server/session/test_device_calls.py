"""The calls of a session with several devices, on simulated chips: what runs at once, in order, and how calls end."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from rpcsys.errors import DeadlineExceeded, RemoteError, SessionLost
from rpcsys.wire import frames
from rpcsys.wire.device_names import MAX_DEVICES
from tests.device import Device, until

LONG_S = 300.0


@pytest.fixture
def session():
    with Device() as device, device.session() as session:
        yield session


@pytest.fixture
def any_session(speedups):
    """In C and in Python, in the clear and encrypted."""
    with Device() as device, device.session() as session:
        yield session


def chip(session, device="opencl:0"):
    return session.get_function("test.chip")(device)


def runs(session):
    return session.device_report()["runs"]


def calls_of(session, device):
    """The numbers of the calls that had the device, in the order of their turns."""
    return [order for each, order, *_ in runs(session) if each == device]


def together_s(session, one, other):
    """Seconds in which both devices worked."""
    spans = [[run[2:] for run in runs(session) if run[0] == device] for device in (one, other)]
    return sum(max(0.0, min(b[1], a[1]) - max(b[0], a[0])) for a in spans[0] for b in spans[1])


def assert_one_at_a_time(session):
    by_device = {}
    for device, _, began, ended in sorted(runs(session), key=lambda run: run[2]):
        assert began >= by_device.get(device, 0.0), f"two calls at once on {device}"
        by_device[device] = ended


def test_devices_work_at_the_same_time(session):
    first, second = chip(session), chip(session, "vulkan:0")
    both = [first["main"].submit(1, 0.4), second["main"].submit(2, 0.4)]
    assert [future.result(20) for future in both] == [2, 3]
    assert together_s(session, "opencl:0", "vulkan:0") > 0.2


def test_the_cpu_is_one_of_them(any_session):
    """A function of the board that was called before, too."""
    sleep = any_session.get_function("testing.sleep")
    sleep(0.0)
    one = chip(any_session)
    both = [sleep.submit(0.4), one["main"].submit(2, 0.4)]
    assert [future.result(20) for future in both] == [None, 3]
    assert together_s(any_session, "cpu:0", "opencl:0") > 0.2


def test_calls_to_one_device_run_in_order(session):
    one = chip(session)
    futures = [one["main"].submit(number, 0.001) for number in range(40)]
    assert [future.result(20) for future in futures] == list(range(1, 41))
    orders = calls_of(session, "opencl:0")
    assert orders == sorted(orders)
    assert len(orders) == 40
    assert_one_at_a_time(session)


def test_a_chip_answers_while_another_has_all_it_can_take(session):
    busy, free = chip(session), chip(session, "vulkan:0")
    futures = [busy["main"].submit(number, 0.02) for number in range(100)]
    assert free(1) == 2
    assert not futures[-1].done()
    assert [future.result(20) for future in futures] == list(range(1, 101))


def test_frames_of_a_graph_overlap_and_come_in_order(any_session):
    """Each frame takes its turn on one chip after the other, and the oldest one goes first."""
    graph = any_session.get_function("test.chips")("cpu:0", "opencl:0", "vulkan:0")
    ended = []
    futures = [graph["main"].submit(number, 0.05) for number in range(12)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: ended.append(number))
    assert [future.result(20) for future in futures] == list(range(3, 15))
    until(lambda: len(ended) == 12)
    assert ended == list(range(12))
    assert together_s(any_session, "cpu:0", "opencl:0") > 0.25
    assert together_s(any_session, "opencl:0", "vulkan:0") > 0.25
    assert_one_at_a_time(any_session)
    for device in ("cpu:0", "opencl:0", "vulkan:0"):
        assert calls_of(any_session, device) == sorted(calls_of(any_session, device))


def test_an_array_of_a_chip_stays_there_until_it_is_asked_for(session):
    one, other = chip(session), chip(session, "vulkan:0")
    kept = one["main"](1, keep=True)
    assert (kept.device, kept.dtype, kept.shape) == ("opencl:0", "float64", ())
    again = one["main"](kept, keep=True)
    assert session.memory()["devices"]["opencl:0"]["copied_out"] == 0
    assert session.memory()["devices"]["opencl:0"]["arrays"] == 2
    assert again.get() == 3
    assert session.memory()["devices"]["opencl:0"]["copied_out"] == 1
    assert session.get_function("test.divide")(again, 2) == 1.5
    del kept, again
    until(lambda: session.memory()["devices"]["opencl:0"]["arrays"] == 0, "the arrays to be freed")
    assert other(1) == 2


def test_a_failing_call_leaves_the_others_alone(session):
    one, graph = chip(session), session.get_function("test.chips")("opencl:0", "vulkan:0")
    futures = [graph["main"].submit(number, 0.02) for number in range(6)]
    with pytest.raises(RemoteError, match="opencl:0 failed on 5"):
        one["fail"](5)
    with pytest.raises(RemoteError, match="NoneType"):
        graph(None, 0.0)
    assert [future.result(20) for future in futures] == list(range(2, 8))
    assert one(1) == 2


def test_a_deadline_stops_a_call_that_can_be_stopped(session):
    one, other = chip(session), chip(session, "vulkan:0")
    beside = other["main"].submit(1, 0.5)
    with pytest.raises(DeadlineExceeded, match=r"was not done in its 0\.1 s; it was stopped, and the session goes on"):
        one["main"](1, LONG_S, deadline_s=0.1)
    assert (beside.result(20), one(1)) == (2, 2)


def test_a_deadline_of_a_call_that_cannot_be_stopped_ends_the_session(session):
    one = chip(session)
    with pytest.raises(DeadlineExceeded, match="its process was ended"):
        one["deaf"](1, LONG_S, deadline_s=0.1)
    with pytest.raises(SessionLost):
        one(1)


def test_a_deadline_counts_for_a_frame_that_waits_for_its_turn(session):
    one, graph = chip(session), session.get_function("test.chips")("vulkan:0", "opencl:0")
    blocks = one["main"].submit(1, 1.0)
    with pytest.raises(DeadlineExceeded, match="the session goes on"):
        graph(1, 0.0, deadline_s=0.2)
    assert blocks.result(20) == 2
    assert graph(1, 0.0) == 3


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_is_cancelled(speedups, waits):
    with Device() as device:
        raw = device.raw()
        raw.call(1, "test.chip", "opencl:0")
        assert raw.receive().get("r").about["is"] == "module"
        raw.call(2, [1, "main"], 1, 1.0 if waits else LONG_S)
        if waits:
            raw.call(3, [1, "main"], 1, 0.0)
        raw.send(frames.PING, 9)
        assert raw.receive().kind == frames.PONG
        raw.send(frames.CANCEL, 3 if waits else 2)
        reply = raw.receive()
        assert (reply.kind, reply.call_id, reply.get("type")) == (frames.ERROR, 3 if waits else 2, "Cancelled")
        if waits:
            assert raw.receive().get("r") == 2
        raw.call(4, [1, "main"], 4, 0.0)
        assert raw.receive().get("r") == 5


def test_cancelled_future_of_a_client(session):
    one = chip(session)
    busy, waits = one["main"].submit(1, 0.3), one["main"].submit(2)
    assert waits.cancel()
    assert busy.result(20) == 2
    with pytest.raises(CancelledError):
        waits.result(20)
    assert one(2) == 3


def test_an_array_freed_behind_a_call_that_uses_it(session):
    one = chip(session)
    kept = one["main"](1, keep=True)
    busy, uses = one["main"].submit(1, 0.2), one["main"].submit(kept)
    del kept
    assert (busy.result(20), uses.result(20)) == (2, 3)


def test_a_call_that_ends_the_process(session):
    one, other = chip(session), chip(session, "vulkan:0")
    beside = other["main"].submit(1, LONG_S)
    with pytest.raises(SessionLost, match="ended its process"):
        one["exit"](3)
    with pytest.raises(SessionLost):
        beside.result(20)


def test_goodbye_while_chips_work():
    with Device() as device:
        with device.session() as session:
            chip(session)["deaf"].submit(1, LONG_S)
            session.ping()
        assert device.reports()[-1] == {"served": "closed"}


def test_more_calls_than_the_window_allows_end_the_session():
    with Device() as device:
        raw = device.raw()
        raw.call(1, "test.chip", "opencl:0")
        raw.receive()
        raw.call(2, [1, "deaf"], 1, LONG_S)
        for number in range(3, 515):
            raw.call(number, [1, "main"], 1)
        reply = raw.receive()
        assert (reply.kind, reply.get("type")) == (frames.ERROR, "ProtocolError")
        assert "more calls were sent than may be under way" in reply.get("message")


def test_a_session_uses_a_bounded_number_of_devices(session):
    one = chip(session)
    assert one(1) == 2
    wrong = 0
    for number in range(MAX_DEVICES + 5):
        with pytest.raises(RemoteError) as caught:
            session._builtin("session.put", b"", f"vulkan:{number}")
        wrong += f"a session uses at most {MAX_DEVICES} devices" in str(caught.value)
    assert wrong == 6
    assert one(2) == 3


def test_time_evaluator_has_the_chip_for_itself(session):
    one = chip(session)
    timed = []
    evaluator = one["main"].time_evaluator(number=3, repeat=2)
    thread = threading.Thread(target=lambda: timed.append(evaluator(1, 0.05)))
    thread.start()
    beside = [one(1, 0.01) for _ in range(20)]
    thread.join(20)
    assert timed[0].mean >= 0.05
    assert_one_at_a_time(session)
    assert beside == [2] * 20


def test_large_results_of_several_chips_at_once(any_session):
    """Answers of several threads never mix."""
    echo = any_session.get_function("testing.echo")
    one = chip(any_session)
    data = [bytes([number]) * (1 << 20) for number in range(8)]
    futures = [(echo.submit(each), one["main"].submit(number)) for number, each in enumerate(data)]
    for number, (bulk, small) in enumerate(futures):
        assert (bytes(bulk.result(20)), small.result(20)) == (data[number], number + 1)
