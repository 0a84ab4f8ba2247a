"""Calls under way: batches, deadlines, cancelling."""

from __future__ import annotations

import concurrent.futures as cf
import threading

import numpy as np
import pytest

from rpcsys.client.calls import receiver
from rpcsys.errors import Cancelled, DeadlineExceeded, LimitExceeded, SessionClosed, SessionLost
from rpcsys.wire import frames
from tests.device import WAIT_S

LONG_S = 300.0


# ---------------------------------------------------------------- one call


def test_a_call_above_the_limit_does_not_end_the_session(shared, monkeypatch):
    echo = shared.get_function("testing.echo")
    with monkeypatch.context() as patched:
        patched.setattr(frames, "MAX_BODY", 100)
        for _ in range(2):
            with pytest.raises(LimitExceeded):
                echo(np.zeros(101, "u1"))
    assert echo(np.zeros(101, "u1")).shape == (101,)


# ---------------------------------------------------------------- batches


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


def test_a_cancelled_held_call_still_frees_objects(shared):
    """The FREE frame is held with a call: it must be sent even if the call is cancelled."""
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


def test_cancelling_a_running_call_ends_its_process(device, session):
    running = session.get_function("test.sleep").submit(LONG_S)
    device.wait_for_call()
    assert running.cancel()
    assert cf.wait([running], timeout=WAIT_S).done
    assert [report["outcome"] for report in device.reports()] == ["ended"]
    with pytest.raises((SessionLost, Cancelled)):
        session.ping()


# ---------------------------------------------------------------- deadlines


def test_an_overdue_call_ends_the_session(session):
    with pytest.raises(DeadlineExceeded, match=r"the call was not done in its 0.2 s; its process was ended"):
        session.get_function("testing.sleep")(LONG_S, deadline_s=0.2)
    with pytest.raises((SessionLost, DeadlineExceeded)):
        session.ping()


def test_an_overdue_submitted_call_ends_the_session(session):
    echo, sleep = session.get_function("testing.echo"), session.get_function("testing.sleep")
    first, late, after = echo.submit(1), sleep.submit(LONG_S, deadline_s=0.2), echo.submit(2)
    assert first.result() == 1
    with pytest.raises(DeadlineExceeded):
        late.result()
    assert isinstance(after.exception(), (SessionLost, DeadlineExceeded))


def test_a_call_within_its_deadline_returns(shared):
    echo = shared.get_function("testing.echo")
    assert echo(1, deadline_s=60) == 1
    assert echo.submit(np.ones(5), deadline_s=60).result().sum() == 5


@pytest.mark.slow
def test_a_deadline_counts_from_when_the_call_runs(shared):
    """Each call keeps its deadline; together they last longer than it and `GRACE_S`."""
    futures = [shared.get_function("testing.sleep").submit(0.2, deadline_s=1.0) for _ in range(18)]
    assert [future.result() for future in futures] == [None] * 18


def test_a_deadline_does_not_count_behind_another_call(device, session, monkeypatch):
    monkeypatch.setattr(receiver, "GRACE_S", 0.1)
    sleep, echo = session.get_function("test.sleep"), session.get_function("testing.echo")
    ours = threading.Thread(target=sleep, args=(1.5,))
    ours.start()
    device.wait_for_call()
    assert echo("after it", deadline_s=0.2) == "after it"
    ours.join(WAIT_S)


def test_a_deadline_among_other_submitted_calls(session):
    echo, sleep = session.get_function("testing.echo"), session.get_function("testing.sleep")
    futures = [echo.submit(number) for number in range(10)]
    assert echo(10, deadline_s=60) == 10
    with pytest.raises(DeadlineExceeded):
        sleep(LONG_S, deadline_s=0.2)
    assert [future.result() for future in futures] == list(range(10))


# ---------------------------------------------------------------- another owner of the stream


def test_a_stream_that_is_handed_over_goes_on(device):
    session = device.session()
    echo = session.get_function("testing.echo")
    assert echo.submit(1).result() == 1  # with the thread that reads for futures
    stream = session._channel.hand_over()
    with pytest.raises(SessionClosed):
        echo(2)
    with pytest.raises(SessionClosed):
        session._channel.hand_over()
    session.close()
    del session, echo
    call_id = 1 << 20
    stream.send(frames.encode(frames.CALL, call_id, {"f": "testing.echo", "a": [3]}))
    frame = stream.receive_within(WAIT_S)
    assert (frame.call_id, frame.get("r")) == (call_id, 3)
    stream.close()
