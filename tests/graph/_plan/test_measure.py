"""What stages take, measured."""

from __future__ import annotations

import threading
import time

import pytest

from rpcsys.graph._plan.measure import TimedCall, paces


def test_paces_are_those_of_each_call() -> None:
    slow, quick = paces([TimedCall(lambda: time.sleep(0.05)), TimedCall(lambda: None)], 0.1, together=True)
    assert slow >= 0.05
    assert quick < 0.05


def test_together_means_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)
    met = threading.Event()

    def meets() -> None:
        if threading.current_thread() is not threading.main_thread() and not met.is_set():
            meeting.wait()
            met.set()

    assert len(paces([TimedCall(meets), TimedCall(meets)], 0.01, together=True)) == 2
    assert met.is_set()


def test_in_turn_means_one_after_the_other() -> None:
    running = threading.Lock()

    def alone() -> None:
        assert running.acquire(blocking=False)
        running.release()

    assert len(paces([TimedCall(alone)] * 3, 0.01, together=False)) == 3


def test_an_error_in_a_call_is_raised_and_ends_the_others() -> None:
    calls = iter(range(100))

    def fails() -> None:
        if next(calls):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        paces([TimedCall(lambda: time.sleep(0.001)), TimedCall(fails)], 0.1, together=True)


def test_of_several_threads_the_pace_is_that_of_all() -> None:
    """Three wait at the same time, so that one result in three waits."""
    (pace,) = paces([TimedCall(lambda: time.sleep(0.3), 3)], 0.1, together=True)
    assert 0.05 < pace < 0.3
