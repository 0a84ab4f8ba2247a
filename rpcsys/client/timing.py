"""The result of a time evaluator."""

from __future__ import annotations

import statistics
import warnings as python_warnings
from typing import Any, Dict, Optional, Sequence, Tuple

from rpcsys.client import answers
from rpcsys.errors import ProtocolError, printable


class TimingResult:
    """Seconds per call, one figure for each repeat, and what can be said of them.

    Attributes
    ----------
    results : mean seconds of one call, for each repeat
    mean, median, min, max, std : of ``results``, in seconds (``std`` of the population)
    board : the device's state ``"before"`` and ``"after"``, each a dict with what Linux shows there of
        ``cpu_mhz`` and ``governor`` (dicts by CPU), ``temperature_c`` (of the hottest zone), ``load`` (of a minute)
    warnings : what changed on the device so that the figures are doubtful; one line each
    """

    def __init__(
        self, results: Sequence[float], board: Optional[Dict[str, Dict[str, Any]]] = None, warnings: Sequence[str] = ()
    ) -> None:
        self.results: Tuple[float, ...] = tuple(results)
        self.mean = statistics.fmean(self.results)
        self.median = statistics.median(self.results)
        self.min = min(self.results)
        self.max = max(self.results)
        self.std = statistics.pstdev(self.results)
        self.board: Dict[str, Dict[str, Any]] = board or {"before": {}, "after": {}}
        self.warnings: Tuple[str, ...] = tuple(warnings)

    def __repr__(self) -> str:
        return f"TimingResult(mean={self.mean:.6g} s, median={self.median:.6g} s, std={self.std:.3g} s, repeats={len(self.results)})"

    def __str__(self) -> str:
        return "mean {}  median {}  min {}  max {}  std {}  ({} repeats)".format(
            *(_human(value) for value in (self.mean, self.median, self.min, self.max, self.std)), len(self.results)
        )


def told(answer: Any) -> TimingResult:
    """The result in a device's answer; what is doubtful in it is also said by Python's `warnings`.

    Raises `ProtocolError` for an answer that makes no sense.
    """
    try:
        answer = answers.from_device(answers.TIMES, answer, "a time evaluator")
        result = TimingResult(answer["results"], answer.get("board"), answer.get("warnings", ()))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise ProtocolError("the device's answer to a time evaluator makes no sense") from None
    if result.warnings:
        python_warnings.warn(printable("; ".join(map(str, result.warnings))), RuntimeWarning, stacklevel=3)
    return result


def _human(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e6:.3f} us"
