"""The arithmetic of a benchmark: figures, their ratios, and the table.

No clock and no process here. A *figure* is a number in base units: seconds, or events per second. A :class:`Unit`
defines how it is shown, and whether more is better.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Unit:
    """How a figure is shown.

    ``payload`` in bytes turns seconds into a rate: the figure shown is ``payload / seconds``.
    """

    name: str
    scale: float
    more_is_better: bool = False
    payload: int = 0

    def shown(self, figure: float) -> float:
        """The figure in this unit."""
        return (self.payload / figure if self.payload else figure) * self.scale

    def text(self, figure: float) -> str:
        """The figure with three digits and its unit."""
        return f"{three_digits(self.shown(figure))} {self.name}"


MICROSECONDS = Unit("us", 1e6)
MILLISECONDS = Unit("ms", 1e3)
CPU_SECONDS = Unit("CPU s", 1.0)
SECONDS = Unit("s", 1.0)
KILOBYTES = Unit("kB", 1e-3)
MEGABYTES = Unit("MB", 1e-6)
PER_SECOND = Unit("/s", 1.0, more_is_better=True)
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


def rate(payload: int) -> Unit:
    """Gigabytes (10**9) per second, for a figure in seconds per ``payload`` bytes."""
    return Unit("GB/s", 1e-9, more_is_better=True, payload=payload)


def each_second() -> Unit:
    """Events per second, for a figure in seconds per event."""
    return Unit("/s", 1.0, more_is_better=True, payload=1)


@dataclass(frozen=True)
class Goal:
    """A bound. ``of``: what is bounded.

    ``ratio``: the ratio of ours to the peer's; ``ours``: our own figure as shown; ``difference``: ours less the peer's,
    as shown; ``distance``: the ratio's distance from 1.
    """

    bound: float
    at_least: bool = False
    of: str = "ratio"

    def met(self, ours: float, theirs: float | None) -> bool | None:
        """Whether figures, as shown, meet the goal; None if it takes the peer's, and there is none."""
        value = self._value(ours, theirs)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def _value(self, ours: float, theirs: float | None) -> float | None:
        if self.of == "ours":
            return ours
        if theirs is None:
            return None
        if self.of == "difference":
            return ours - theirs
        if not theirs:
            return None
        return abs(ours / theirs - 1) if self.of == "distance" else ours / theirs

    def text(self, unit: Unit) -> str:
        if self.of == "distance":
            return f"1x +-{self.bound:.0%}"
        sign = ">=" if self.at_least else "<="
        if self.of == "ratio":
            return f"{sign} {self.bound:.3g}x"
        return f"{sign} {'+' if self.of == 'difference' else ''}{self.bound:g} {unit.name}"


def at_most(bound: float) -> Goal:
    return Goal(bound)


def at_least(bound: float) -> Goal:
    return Goal(bound, at_least=True)


def within(share: float) -> Goal:
    """A bound of the difference between ours and the peer's, as a share."""
    return Goal(share, of="distance")


def ours_at_most(bound: float) -> Goal:
    """A bound of our own figure, in the case's unit."""
    return Goal(bound, of="ours")


def ours_at_least(bound: float) -> Goal:
    """The same from below."""
    return Goal(bound, at_least=True, of="ours")


def at_most_more(bound: float) -> Goal:
    """A bound of what ours has more than the peer's, in the case's unit."""
    return Goal(bound, of="difference")


@dataclass(frozen=True)
class Row:
    """One comparison of ours with one peer. A figure is None if it was not measured; ``notes`` have the reason."""

    case: str  # its name on the command line
    what: str  # the table's name of the measured operation
    peer: str
    unit: Unit
    ours: float | None
    theirs: float | None
    goal: Goal | None = None
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the peer's, as shown; None if one is missing, or the peer's is 0."""
        if self.ours is None or not self.theirs:
            return None
        return self.unit.shown(self.ours) / self.unit.shown(self.theirs)

    @property
    def passed(self) -> bool | None:
        """Whether the goal is met; None without a goal or without the figures."""
        if self.goal is None or self.ours is None:
            return None
        theirs = None if self.theirs is None else self.unit.shown(self.theirs)
        return self.goal.met(self.unit.shown(self.ours), theirs)

    def to_json(self) -> dict[str, Any]:
        """The row as JSON; figures are in its unit."""
        return {
            "case": self.case,
            "what": self.what,
            "peer": self.peer,
            "unit": self.unit.name,
            "ours": None if self.ours is None else self.unit.shown(self.ours),
            "theirs": None if self.theirs is None else self.unit.shown(self.theirs),
            "ratio": self.ratio,
            "goal": None if self.goal is None else asdict(self.goal),
            "passed": self.passed,
            "notes": list(self.notes),
        }


def median(values: Sequence[float]) -> float:
    """The median of the values. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no value to take the median of")
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile by the nearest-rank method. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("no value to take a percentile of")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


def three_digits(value: float) -> str:
    """The value with three significant digits and grouped thousands: ``9,865``, ``12.9``, ``0.064``."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2
    shrunk = abs(value)
    while shrunk >= 10:
        shrunk /= 10
        digits -= 1
    while shrunk < 1 and digits < 6:
        shrunk *= 10
        digits += 1
    return f"{value:.{digits}f}"


HEADINGS = ("measured", "ours", "peer", "", "ratio", "goal", "")
RIGHT_ALIGNED = (False, True, False, True, True, False, False)


def table(rows: Sequence[Row]) -> str:
    """The rows as plain text with aligned columns.

    An operation is named once for all its peers; numbered notes follow the table.
    """
    lines = [list(HEADINGS)]
    previous = None
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    for row in rows:
        marks = [f"[{notes.index(note) + 1}]" for note in row.notes]
        lines.append([row.what if row.what != previous else "", *_cells(row, marks)])
        previous = row.what
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    lines.insert(1, ["-" * width for width in widths])
    below = [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*(_aligned(line, widths) for line in lines), *below])


def _cells(row: Row, marks: Sequence[str]) -> list[str]:
    ours = "-" if row.ours is None else row.unit.text(row.ours)
    theirs = "-" if row.theirs is None else row.unit.text(row.theirs)
    ratio = "-" if row.ratio is None else f"{three_digits(row.ratio)}x"
    goal = "" if row.goal is None else row.goal.text(row.unit)
    verdict = {True: "pass", False: "MISSED", None: ""}[row.passed]
    return [ours, row.peer, theirs, ratio, goal, " ".join(filter(None, (verdict, *marks)))]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(line, widths, RIGHT_ALIGNED, strict=True)
    )
    return "  ".join(cells).rstrip()
