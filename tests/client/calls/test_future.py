"""Futures of submitted calls: results in any order, errors, timeouts, callbacks."""

from __future__ import annotations

import concurrent.futures as cf
import logging
import threading
import time

import numpy as np
import pytest

from rpcsys.client.calls import flusher
from rpcsys.errors import RemoteError, SessionLost
from tests.device import WAIT_S, until

LONG_S = 300.0


def test_many_futures_have_their_results(shared):
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
def test_wait_for_some_futures(shared, wait):
    echo = shared.get_function("testing.echo")
    assert wait([echo.submit(number) for number in range(50)]).done


def test_as_completed(shared):
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(number) for number in range(50)]
    assert sorted(future.result() for future in cf.as_completed(futures)) == list(range(50))


def test_large_results_arrive_without_a_waiting_thread(shared):
    echo = shared.get_function("testing.echo")
    futures = [echo.submit(np.zeros(1 << 20)) for _ in range(8)]
    assert len(cf.wait(futures, timeout=WAIT_S).done) == 8


def test_a_future_has_the_calls_exception(shared):
    future = shared.get_function("testing.fail").submit("later")
    assert isinstance(future.exception(), RemoteError)
    with pytest.raises(RemoteError, match="later"):
        future.result()
    assert shared.get_function("testing.nop").submit().exception() is None


def test_a_timeout_of_result_does_not_end_the_call(shared):
    future = shared.get_function("testing.sleep").submit(0.5)
    with pytest.raises(cf.TimeoutError):
        future.result(timeout=0.01)
    with pytest.raises(cf.TimeoutError):
        future.exception(timeout=0)
    assert not future.done()
    assert future.running()
    assert future.result(timeout=WAIT_S) is None


def test_callbacks_run_in_turn_and_may_fail(shared, caplog):
    channel, found, done = shared._channel, [], threading.Event()
    with caplog.at_level(logging.ERROR, "rpcsys.session"):
        channel.call_back(found.append, 1)
        channel.call_back(lambda what: 1 / what, 0)
        channel.call_back(found.append, 2)
        channel.call_back(lambda what: done.set(), None)
        assert done.wait(WAIT_S)
    assert found == [1, 2]
    assert "a callback of 0 raised" in caplog.text


def test_callbacks_may_use_the_session(shared):
    """They run in a thread without locks, so they may call, submit, and wait for other futures."""
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
    assert finished.wait(WAIT_S)
    assert found == ["first", "called", "third"]


def test_callbacks_run_for_done_and_failed_futures(shared):
    future = shared.get_function("testing.fail").submit()
    future.exception()
    found = []
    for _ in range(2):
        future.add_done_callback(lambda done: found.append(done is future))
        future.add_done_callback(lambda done: 1 / 0)
    until(lambda: len(found) == 2)
    assert found == [True, True]


def test_a_callback_runs_after_an_idle_time(session, monkeypatch):
    """A single call, which fills no batch, after a time without expected frames."""
    monkeypatch.setattr(flusher, "TICK_S", 100.0)
    echo = session.get_function("testing.echo")
    echo.submit(1).result()
    time.sleep(0.3)
    came = threading.Event()
    echo.submit(2).add_done_callback(lambda done: came.set())
    assert came.wait(WAIT_S)


def test_callbacks_run_when_the_device_is_lost(device, session):
    found = []
    future = session.get_function("testing.sleep").submit(LONG_S)
    future.add_done_callback(lambda done: found.append(done.exception()))
    device.process.kill()
    until(lambda: found)
    assert isinstance(found[0], SessionLost)


def test_callbacks_run_while_the_sockets_are_full(shared):
    echo = shared.get_function("testing.echo")
    found = []
    for number in range(30):
        future = echo.submit(np.full(1 << 19, number, "u1"))
        future.add_done_callback(lambda done: found.append(int(echo(done.result()[:1])[0])))
    until(lambda: len(found) == 30)
    assert sorted(found) == list(range(30))


def test_no_future_of_a_lost_session_waits(device, session):
    echo = session.get_function("testing.echo")
    device.process.kill()
    with pytest.raises(SessionLost):
        echo(1)
    for _ in range(20):  # more than are sent at once
        with pytest.raises(SessionLost):
            echo.submit(1)
