"""Intervals of the median: against scipy's, and how often they hold the median."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.intervals import median_interval

stats = pytest.importorskip("scipy.stats")

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


@given(values, st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]))
def test_it_is_scipys(values: list[float], confidence: float) -> None:
    found = median_interval(values, confidence)
    expected = stats.quantile_test(values, q=0, p=0.5).confidence_interval(confidence)
    if found is None:
        assert np.isnan(expected.low) or np.isnan(expected.high)
    else:
        assert found == (expected.low, expected.high)


@pytest.mark.parametrize("count", [6, 7, 30, 1000, 30_000])
def test_both_ends_are_as_near_as_the_confidence_allows(count: int) -> None:
    found = median_interval(range(count))
    assert found is not None
    low, high = found
    assert low + high == count - 1
    assert 2 * stats.binom.cdf(low, count, 0.5) <= 0.05 < 2 * stats.binom.cdf(low + 1, count, 0.5)


def test_five_values_are_too_few_for_95_percent() -> None:
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([1, 2, 3, 4, 5], 0.9) == (1, 5)
    assert median_interval([3, 1, 2, 6, 5, 4]) == (1, 6)
    assert median_interval([]) is None


def test_it_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(21)
    drawn = rng.lognormal(size=(4000, 20))
    intervals = [median_interval(row.tolist()) for row in drawn]
    held = sum(low <= 1 <= high for low, high in intervals if low is not None)
    assert held / len(drawn) > 0.94


@pytest.mark.parametrize("confidence", [0, 1, -1, 95, float("nan")])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        median_interval([1.0] * 9, confidence)
