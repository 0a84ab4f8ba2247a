"""Growing pauses for what keeps dying before it is of use."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.1
LONGEST_S = 10.0


@dataclass
class Backoff:
    """``until``: not before then; None: at once. ``failures``: in a row."""

    failures: int = 0
    until: float | None = None

    def failed(self, now: float) -> bool:
        """It died again. Whether this is the first time in a row: the one worth a line in the log."""
        self.until = now + min(FIRST_S * 2**self.failures, LONGEST_S)
        self.failures = min(self.failures + 1, 20)
        return self.failures == 1

    def worked(self) -> None:
        """It was of use: begin anew."""
        self.failures = 0
        self.until = None

    def allows(self, now: float) -> bool:
        """Whether it is time to try."""
        return self.until is None or now >= self.until
