"""Pauses between attempts, and when to give up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.link.backoff import REPEATS, RETRY_S, Backoff, RetryBudget, jitter

FIRST_S, LONGEST_S = RETRY_S


def test_pauses_grow_up_to_a_limit():
    backoff = Backoff(*RETRY_S)
    pauses = [backoff.pause_within(1000, 0.0) for _ in range(9)]
    assert pauses[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_S


@given(st.lists(st.tuples(st.floats(-10, 100), st.floats(0, 1, exclude_max=True)), max_size=30))
def test_no_pause_is_longer_than_what_is_left(tries):
    backoff = Backoff(*RETRY_S)
    for left, chance in tries:
        pause = backoff.pause_within(left, chance)
        assert (pause is None) == (left <= 0)
        assert pause is None or 0 < pause <= min(left, LONGEST_S)


def test_jitter_spreads_the_attempts_of_peers_that_failed_together():
    pauses = {Backoff(*RETRY_S).pause(chance / 10) for chance in range(10)}
    assert len(pauses) == 10
    assert min(pauses) > FIRST_S / 2


def test_a_repeatable_call_is_repeated_a_fixed_number_of_times():
    budget = RetryBudget(True, 1.0)
    assert [budget.lost() for _ in range(REPEATS + 2)] == [True] * REPEATS + [False, False]
    assert not RetryBudget(False, 1.0).lost()


def test_a_busy_server_is_retried_until_the_time_is_over():
    budget, now, asked = RetryBudget(True, 1.0), 100.0, 0
    while (pause := budget.busy(now, 0.0)) is not None:
        now += pause
        asked += 1
    assert now == 101.0
    assert 4 <= asked <= 6


def test_only_the_first_failure_in_a_row_is_logged():
    backoff = Backoff(0.1, 10.0)
    assert backoff.allows(0.0)
    assert [backoff.failed(100.0) for _ in range(3)] == [True, False, False]
    assert backoff.until == 100.4
    assert (backoff.allows(100.3), backoff.allows(100.4)) == (False, True)
    backoff.worked()
    assert backoff.allows(0.0)
    assert backoff.failed(200.0)
    assert backoff.until == 200.1


def test_jitter_is_below_one_and_differs():
    drawn = [jitter() for _ in range(100)]
    assert all(0 <= each < 1 for each in drawn)
    assert len(set(drawn)) > 90
