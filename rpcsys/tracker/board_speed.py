"""What a board's canary says of it: its state, and why, by its own times, its siblings' and a limit. Decisions only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rpcsys.errors import ProtocolError
from rpcsys.tracker import siblings, speed
from rpcsys.tracker.speed import SpeedTest
from rpcsys.wire.control import CanaryRun

SPEED = "health.speed"  # the label that says it
BELOW = 3  # runs in a row below the limit, after which a board that was above is well
_QUOTA = 0.005  # a share of the time that is worth saying


class SpeedState(str, Enum):
    """What is known of a board's speed; the value is that of the label."""

    LEARNING = ""
    WELL = "ok"
    SLOW = "slow"


class SpeedEvent(str, Enum):
    """What happens to it."""

    LEARNT = "its own time is known"
    NAMED = "it is slower than it may be by chance, or than its limit"
    CLEARED = "nothing names it any more"


LEARNING, WELL, SLOW = SpeedState
LEARNT, NAMED, CLEARED = SpeedEvent

TRANSITIONS = {
    LEARNING: {LEARNT: WELL, NAMED: SLOW},
    WELL: {LEARNT: WELL, NAMED: SLOW},
    SLOW: {LEARNT: SLOW, NAMED: SLOW, CLEARED: WELL},
}


@dataclass(slots=True)
class BoardSpeed:
    """A board of ``key``. ``over``: its last undisturbed run was above the limit; ``apart``: slower than siblings."""

    key: str
    test: SpeedTest
    state: SpeedState = LEARNING
    reason: str = ""  # of a slow one, a sentence for people
    over: bool = False
    below: int = 0  # runs in a row below the limit since then
    apart: bool = False
    throttled: float = 0.0  # the share of its time that a CPU quota takes, by its last runs
    seconds: float = 0.0  # of the last undisturbed run
    at: float = -math.inf  # when its last run was reported
    disturbed: int = 0  # runs in a row that say nothing, as others disturbed them
    problem: str = ""  # why its canary cannot run

    def take(self, at: float, run: CanaryRun, others: Sequence[float]) -> bool:
        """Count an undisturbed run, with the levels of its siblings; whether there is something to remember."""
        before = self.state
        self.disturbed, self.problem, self.seconds = 0, "", run.seconds
        self.throttled += (min(run.throttled, 1.0) - self.throttled) / 2
        full = self.test.take(at, run.seconds, run.throttled)
        self._limit(run)
        compared = None
        if full and self.test.level is not None:
            compared = siblings.compare(self.test.level, others)
            self.apart = compared is not None and compared.stands_out(self.apart)
        if self.test.named or self.over or self.apart:
            self.move(NAMED)
            if before is not SLOW or full:
                self.reason = self._why(run, compared)
        elif self.test.centre is not None or before is SLOW:
            self.move(CLEARED if before is SLOW else LEARNT)
        return full or self.state is not before

    def move(self, event: SpeedEvent) -> None:
        """Change the state by an event."""
        self.state = TRANSITIONS[self.state][event]
        if self.state is not SLOW:
            self.reason = ""

    def _limit(self, run: CanaryRun) -> None:
        if run.limit_s is not None and run.seconds > run.limit_s:
            self.over, self.below = True, 0
        elif self.over:
            self.below += 1
            self.over = self.below < BELOW and run.limit_s is not None

    def _why(self, run: CanaryRun, compared: siblings.SiblingComparison | None) -> str:
        quota = f"; a CPU quota takes {self.throttled:.1%} of its time" if self.throttled > _QUOTA else ""
        if self.over and run.limit_s is not None:
            return f"its canary takes {milliseconds(run.seconds)}, and its limit is {milliseconds(run.limit_s)}{quota}"
        if self.test.capped and not self.test.slow:
            return f"a CPU quota takes {self.throttled:.1%} of its canary's time; it took {self.test.quota:.1%} before"
        level, centre = self.test.level, self.test.centre
        if self.test.slow and centre is not None:
            lately = list(self.test.batch)[-speed.LEAST_RUNS :] or [level or centre]
            now = sum(lately) / len(lately)
            more = f"{math.expm1(now - centre):.1%} longer than its own {milliseconds(math.exp(centre))}"
            return f"its canary takes {more}{quota}"
        if compared is None:
            return self.reason
        return f"its canary takes {math.expm1(compared.above):.1%} longer than those of its {compared.others} siblings"

    @classmethod
    def restored(cls, key: str, text: str, reason: str, *, over: bool, apart: bool) -> BoardSpeed:
        """A board as the last run of the tracker left it. Raises `ProtocolError`: its record is damaged."""
        found = cls(key, speed.from_text(text), over=over, apart=apart)
        if found.test.named or over or apart:
            found.move(NAMED)
            found.reason = reason
        elif found.test.centre is not None:
            found.move(LEARNT)
        return found


def milliseconds(seconds: float) -> str:
    """A time of a canary for people."""
    return f"{1000 * seconds:.3g} ms"


def fits(text: str) -> bool:
    """Whether a text from a file or a journal is a speed test."""
    try:
        speed.from_text(text)
    except ProtocolError:
        return False
    return True
