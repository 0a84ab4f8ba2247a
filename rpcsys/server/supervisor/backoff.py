"""Growing pauses for what keeps failing before it is of use."""

from __future__ import annotations

import os
from dataclasses import dataclass

FIRST_S = 0.1
LONGEST_S = 10.0


def chance() -> float:
    """A number in [0, 1) to shorten a pause by. (The module random loads OpenSSL, 3.5 MB of a board's memory.)"""
    return int.from_bytes(os.urandom(2), "little") / 65536


def shortened(pause_s: float, chance: float) -> float:
    """A pause less up to half of it: ``chance`` is in [0, 1). What failed together must not come back together."""
    return pause_s * (1 - chance / 2)


@dataclass
class Backoff:
    """``until``: not before then; None: at once. ``failures``: in a row."""

    failures: int = 0
    until: float | None = None
    longest_s: float = LONGEST_S

    def failed(self, now: float, chance: float = 0.0) -> bool:
        """It failed again. Whether this is the first time in a row: the one worth a line in the log."""
        self.until = now + shortened(min(FIRST_S * 2**self.failures, self.longest_s), chance)
        self.failures = min(self.failures + 1, 20)
        return self.failures == 1

    def worked(self) -> None:
        """It was of use: begin anew."""
        self.failures = 0
        self.until = None

    def allows(self, now: float) -> bool:
        """Whether it is time to try."""
        return self.until is None or now >= self.until
