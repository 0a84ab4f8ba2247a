"""A board among its siblings."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.tracker import siblings
from rpcsys.tracker.siblings import LEAST, OF_CHANCE, compare
from rpcsys.tracker.speed import SHIFT, deviation

levels = st.floats(-20, 5)


def test_fewer_than_four_siblings_say_nothing():
    assert LEAST == 4
    assert compare(1.0, [0.0] * 3) is None
    assert compare(1.0, [0.0] * 4) is not None


def test_equal_siblings_name_a_board_that_is_slower_by_three_percent():
    assert not compare(0.029, [0.0] * 4).stands_out(before=False)
    assert compare(0.031, [0.0] * 4).stands_out(before=False)


def test_siblings_that_differ_name_fewer():
    others = [0.0, 0.01, -0.01, 0.02, -0.02, 0.01, -0.01, 0.0]
    compared = compare(0.1, others)
    assert compared.limit == pytest.approx(9.5 * deviation(others))
    assert not compared.stands_out(before=False)
    assert compare(0.2, others).stands_out(before=False)


def test_one_slow_sibling_hides_no_other():
    assert compare(0.05, [0.0, 0.0, 0.0, 0.0, 0.05]).stands_out(before=False)


def test_a_board_stands_out_until_it_is_clearly_back():
    assert compare(0.025, [0.0] * 4).stands_out(before=True)
    assert not compare(0.022, [0.0] * 4).stands_out(before=True)


@given(levels, st.lists(levels, min_size=4, max_size=100), st.randoms(use_true_random=False))
def test_the_order_of_siblings_and_a_common_factor_change_nothing(level, others, rng):
    found = compare(level, others)
    mixed = rng.sample(others, len(others))
    moved = compare(level + 1.0, [other + 1.0 for other in mixed])
    assert moved.others == found.others == len(others)
    assert moved.limit == pytest.approx(found.limit, abs=1e-9)
    assert moved.above == pytest.approx(found.above, abs=1e-9)
    assert found.limit >= SHIFT


@pytest.mark.parametrize("count", OF_CHANCE)
def test_one_of_a_thousand_unharmed_boards_stands_out(count):
    """The table, drawn again: at most two of a thousand, so that a seed does not decide."""
    rng, draws, named = random.Random(count), 4000, 0
    for _ in range(draws):
        others = [rng.gauss(0, 1) for _ in range(count)]
        middle = median(others)
        bound = middle + OF_CHANCE[count] * 1.4826 * median([abs(other - middle) for other in others])
        named += math.erfc(bound / math.sqrt(2)) / 2  # the chance of one more board to be above
    assert 0.0004 < named / draws < 0.002
    assert siblings.compare(0.0, [0.0] * count) is not None
