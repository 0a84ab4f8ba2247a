"""When to try again, as decisions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client.patience import FIRST_PAUSE_S, LONGEST_PAUSE_S, REPEATS, Attempts, Patience


def test_pauses_grow_up_to_a_limit():
    patience = Patience()
    pauses = [patience.pause(1000, 0.0) for _ in range(9)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S


@given(st.lists(st.tuples(st.floats(-10, 100), st.floats(0, 1, exclude_max=True)), max_size=30))
def test_no_pause_is_longer_than_what_is_left(tries):
    patience = Patience()
    for left, chance in tries:
        pause = patience.pause(left, chance)
        assert (pause is None) == (left <= 0)
        assert pause is None or 0 < pause <= min(left, LONGEST_PAUSE_S)


def test_those_who_lost_it_together_do_not_come_back_together():
    pauses = {Patience().pause(100, chance / 10) for chance in range(10)}
    assert len(pauses) == 10
    assert min(pauses) > FIRST_PAUSE_S / 2


def test_a_call_that_may_be_repeated_is_so_often_and_no_more():
    attempts = Attempts(True, 1.0)
    assert [attempts.lost() for _ in range(REPEATS + 2)] == [True] * REPEATS + [False, False]
    assert not Attempts(False, 1.0).lost()


def test_a_busy_server_is_asked_again_until_the_time_is_over():
    attempts, now, asked = Attempts(True, 1.0), 100.0, 0
    while (pause := attempts.busy(now, 0.0)) is not None:
        now += pause
        asked += 1
    assert now == 101.0
    assert 4 <= asked <= 6
