"""When to try again, as decisions."""

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


def test_those_who_lost_it_together_do_not_come_back_together():
    pauses = {Backoff(*RETRY_S).pause(chance / 10) for chance in range(10)}
    assert len(pauses) == 10
    assert min(pauses) > FIRST_S / 2


def test_a_call_that_may_be_repeated_is_so_often_and_no_more():
    budget = RetryBudget(True, 1.0)
    assert [budget.lost() for _ in range(REPEATS + 2)] == [True] * REPEATS + [False, False]
    assert not RetryBudget(False, 1.0).lost()


def test_a_busy_server_is_asked_again_until_the_time_is_over():
    budget, now, asked = RetryBudget(True, 1.0), 100.0, 0
    while (pause := budget.busy(now, 0.0)) is not None:
        now += pause
        asked += 1
    assert now == 101.0
    assert 4 <= asked <= 6


def test_only_the_first_failure_in_a_row_is_worth_a_line():
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
