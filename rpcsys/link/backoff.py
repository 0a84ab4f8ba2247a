"""Pauses between failed attempts, and when to give up. No clock, no socket."""

from __future__ import annotations

import os
from typing import Optional

RETRY_S = (0.05, 2.0)  # first and longest pause before a client connects, or calls a busy server, again
#: How often a call is repeated after a lost connection: a call that kills its server each time ends there.
REPEATS = 2


def jitter() -> float:
    """A random number in [0, 1) to vary a pause. (The module random loads OpenSSL, 3.5 MB of a board's memory.)"""
    return int.from_bytes(os.urandom(4), "little") / (1 << 32)


class Backoff:
    """Pauses that grow from ``first_s`` to ``longest_s``, each twice as long as the one before."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.longest_s = longest_s
        self.failures = 0  # in a row
        self.until: Optional[float] = None  # the time of the next attempt, by the caller's clock; None: at once
        self._first_s = self._next_s = first_s

    def pause(self, jitter: float = 0.0) -> float:
        """Count a failure; return the seconds until the next attempt.

        ``jitter``, in [0, 1), shortens them by up to a half, so that peers which fail together come back apart.
        """
        pause, self._next_s = self._next_s, min(2 * self._next_s, self.longest_s)
        self.failures += 1
        return pause * (1 - jitter / 2)

    def pause_within(self, left_s: float, jitter: float = 0.0) -> Optional[float]:
        """As `pause`, and at most ``left_s`` seconds; None (give up) when no time is left."""
        return min(self.pause(jitter), left_s) if left_s > 0 else None

    def failed(self, now: float, jitter: float = 0.0) -> bool:
        """Count a failure and set ``until``. True: it is the first in a row, which deserves a log line."""
        self.until = now + self.pause(jitter)
        return self.failures == 1

    def worked(self) -> None:
        """Count a success: the pauses begin anew."""
        self.failures, self.until, self._next_s = 0, None, self._first_s

    def allows(self, now: float) -> bool:
        """Whether the next attempt is due."""
        return self.until is None or now >= self.until


class RetryBudget:
    """Decides whether a call is made again.

    ``repeatable``: whether a call may run twice; ``wait_s``: seconds for attempts at a busy server.
    """

    def __init__(self, repeatable: bool, wait_s: float) -> None:
        self._left = REPEATS if repeatable else 0
        self._wait_s = wait_s
        self._backoff = Backoff(*RETRY_S)
        self._busy_since: Optional[float] = None

    def lost(self) -> bool:
        """Count a connection that was lost during the call. Whether to repeat the call."""
        self._left -= 1
        return self._left >= 0

    def busy(self, now: float, jitter: float) -> Optional[float]:
        """Count a refusal by a busy server. Seconds until the next attempt; None: give up."""
        if self._busy_since is None:
            self._busy_since = now
        return self._backoff.pause_within(self._busy_since + self._wait_s - now, jitter)
