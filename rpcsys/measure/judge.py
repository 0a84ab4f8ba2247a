"""Decides what the turns of subjects say about their times. It knows no board and no clock.

All is done on differences of logarithms within blocks: of a subject's turn and the first subject's turn beside it. Slow
changes of the board, heat and load, are in both, and cancel.

* An interval covers two. The first one is that of the median of all blocks by order statistics, whose test is the sign
  test (`rpcsys.intervals`). It needs no distribution: under equal subjects signs are tosses of a coin, since the order
  within each block is drawn (`schedule`), under drift, bursts, two frequencies and correlated noise.
* The second one is that of the medians of rounds: Student's of few, that of their median where they are many. Between
  rounds the subjects are loaded anew, so it has what a loading changes: blocks alone would take two loadings of one
  model for two models. The difference of two loadings is symmetric where the models are the same, and there long tails
  make Student's t only more careful (Y. Benjamini, Is the t Test Really Conservative When the Parent Distribution is
  Long-Tailed?, JASA 78, 1983).
* Looks are paid for: each of the planned looks has an equal share of the chance of an error, which holds whatever the
  looks have in common (Bonferroni; finer ways to spend it: K. K. G. Lan and D. L. DeMets, Biometrika 70, 1983). So
  intervals hold at all looks together:
  repeated confidence intervals (C. Jennison and B. W. Turnbull, JRSS B 51, 1989). Comparisons of several subjects with
  the first share it, too.
* A difference is named where an interval of 99 % excludes none, or of the confidence asked for if that is higher.
* The warm-up is what the rule MSER-5 cuts (K. P. White, M. J. Cobb and S. C. Spratt, Winter Simulation Conference
  2000), and turns are left out by facts, such as a CPU that another process had. Both decide by what does not change
  if two subjects change places, so that the tests remain exact.
* Boards are blocks. The pooled effect is the mean of these boards' effects. Its interval is made of theirs by the
  method of variance estimates recovery (G. Y. Zou and A. Donner, Statistics in Medicine 27, 2008).

Weak: all is of one process on each board; what lasts as long as the process is in the difference.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rpcsys.intervals import median_interval

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int_]

CHANCE = 0.01  # of naming a difference where there is none; smaller where the confidence is above 99 %
NARROW = 4  # the half of an interval is at most this part of the effect, or the least difference that matters
LEAST_ROUNDS, MANY_ROUNDS = 3, 20  # of many, the median's interval is narrower than Student's where a few stray far
BATCH = 5  # blocks, in MSER-5
FEW = 20  # undisturbed blocks; with fewer, or less than `SHARE` of all, every block counts
SHARE = 0.25


class Verdict(enum.Enum):
    """What is known of a subject's time, compared with the first subject's."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # no difference that matters
    DISAGREE = "boards disagree"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Effect:
    """The logarithm of the ratio of two times, with the ends of its interval."""

    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger distance from the estimate to an end."""
        return max(self.high - self.estimate, self.estimate - self.low)

    @property
    def change(self) -> tuple[float, float, float]:
        """The relative change of the time and its interval: 0.03 for 3 % more."""
        return math.expm1(self.estimate), math.expm1(self.low), math.expm1(self.high)


@dataclass(frozen=True)
class Rules:
    """What is asked: the least relative difference that matters, the confidence, and how often one looks."""

    least: float
    confidence: float = 0.95
    looks: int = 1
    comparisons: int = 1  # with the first subject

    @property
    def shown(self) -> float:
        """The confidence of an interval at one look, so that all hold together."""
        return 1 - (1 - self.confidence) / (self.looks * self.comparisons)

    @property
    def sure(self) -> float:
        """The confidence at one look with which a difference is named."""
        return 1 - min(CHANCE, 1 - self.confidence) / (self.looks * self.comparisons)


@dataclass(frozen=True)
class Judgement:
    """What is known of one subject: ``effects`` by board, and their mean.

    ``settled``: more turns are not needed. ``agreeing``: the boards whose own interval is on the verdict's side.
    """

    verdict: Verdict
    effect: Effect | None = None
    effects: tuple[Effect | None, ...] = ()
    agreeing: int = 0
    settled: bool = False


@dataclass(frozen=True)
class Blocks:
    """The turns of one board: seconds of a call, and whether the turn was disturbed, by block and subject.

    ``rounds``: the number of each block's round.
    """

    seconds: Floats
    disturbed: Flags
    rounds: Whole

    @property
    def warm_up(self) -> int:
        """The number of blocks that belong to the warm-up, at most half of all, by MSER-5."""
        return _mser(np.log(self.seconds).mean(axis=1)) if len(self.seconds) else 0

    @property
    def kept(self) -> Flags:
        """The blocks that count: those after the warm-up; of these the undisturbed ones where they are enough."""
        warm = np.arange(len(self.seconds)) >= self.warm_up
        quiet = warm & ~self.disturbed.any(axis=1)
        return quiet if quiet.sum() >= max(FEW, SHARE * warm.sum()) else warm

    def differences(self, subject: int) -> Differences:
        """Of each block that counts, the logarithm of this subject's time divided by the first one's."""
        kept = self.kept
        seconds = self.seconds[kept]
        return Differences(np.log(seconds[:, subject] / seconds[:, 0]), self.rounds[kept])


@dataclass(frozen=True)
class Differences:
    """Differences of logarithms by block, and each block's round."""

    values: Floats
    rounds: Whole

    @property
    def by_round(self) -> Floats:
        """The median of each round."""
        starts = np.flatnonzero(np.diff(self.rounds)) + 1
        return np.array([np.median(each) for each in np.split(self.values, starts) if len(each)])


def _mser(values: Floats) -> int:
    """The number of values to cut off at the beginning, so that the mean of the others has the least squared error."""
    count = len(values) // BATCH
    means = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    if count < 2:
        return 0
    errors = [float(np.var(means[cut:]) / (count - cut)) for cut in range(count // 2 + 1)]
    return int(np.argmin(errors)) * BATCH


def effect(differences: Differences, confidence: float) -> Effect | None:
    """The median of differences with an interval; None where blocks or rounds are too few for that confidence."""
    of_blocks = median_interval(differences.values.tolist(), confidence)
    of_rounds = _rounds_interval(differences.by_round, confidence)
    if of_blocks is None or of_rounds is None:
        return None
    low, high = min(of_blocks[0], of_rounds[0]), max(of_blocks[1], of_rounds[1])
    return Effect(float(np.median(differences.values)), low, high)


def _rounds_interval(rounds: Floats, confidence: float) -> tuple[float, float] | None:
    """The interval of what the medians of rounds lie around; None where they are too few."""
    if len(rounds) < LEAST_ROUNDS:
        return None
    if len(rounds) >= MANY_ROUNDS:
        return median_interval(rounds.tolist(), confidence)
    reach = float(stats.sem(rounds)) * float(stats.t.ppf((1 + confidence) / 2, len(rounds) - 1))
    middle = float(np.mean(rounds))
    return middle - reach, middle + reach


def pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of the effects of boards, with an interval."""
    count = len(effects)
    estimate = math.fsum(each.estimate for each in effects) / count
    below = math.sqrt(math.fsum((each.estimate - each.low) ** 2 for each in effects)) / count
    above = math.sqrt(math.fsum((each.high - each.estimate) ** 2 for each in effects)) / count
    return Effect(estimate, estimate - below, estimate + above)


def judge(boards: Sequence[Differences], rules: Rules, last: bool = False) -> Judgement:
    """What the differences of each board say; ``last``: no more turns can be had."""
    shown = tuple(effect(each, rules.shown) for each in boards)
    known = [each for each in shown if each is not None]
    if len(known) < len(boards):
        return Judgement(Verdict.UNKNOWN, effects=shown, settled=last)
    whole = pooled(known)
    if _inside(whole, rules.least) and all(abs(each.estimate) < math.log1p(rules.least) for each in known):
        return Judgement(Verdict.SAME, whole, shown, settled=True)
    if len(boards) > 1 and _opposed(boards, rules):
        return Judgement(Verdict.DISAGREE, whole, shown, settled=True)
    verdict = _side(whole)
    if verdict is not Verdict.UNKNOWN:
        sure = [found for each in boards if (found := effect(each, rules.sure)) is not None]
        verdict = _side(pooled(sure)) if len(sure) == len(boards) else Verdict.UNKNOWN
    if verdict is Verdict.UNKNOWN:
        return Judgement(verdict, whole, shown, settled=last)
    agreeing = sum(_side(each) is verdict for each in known)
    narrow = whole.half_width <= max(math.log1p(rules.least), abs(whole.estimate) / NARROW)
    return Judgement(verdict, whole, shown, agreeing, last or narrow)


def _inside(whole: Effect, least: float) -> bool:
    _, low, high = whole.change
    return -least < low and high < least


def _side(found: Effect) -> Verdict:
    if found.high < 0:
        return Verdict.FASTER
    return Verdict.SLOWER if found.low > 0 else Verdict.UNKNOWN


def _opposed(boards: Sequence[Differences], rules: Rules) -> bool:
    """Whether the subject is surely faster on one board, and surely slower on another."""
    sure = 1 - (1 - rules.sure) / len(boards)
    sides = {_side(found) for each in boards if (found := effect(each, sure)) is not None}
    return {Verdict.FASTER, Verdict.SLOWER} <= sides
