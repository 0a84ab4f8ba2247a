"""Decides which cells of a table became slower since an earlier one. Pure; docs/bench.md says why it is done so.

The sessions of a cell are what is independent, not its results: those of one session share its process, its memory and
its minute. So each session counts once, by one figure, and the spread between sessions is in every interval. The figure
is the median of its results where no session of either side was disturbed; else it is the fastest one, because what
else runs on a board only adds time, and spares some results.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rpcsys.measure.tables import BenchBoard, BenchTable, Cell, Measured

LEAST = 0.02  # the least change that counts
ALPHA = 0.05  # the share of wrong calls among all calls, at most (false discovery rate)
FEWEST = 3  # sessions on each side: with two, the spread is a guess


class CellOutcome(str, Enum):
    """What became of a cell."""

    SAME = "not slower"
    UNSURE = "too much spread to tell"
    SLOWER = "slower"
    FASTER = "faster"
    BOARD = "slower, and so is the board itself"
    BROKEN = "no longer runs"
    UNKNOWN = "cannot be compared"


#: Outcomes that fail a check in CI.
BAD = (CellOutcome.SLOWER, CellOutcome.BROKEN)


class Shift(NamedTuple):
    """How one sample of sessions is slower than another: a ratio less 1, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = sorted((abs(self.low), abs(self.high))) if self.low * self.high > 0 else (self.low, self.high)
        return "{:.1%} ({:.1%} to {:.1%}, 95 %)".format(abs(self.ratio), *ends)

    @property
    def signed(self) -> str:
        """The shift with its sign: minus is faster."""
        return "{:+.1%}, {:+.1%} to {:+.1%}".format(*self)


@dataclass(frozen=True)
class CellVerdict:
    """What became of a cell, and by how much; ``why`` in words where there is no shift, or more to say."""

    cell: Cell
    outcome: CellOutcome
    shift: Shift | None = None
    why: str = ""

    @property
    def bad(self) -> bool:
        """Whether it fails a check."""
        return self.outcome in BAD

    def __str__(self) -> str:
        if self.shift is None or self.outcome in (CellOutcome.BROKEN, CellOutcome.UNKNOWN):
            return f"{self.cell}: {self.outcome.value}{f' ({self.why})' if self.why else ''}"
        more = f"; {self.why}" if self.why else ""
        if self.outcome in (CellOutcome.SAME, CellOutcome.UNSURE):
            return f"{self.cell}: {self.outcome.value} ({self.shift.signed}, 95 %){more}"
        return f"{self.cell}: {self.outcome.value} by {self.shift}{more}"


def cell_verdicts(base: BenchTable, now: BenchTable, least: float = LEAST) -> list[CellVerdict]:
    """What became of each cell of ``now`` that ``base`` has, too.

    A cell is slower if its sessions' figures are, beyond chance, more than ``least`` above those of ``base``, and their
    medians, too. Chances are those of Welch's t-test on the logarithms, corrected for the number of cells (Benjamini
    and Hochberg 1995). Where the board itself is slower, by a call that does nothing, that is taken off before. A cell
    is not slower if the interval of its shift ends below ``least``; else nothing can be told of it.
    """
    pairs = [(before, row) for row in now.rows if (before := base.row(row.cell)) is not None]
    told = {row.cell: verdict for before, row in pairs if (verdict := _untested(before, row)) is not None}
    told.update({row.cell: verdict for row in now.rows if (verdict := _moved(base, row)) is not None})
    tested = [(before, row) for before, row in pairs if row.cell not in told]
    slower = _corrected(_chance_slower(before, row, least) for before, row in tested)
    faster = _corrected(_chance_slower(row, before, least) for before, row in tested)
    for (before, row), p_slower, p_faster in zip(tested, slower, faster, strict=True):
        shift = shift_of(*_figures(before, row))
        if p_slower <= ALPHA:
            facts = base.boards.get(row.cell.board), now.boards.get(row.cell.board)
            verdict = CellVerdict(row.cell, CellOutcome.SLOWER, shift, _doubts(row))
            told[row.cell] = _less_the_boards(verdict, before, row, facts, least)
        elif p_faster <= ALPHA:
            told[row.cell] = CellVerdict(row.cell, CellOutcome.FASTER, shift, _doubts(row))
        else:
            outcome = CellOutcome.SAME if shift.high <= least else CellOutcome.UNSURE
            told[row.cell] = CellVerdict(
                row.cell, outcome, shift, _doubts(row) if outcome is CellOutcome.UNSURE else ""
            )
    return [told[row.cell] for row in now.rows if row.cell in told]


def confirmed(
    base: BenchTable, now: BenchTable, again: Callable[[Collection[Cell]], BenchTable], least: float = LEAST
) -> list[CellVerdict]:
    """`cell_verdicts`; bad cells are measured ``again``, and the new sessions alone decide about these."""
    first = cell_verdicts(base, now, least)
    bad = [verdict.cell for verdict in first if verdict.bad]
    second = {verdict.cell: verdict for verdict in cell_verdicts(base, again(bad), least)} if bad else {}
    return [_of_two(verdict, second.get(verdict.cell)) if verdict.bad else verdict for verdict in first]


def _of_two(first: CellVerdict, second: CellVerdict | None) -> CellVerdict:
    if second is None:
        return replace(first, outcome=CellOutcome.UNKNOWN, why="it could not be measured again")
    if second.bad:
        return second
    how = f"{first.outcome.value} by {first.shift}" if first.outcome is CellOutcome.SLOWER else first.outcome.value
    return replace(second, why=f"{how} at first, and not when it was measured again")


def shift_of(before: Sequence[float], now: Sequence[float]) -> Shift:
    """How much slower ``now`` is than ``before`` (both in seconds), by their geometric means, and Welch's interval."""
    logs_now, logs_before = _logs(now), _logs(before)
    middle = float(logs_now.mean() - logs_before.mean())
    interval = _welch(logs_now, logs_before).confidence_interval(0.95)
    low, high = (middle if math.isnan(end) else float(end) for end in (interval.low, interval.high))
    return Shift(*(math.expm1(min(each, _MOST)) for each in (middle, low, high)))


_TINY = 1e-12  # seconds: a clock's 0 has no logarithm
_MOST = 100.0  # of a logarithm: the exponential of more is of no use
_Array = NDArray[np.float64]


def _logs(seconds: Sequence[float]) -> _Array:
    return np.log(np.maximum(seconds, _TINY))


def _welch(now: _Array, before: _Array, above: float = 0.0) -> Any:
    """Scipy's test of whether the means of ``now``, less ``above``, and ``before`` differ."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of samples without any spread
        return stats.ttest_ind(now - above, before, equal_var=False)


def _p_above(now: _Array, before: _Array, above: float) -> float:
    """The chance of such logarithms, or of larger ones, if ``now`` is not more than ``above`` over ``before``."""
    two_sided = float(_welch(now, before, above).pvalue)
    over = float(now.mean() - before.mean()) > above
    if math.isnan(two_sided):
        return 0.0 if over else 1.0
    return two_sided / 2 if over else 1 - two_sided / 2


def _chance_slower(before: Measured, now: Measured, least: float) -> float:
    """The chance of such figures if ``now`` is not more than ``least`` slower; 1 if the medians do not say so."""
    if shift_of(before.medians, now.medians).ratio <= least:
        return 1.0
    figures_before, figures_now = _figures(before, now)
    return _p_above(_logs(figures_now), _logs(figures_before), math.log1p(least))


def _figures(before: Measured, now: Measured) -> tuple[list[float], list[float]]:
    """The figure of each session, in seconds, on both sides."""
    of = _figure(before, now)
    return [of(block) for block in before.blocks], [of(block) for block in now.blocks]


def _figure(before: Measured, now: Measured) -> Callable[[Sequence[float]], float]:
    """What of a session counts: the median of its results, or the fastest where a session was disturbed."""
    return min if before.doubtful or now.doubtful else statistics.median


def _corrected(chances: Iterable[float]) -> list[float]:
    listed = list(chances)
    return [float(p) for p in stats.false_discovery_control(listed)] if listed else []


def _untested(before: Measured, now: Measured) -> CellVerdict | None:
    """The verdict of a cell that has no two samples to test; None if it has."""
    if before.error:
        return CellVerdict(now.cell, CellOutcome.UNKNOWN, why=f"it was not measured before: {before.error}")
    if now.error:
        return CellVerdict(now.cell, CellOutcome.BROKEN if now.broken else CellOutcome.UNKNOWN, why=now.error)
    fewest = min(len(before.blocks), len(now.blocks))
    if fewest < FEWEST:
        return CellVerdict(
            now.cell, CellOutcome.UNKNOWN, why=f"{fewest} sessions are too few; measure at least {FEWEST}"
        )
    return None


def _moved(base: BenchTable, now: Measured) -> CellVerdict | None:
    """The verdict of a cell that was measured on another board of its key alone; None for any other."""
    if base.row(now.cell) is not None:
        return None
    twins = [row.cell.board for row in base.rows if row.cell._replace(board="") == now.cell._replace(board="")]
    if not twins:
        return None
    return CellVerdict(now.cell, CellOutcome.UNKNOWN, why=f"it was measured on {', '.join(twins)}, and boards differ")


def _less_the_boards(
    verdict: CellVerdict, before: Measured, now: Measured, facts: Sequence[BenchBoard | None], least: float
) -> CellVerdict:
    """The verdict of a slower cell whose board may be slower itself: is the cell, without what its board is?"""
    known = [each for each in facts if each is not None]
    if len(known) < len(facts) or known[0].versions.get("python") != known[1].versions.get("python"):
        return verdict
    of = _figure(before, now)
    was, is_now = ([of(block) for block in each.pace] for each in known)
    if (len(was), len(is_now)) != (len(before.blocks), len(now.blocks)):
        return verdict
    if _p_above(_logs(is_now), _logs(was), 0.0) > ALPHA:
        return verdict
    why = f"a call that does nothing takes {shift_of(was, is_now)} longer there"
    figures_before, figures_now = _figures(before, now)
    rest = _logs(figures_now) - _logs(is_now), _logs(figures_before) - _logs(was)
    if _p_above(*rest, math.log1p(least)) <= ALPHA:
        return replace(verdict, why=f"more than its board, where {why}")
    return replace(verdict, outcome=CellOutcome.BOARD, why=f"{why}: look what runs there, and how hot it is")


def _doubts(row: Measured) -> str:
    if not row.doubtful:
        return ""
    what = f"its board was disturbed in {row.doubtful} of {len(row.blocks)} sessions"
    return f"{what}: {row.warnings[0]}" if row.warnings else what
