"""A trial's timing, without anything worth timing."""

import threading
import time
from contextlib import contextmanager

import pytest

from benchmarks.peers.subject import EachAtOnce, Subject, Trial, TwoAtOnce

WAIT_S = 30


def test_a_slow_run_is_warmed_up_once_and_timed_once():
    calls = []
    figures = Trial(lambda: calls.append("run")).measure(budget_s=0.0)
    assert calls == ["run", "run"]
    assert figures["seconds"] >= 0


def test_what_follows_a_run_follows_each_of_them():
    calls = []
    Trial(lambda: calls.append("run"), after=lambda: calls.append("after")).measure(budget_s=0.0)
    assert calls == ["run", "after", "run", "after"]


def test_runs_repeat_until_the_budget_is_spent():
    calls = []
    Trial(lambda: calls.append("run")).measure(budget_s=0.01)
    assert len(calls) > 10


def test_a_run_that_does_its_thing_several_times_counts_for_one_of_them():
    assert 0.01 <= Trial(lambda: time.sleep(0.1), times=10).once() < 0.1


def test_runs_that_begin_at_once_meet_and_their_median_counts():
    all_threads = threading.Barrier(3, timeout=WAIT_S)
    after = []

    def run(pause_s):
        all_threads.wait()
        time.sleep(pause_s)

    pauses = (0.0, 0.1, 2.0)
    trial = EachAtOnce([lambda pause_s=pause_s: run(pause_s) for pause_s in pauses], lambda: after.append(1))
    assert 0.1 <= trial.once() < 2.0
    assert after == [1]


def test_what_fails_in_a_thread_fails_the_trial():
    def run():
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        EachAtOnce([run, run], lambda: None).once()


class Meeting(Subject):
    """Its runs end only if two are under way at once."""

    def __init__(self):
        self.both = threading.Barrier(2, timeout=WAIT_S)
        self.ended = []

    @contextmanager
    def meet(self, name):
        yield Trial(self.both.wait)
        self.ended.append(name)


class TwoMeet(TwoAtOnce, Meeting):
    """The same on two connections."""


def test_two_at_once_are_under_way_together_and_both_are_closed():
    subject = TwoMeet()
    with subject.trial("meet", name="m") as trial:
        assert trial.once() >= 0
    assert subject.ended == ["m", "m"]
