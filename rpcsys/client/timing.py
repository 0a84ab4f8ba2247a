"""The result of a time evaluator."""

from __future__ import annotations

import statistics
from typing import Sequence, Tuple


class TimingResult:
    """Seconds per call, one figure for each repeat, and what can be said of them.

    Attributes
    ----------
    results : mean seconds of one call, for each repeat
    mean, median, min, max, std : of ``results``, in seconds (``std`` of the population)
    """

    def __init__(self, results: Sequence[float]) -> None:
        self.results: Tuple[float, ...] = tuple(results)
        self.mean = statistics.fmean(self.results)
        self.median = statistics.median(self.results)
        self.min = min(self.results)
        self.max = max(self.results)
        self.std = statistics.pstdev(self.results)

    def __repr__(self) -> str:
        return f"TimingResult(mean={self.mean:.6g} s, median={self.median:.6g} s, std={self.std:.3g} s, repeats={len(self.results)})"

    def __str__(self) -> str:
        return "mean {}  median {}  min {}  max {}  std {}  ({} repeats)".format(
            *(_human(value) for value in (self.mean, self.median, self.min, self.max, self.std)),
            len(self.results),
        )


def _human(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e6:.3f} us"
