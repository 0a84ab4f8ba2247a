"""The plan of a comparison: looks, the order of turns, calls in a turn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.measure import schedule


@given(st.floats(1, 86400))
def test_looks_grow_up_to_the_limit(limit_s: float):
    planned = schedule.looks(limit_s)
    assert planned[-1] == limit_s
    assert all(0 < one < other <= schedule.GROWTH * one * 1.001 for one, other in itertools.pairwise(planned))
    assert len(planned) <= 32


def test_a_minute_has_a_dozen_looks():
    assert len(schedule.looks(60)) == 12
    assert schedule.looks(60)[:3] == (1.0, 1.5, 2.25)


@given(st.integers(2, 20), st.floats(1e-6, 100), st.floats(0.01, 20), st.integers(0, 2**32))
def test_each_block_has_every_subject_once(subjects: int, turn_s: float, seconds: float, seed: int):
    drawn = schedule.order(np.random.default_rng(seed), subjects, turn_s, seconds)
    assert subjects <= len(drawn) <= schedule.MAX_TURNS
    for start in range(0, len(drawn), subjects):
        assert sorted(drawn[start : start + subjects]) == list(range(subjects))


def test_the_order_is_drawn():
    drawn = schedule.order(np.random.default_rng(1), 2, 0.005, 10)
    first = sum(drawn[::2])
    assert abs(first - len(drawn) / 4) < 4 * (len(drawn) / 8) ** 0.5


@pytest.mark.parametrize(
    ("seconds", "numbers"),
    [
        ([0.001, 0.0011], [5, 5]),
        ([0.001, 0.009], [1, 1]),  # perhaps the same, on a busy board
        ([0.001, 0.02], [5, 1]),
        ([3.0, 2.0], [1, 1]),
        ([0.0, 1e-12], [schedule.MAX_NUMBER] * 2),
    ],
)
def test_calls_in_a_turn(seconds: list[float], numbers: list[int]):
    assert schedule.numbers(seconds) == numbers


def test_turns_are_sorted_by_block_and_subject():
    assert schedule.blocks([1, 0, 0, 1, 1, 0], "abcde", 2) == [["b", "a"], ["c", "d"]]
    assert schedule.blocks([0, 1], "", 2) == []
