"""When to try again what failed, and when to give up. Decisions alone: no clock, no socket."""

from __future__ import annotations

import os
from typing import Optional

RETRY_S = (0.05, 2.0)  # first and longest pause before a client connects, or calls a busy server, again
#: How often a call is made again that found its connection lost: one that kills its server each time ends there.
REPEATS = 2


def jitter() -> float:
    """A number in [0, 1) to vary a pause by. (The module random loads OpenSSL, 3.5 MB of a board's memory.)"""
    return int.from_bytes(os.urandom(4), "little") / (1 << 32)


class Backoff:
    """Pauses from ``first_s`` on, each twice as long as the one before, up to ``longest_s``."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.longest_s = longest_s
        self.failures = 0  # in a row
        self.until: Optional[float] = None  # not before then, by the caller's clock; None: at once
        self._first_s = self._next_s = first_s

    def pause(self, jitter: float = 0.0) -> float:
        """It failed again. Seconds until the next try.

        ``jitter``, in [0, 1), shortens them by up to a half: what failed together must not come back together.
        """
        pause, self._next_s = self._next_s, min(2 * self._next_s, self.longest_s)
        self.failures += 1
        return pause * (1 - jitter / 2)

    def pause_within(self, left_s: float, jitter: float = 0.0) -> Optional[float]:
        """As `pause`, and at most the ``left_s`` that are left; None to give up when nothing is."""
        return min(self.pause(jitter), left_s) if left_s > 0 else None

    def failed(self, now: float, jitter: float = 0.0) -> bool:
        """It failed again: set ``until``. Whether this is the first time in a row: the one worth a line in the log."""
        self.until = now + self.pause(jitter)
        return self.failures == 1

    def worked(self) -> None:
        """It worked: begin anew."""
        self.failures, self.until, self._next_s = 0, None, self._first_s

    def allows(self, now: float) -> bool:
        """Whether it is time to try."""
        return self.until is None or now >= self.until


class RetryBudget:
    """How often one call is made again until it is answered.

    ``repeatable``: whether it may be made again when nobody knows if it ran; ``wait_s``: how long to ask a busy server.
    """

    def __init__(self, repeatable: bool, wait_s: float) -> None:
        self._left = REPEATS if repeatable else 0
        self._wait_s = wait_s
        self._backoff = Backoff(*RETRY_S)
        self._busy_since: Optional[float] = None

    def lost(self) -> bool:
        """The connection was lost under way. Whether to make the call again."""
        self._left -= 1
        return self._left >= 0

    def busy(self, now: float, jitter: float) -> Optional[float]:
        """The server took no more calls. Seconds until the next try; None to give up."""
        if self._busy_since is None:
            self._busy_since = now
        return self._backoff.pause_within(self._busy_since + self._wait_s - now, jitter)
