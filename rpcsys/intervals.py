"""Intervals of the median that assume nothing about how the values are distributed. For the device tier, too."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction

CONFIDENCE = 0.95


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """The interval of the median of what ``values`` were drawn from, with at least this ``confidence``.

    Its ends are two of the values: the k-th smallest and the k-th largest, for the largest k that the confidence
    allows. The number of values below the median is binomial with p = 1/2, so both ends are on one side of it with
    probability 2 P(B < k) (David and Nagaraja, Order Statistics, 3rd edition, section 7.1). The values must be
    independent: repeats of one measurement are, as far as the machine stays the same. None where even the least and
    the largest value are not enough: fewer than 6 values at 95 %. Raises ValueError for a confidence outside of 0 to 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence is between 0 and 1, not {confidence!r}")
    place = _place(len(values), confidence)
    if not place:
        return None
    ordered = sorted(values)
    return ordered[place - 1], ordered[-place]


@functools.lru_cache(maxsize=1024)
def _place(count: int, confidence: float) -> int:
    """The largest k with 2 P(B < k) < 1 - confidence, for B binomial of ``count`` and 1/2; 0 if there is none."""
    # Whole numbers: 30,000 values leave no room in a double. The text of a double is what its user has written.
    allowed = (1 - Fraction(repr(float(confidence)))) * 2**count / 2
    place, ways, below = 0, 1, 1  # ``ways``: to choose ``place`` of the values; ``below``: the sum of those up to it
    while below < allowed and 2 * place < count:
        ways = ways * (count - place) // (place + 1)
        place += 1
        below += ways
    return place
