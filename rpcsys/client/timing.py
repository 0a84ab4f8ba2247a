"""What a time evaluator found: seconds per call, their statistics, and the board meanwhile."""

from __future__ import annotations

import statistics
import warnings as python_warnings
from collections.abc import Sequence
from typing import Any, Dict, Optional, Tuple

from rpcsys import part
from rpcsys.client import answers
from rpcsys.errors import ProtocolError, printable
from rpcsys.intervals import median_interval


class TimingResult:
    """Seconds per call, one result for each repeat, and their statistics.

    Attributes
    ----------
    results : mean seconds of one call, for each repeat
    mean, median, min, max, std : of ``results``, in seconds (``std`` of the population)
    interval : low and high end of the median's 95 % interval (`rpcsys.intervals`); None with less than 6 results
    board : the device's state ``"before"`` and ``"after"``, each a dict with those of the following that Linux reports:
        ``cpu_mhz``, ``max_mhz`` and ``governor`` (dicts by CPU), ``temperature_c`` (of the hottest zone),
        ``throttled``, ``pressure_cpu`` (percent of 10 s), ``running`` (other tasks), ``load`` (of a minute); ``after``
        also ``others_cpu`` and ``steal``, the shares of the CPUs' time that others took meanwhile
    warnings : what makes the results doubtful, a busy device or one that changed; one line each
    joules : energy of one call, None where no meter can be read; ``meters`` has each meter's by name
    """

    def __init__(
        self,
        results: Sequence[float],
        board: Optional[Dict[str, Dict[str, Any]]] = None,
        warnings: Sequence[str] = (),
        joules: Optional[float] = None,
        meters: Optional[Dict[str, float]] = None,
    ) -> None:
        self.results: Tuple[float, ...] = tuple(results)
        self.mean = statistics.fmean(self.results)
        self.median = statistics.median(self.results)
        self.min = min(self.results)
        self.max = max(self.results)
        self.std = statistics.pstdev(self.results)
        self.interval = median_interval(self.results)
        self.joules = joules
        self.meters: Dict[str, float] = meters or {}
        self.board: Dict[str, Dict[str, Any]] = board or {"before": {}, "after": {}}
        self.warnings: Tuple[str, ...] = tuple(warnings)

    def __repr__(self) -> str:
        figures = f"median={self.median:.6g} s, mean={self.mean:.6g} s, std={self.std:.3g} s"
        return f"TimingResult({figures}, repeats={len(self.results)})"

    def _repr_html_(self) -> str:
        return str(part("rpcsys.client.shown").timing_html(self))

    def __str__(self) -> str:
        interval = "" if self.interval is None else " ({} to {}, 95 %)".format(*map(time_text, self.interval))
        rest = "mean {}  min {}  max {}  std {}".format(*map(time_text, (self.mean, self.min, self.max, self.std)))
        energy = "" if self.joules is None else f"  {self.joules:.3g} J"
        return f"median {time_text(self.median)}{interval}  {rest}{energy}  ({len(self.results)} repeats)"


def told(answer: Any) -> TimingResult:
    """`timing_of` an answer, whose warnings also go to Python's `warnings`."""
    result = timing_of(answer)
    if result.warnings:
        python_warnings.warn(printable("; ".join(map(str, result.warnings))), RuntimeWarning, stacklevel=3)
    return result


def timing_of(answer: Any) -> TimingResult:
    """The result in a device's answer to a time evaluator. Raises `ProtocolError` for an invalid answer."""
    try:
        answer = answers.from_device(answers.times, answer, "a time evaluator")
        energy = answer.get("joules"), answer.get("meters")
        return TimingResult(answer["results"], answer.get("board"), answer.get("warnings", ()), *energy)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise ProtocolError("the device's answer to a time evaluator makes no sense") from None


def time_text(seconds: float) -> str:
    """A time in its unit: ``12.345 ms``."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e6:.3f} us"
