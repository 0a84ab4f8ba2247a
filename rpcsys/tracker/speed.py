"""Whether a board is slower than it was: a sequential test of its canary's times, and the times by which it judges.

The test is Page's (Continuous inspection schemes, Biometrika 41, 1954) of logarithms of times: the sum of the log
likelihood ratios of "slower by `SHIFT`" against "as before", which never falls below 0, names the board at `EVIDENCE`.
Lorden (Procedures for reacting to a change in distribution, Annals of Mathematical Statistics 42, 1971) shows that an
unharmed board is then named once in at least e**EVIDENCE runs on average. Each ratio is clipped, as in Huber's robust
test (A robust version of the probability ratio test, same journal 36, 1965), so that no few outliers name a board. The
same test with the sides exchanged finds that the board is well again.

What a CPU quota takes is counted by Linux, not estimated: however much the times spread, `LEAST_RUNS` runs of which it
takes more than it used to name the board, too: more by `SHIFT` / 2, and by three standard deviations of that share.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from rpcsys.errors import ProtocolError
from rpcsys.wire import checks

SHIFT = 0.03  # of the logarithm: the slowdown for which the test is the fastest there can be
EVIDENCE = 28.0  # e**28 runs are more than any lab has: the surplus is for what no model has
LEAST_RUNS = 6  # that name a board, however clear they are
FLOOR = 0.005  # the least spread that is believed: quieter boards would be named for nothing that matters
_DOUBT = EVIDENCE / 4  # of so much on, nothing is learnt until the sum falls again
LEARN = 24  # results before a board is judged: two hours
#: Results that are kept each by itself, and medians of `BATCH` results, which show what a week does.
RECENT, BATCH, BATCHES = 128, 8, 256
TRUSTED = 16  # batches after which they are used
_RELEARN = 8  # the batches that are known, over this: so many more come before all are looked at again
_MAD = 1.4826  # from the median absolute deviation to the standard deviation, of normal values
_OF_MAD = 1.17  # the standard error of that, over the root of the number of values
_OF_MEDIANS = 1.26  # from the spread of medians of eight to that of means, of normal values
_UPPER, _OF_UPPER = 0.85, 1.036  # this share of normal values is below so many standard deviations
_MOST_ALIKE = 0.95  # a correlation of neighbouring results that is higher is a drift, which batches show
_SPANS = (1, 4, 16)  # batches that are taken together, for correlation over up to half a day
_CLIPPED = 4 / 3
_UNSURE = 5.0  # a spread from few results may be wrong: it is raised by this, over the root of their number


class Point(NamedTuple):
    """A batch of results: when it was full (seconds since 1970), the median logarithm, whether the board was slow."""

    at: float
    level: float
    slow: bool


@dataclass(slots=True)
class SpeedTest:
    """What is known of one board with one canary, in constant space.

    ``slow``: named, as slower than itself; ``capped``: a CPU quota takes more of its time than while it was learnt.
    """

    canary: str
    slow: bool = False
    capped: bool = False
    runs: int = 0  # undisturbed ones
    centre: float | None = None  # the logarithm of its own time; None while it is learnt
    spread: float = 0.0
    best: float = math.inf  # the lowest centre that it had for long: it may not become slower slowly, unseen
    sum: float = 0.0  # of ratios
    since: int = 0  # runs in `recent` since it was 0: what names a board is nothing to learn from
    quota: float = 0.0  # the share of its time that quotas took in the runs by which that is learnt
    quota_squares: float = 0.0  # the mean square of that share
    quota_runs: int = 0  # how many of these there were, `LEARN` at most
    quota_hits: int = 0  # one more for each later run of which they took more, one less for each other one
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    batch: list[float] = field(default_factory=list)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=BATCHES))
    _gain: float = 0.0  # of the ratio: by the spread
    _clip: float = 0.0

    def take(self, at: float, seconds: float, throttled: float = 0.0) -> bool:
        """Count the time of an undisturbed run, of which quotas took a share; whether a batch is full with it."""
        value = math.log(max(seconds, 1e-9))
        self.runs += 1
        if self.centre is not None:
            self._judge(value - self.centre)
        self._judge_quota(min(throttled, 1.0))
        if not self.named:
            self.recent.append(value)
        self.batch.append(value)
        if self.centre is None and len(self.recent) == LEARN:
            self._learn()
        if len(self.batch) < BATCH:
            return False
        self.points.append(Point(at, median(self.batch), self.named))
        self.batch.clear()
        calm = not self.named and self.sum < _DOUBT
        if calm and self.runs >= LEARN and self.runs // BATCH % max(1, len(self.points) // _RELEARN) == 0:
            self._learn()
        return True

    def _judge(self, shift: float) -> None:
        ratio = self._gain * (shift - SHIFT / 2)
        ratio = max(-self._clip, min(self._clip, -ratio if self.slow else ratio))
        self.sum = max(0.0, self.sum + ratio)
        if not self.sum:
            self.since = 0
        elif not self.capped:
            self.since += 1
        if self.sum >= EVIDENCE:
            if not self.slow:
                self._unlearn()
            self.slow, self.sum, self.since = not self.slow, 0.0, 0

    def _judge_quota(self, throttled: float) -> None:
        if self.quota_runs < LEARN:
            self.quota_runs += 1
            self.quota += throttled / LEARN
            self.quota_squares += throttled**2 / LEARN
            return
        spread = math.sqrt(max(0.0, self.quota_squares - self.quota**2))
        more = throttled > self.quota + max(SHIFT / 2, 3 * spread)
        self.quota_hits = max(0, min(LEAST_RUNS, self.quota_hits + (1 if more else -1)))
        if self.quota_hits in (0, LEAST_RUNS):
            self.capped = self.quota_hits == LEAST_RUNS

    @property
    def named(self) -> bool:
        """Whether the board is slower than itself, by its times or by a quota."""
        return self.slow or self.capped

    def _unlearn(self) -> None:
        """Take what has named the board out of what it is judged by. The last run is not there yet."""
        for _ in range(min(self.since - 1, len(self.recent))):
            self.recent.pop()
        for place in range(1, min((self.since - 1) // BATCH, len(self.points)) + 1):
            self.points[-place] = self.points[-place]._replace(slow=True)

    def _learn(self) -> None:
        """Set the centre and the spread by what the board has done while it was not slow."""
        recent = list(self.recent)
        centre, spread, count = median(recent), spread_of(recent), len(recent)
        levels = [point.level for point in self.points if not point.slow]
        if len(levels) < TRUSTED:
            spread *= _growth(recent, spread)
        else:
            centre, count = median(levels), BATCH * len(levels)
            spread = max(spread, *(_spread_of_spans(levels, span) for span in _SPANS))
            self.best = min(self.best, centre)
        self.centre = min(centre, self.best + SHIFT / 2)
        self.spread = max(FLOOR, spread) * (1 + _UNSURE / math.sqrt(count))
        self._weigh()

    def _weigh(self) -> None:
        self._gain = SHIFT / self.spread**2
        huber = self._gain * max(3 * self.spread - SHIFT / 2, SHIFT / 2)
        self._clip = min(EVIDENCE / LEAST_RUNS, huber)

    @property
    def fills(self) -> bool:
        """Whether the next result makes a batch full."""
        return len(self.batch) == BATCH - 1

    @property
    def level(self) -> float | None:
        """The logarithm of its time now, by the last two batches; None while it is learnt."""
        if self.centre is None or not self.points:
            return None
        lately = [point.level for point in list(self.points)[-2:]]
        return sum(lately) / len(lately)

    @property
    def promise(self) -> int | None:
        """After how many undisturbed runs a slowdown of `SHIFT` is named, on average; None while it is learnt."""
        return None if self.centre is None else runs_needed(self.spread)

    def to_text(self) -> str:
        """All of it, as one line."""
        return json.dumps(
            {
                "canary": self.canary,
                "slow": self.slow,
                "runs": self.runs,
                "centre": self.centre,
                "spread": round(self.spread, 6),
                "best": None if math.isinf(self.best) else self.best,
                "sum": round(self.sum, 6),
                "since": self.since,
                "quota": round(self.quota, 6),
                "quota_squares": round(self.quota_squares, 9),
                "quota_runs": self.quota_runs,
                "quota_hits": self.quota_hits,
                "capped": self.capped,
                "recent": [round(value, 5) for value in self.recent],
                "batch": [round(value, 5) for value in self.batch],
                "points": [[round(point.at), round(point.level, 5), int(point.slow)] for point in self.points],
            },
            separators=(",", ":"),
        )


def runs_needed(spread: float) -> int:
    """How many runs name a board that is slower by `SHIFT`, on average; at least `LEAST_RUNS`.

    2 EVIDENCE (spread / SHIFT)**2 for whole ratios, and a third more for clipped ones.
    """
    return max(LEAST_RUNS, math.ceil(_CLIPPED * 2 * EVIDENCE * (max(spread, FLOOR) / SHIFT) ** 2))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of normal values, by their median absolute deviation."""
    middle = median(values)
    return _MAD * median([abs(value - middle) for value in values])


def spread_of(values: Sequence[float]) -> float:
    """The standard deviation, where a long tail above the median counts, too."""
    middle, ordered = median(values), sorted(values)
    return max(deviation(values), (ordered[int(_UPPER * len(ordered))] - middle) / _OF_UPPER)


def _growth(values: Sequence[float], spread: float) -> float:
    """By what a sum of many values spreads more than if they were independent: temperatures change slowly."""
    middle, bound = median(values), 3 * spread
    kept = [max(-bound, min(bound, value - middle)) for value in values]
    square = sum(value * value for value in kept)
    alike = sum(one * other for one, other in pairwise(kept)) / square if square else 0.0
    alike = max(0.0, min(_MOST_ALIKE, alike + (1 + 3 * alike) / len(values)))  # its bias in so few values
    return math.sqrt((1 + alike) / (1 - alike))


def _spread_of_spans(levels: Sequence[float], span: int) -> float:
    """The spread of results by means of ``span`` batches each, as in sums of them; 0 where there are too few."""
    count = len(levels) // span
    if count < TRUSTED:
        return 0.0
    means = [sum(levels[place * span : (place + 1) * span]) / span for place in range(count)]
    unsure = 1 + _OF_MAD / math.sqrt(count)
    return unsure * math.sqrt(BATCH * span) / (_OF_MEDIANS if span == 1 else 1.0) * deviation(means)


_log = checks.number
_count = checks.integer(0, checks.MAX_ID)


def _numbers(value: Any, name: str, most: int) -> list[float]:
    found = [_log(item, name) for item in checks.rows(checks.anything)(value, name)]
    if len(found) > most or any(abs(item) > 100 for item in found):
        raise ProtocolError(f"{name} must be at most {most} logarithms")
    return found


def _point(value: Any, name: str) -> Point:
    if type(value) is not list or len(value) != 3:
        raise checks.wrong(name, "a point", value)
    at, (level,) = checks.number(value[0], name), _numbers([value[1]], name, 1)
    return Point(at, level, bool(value[2]))


def from_text(text: str) -> SpeedTest:
    """The inverse of `SpeedTest.to_text`. Raises `ProtocolError`: it is damaged."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a speed test that is no JSON") from None
    if type(plain) is not dict:
        raise ProtocolError("a speed test that is no object")
    try:
        test = SpeedTest(checks.text(plain["canary"], "canary"), checks.flag(plain["slow"], "slow"))
        test.runs, test.sum = _count(plain["runs"], "runs"), checks.seconds(plain["sum"], "sum")
        test.since = _count(plain["since"], "since")
        # A text of an older version lacks what is known of quotas: it is learnt from the next runs.
        test.quota = checks.seconds(plain.get("quota", 0), "quota")
        test.quota_squares = checks.seconds(plain.get("quota_squares", test.quota**2), "quota_squares")
        test.quota_runs = _count(plain.get("quota_runs", 0), "quota_runs")
        test.quota_hits = _count(plain.get("quota_hits", 0), "quota_hits")
        test.capped = checks.flag(plain.get("capped", False), "capped")
        test.centre = None if plain["centre"] is None else _numbers([plain["centre"]], "centre", 1)[0]
        test.best = math.inf if plain["best"] is None else _numbers([plain["best"]], "best", 1)[0]
        test.spread = checks.seconds(plain["spread"], "spread")
        test.recent.extend(_numbers(plain["recent"], "recent", RECENT))
        test.batch = _numbers(plain["batch"], "batch", BATCH - 1)
        test.points.extend(_point(item, "point") for item in checks.rows(checks.anything)(plain["points"], "points"))
    except KeyError as missing:
        raise ProtocolError(f"a speed test lacks {missing}") from None
    if test.centre is not None:
        test.spread = max(FLOOR, test.spread)
        test._weigh()
    return test
