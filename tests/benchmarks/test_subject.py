"""A trial's timing, without anything worth timing."""

from benchmarks.peers.subject import Trial


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
