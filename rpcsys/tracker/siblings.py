"""Whether a board is slower than its siblings: those of the same key with the same canary.

The median of the others, and their median absolute deviation. Boards of one kind differ, and few of them say little of
how much: `OF_CHANCE` is the factor that one of a thousand unharmed boards exceeds among so many others, of normal
values. They were counted in two million draws each (tests/tracker/test_siblings.py draws again).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from rpcsys.tracker.speed import SHIFT, deviation

#: By the number of others: deviations above their median that one of a thousand exceeds.
OF_CHANCE = {4: 37.0, 5: 33.5, 6: 14.5, 7: 14.2, 8: 9.5, 10: 7.5, 12: 6.5, 16: 5.3, 24: 4.4, 32: 4.1, 64: 3.6}
LEAST = min(OF_CHANCE)  # others without which nothing is said
_COUNTS = sorted(OF_CHANCE)
_KEPT = 0.75  # a board that stands out does so until it is below this share of the limit


class SiblingComparison(NamedTuple):
    """By what a board is above the median of so many ``others``, and what is still chance, both of the logarithm."""

    above: float
    limit: float
    others: int

    def stands_out(self, before: bool) -> bool:
        """Whether the board is slower by more than chance; ``before``: whether it was so until now."""
        return self.above > self.limit * (_KEPT if before else 1.0)


def compare(level: float, others: Sequence[float]) -> SiblingComparison | None:
    """Compare the logarithm of a board's time with those of its siblings; None if these are too few."""
    if len(others) < LEAST:
        return None
    factor = OF_CHANCE[_COUNTS[bisect_right(_COUNTS, len(others)) - 1]]
    return SiblingComparison(level - median(others), max(SHIFT, factor * deviation(others)), len(others))
