"""When to try again what failed, and when to give up. Decisions alone: no clock, no socket."""

from __future__ import annotations

from typing import Optional

#: Between two tries: the first pause, and the longest.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
#: How often a call is made again that found its connection lost: one that kills its server each time ends there.
REPEATS = 2


class Patience:
    """Growing pauses, up to a limit."""

    def __init__(self) -> None:
        self._failures = 0

    def pause(self, left_s: float, chance: float) -> Optional[float]:
        """Seconds until the next try when another one failed and ``left_s`` are left; None to give up.

        ``chance``, in [0, 1), shortens it by up to a half: what was lost together must not come back together.
        """
        if left_s <= 0:
            return None
        pause: float = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S) * (1 - chance / 2)
        self._failures = min(self._failures + 1, 20)
        return min(pause, left_s)


class Attempts:
    """One call, made until it is answered.

    ``repeatable``: whether it may be made again when nobody knows if it ran. ``wait_s``: how long a busy server is
    asked again.
    """

    def __init__(self, repeatable: bool, wait_s: float) -> None:
        self._left = REPEATS if repeatable else 0
        self._wait_s = wait_s
        self._patience = Patience()
        self._busy_since: Optional[float] = None

    def lost(self) -> bool:
        """The connection was lost under way. Whether to make the call again."""
        self._left -= 1
        return self._left >= 0

    def busy(self, now: float, chance: float) -> Optional[float]:
        """The server took no more calls. Seconds until the next try; None to give up."""
        if self._busy_since is None:
            self._busy_since = now
        return self._patience.pause(self._busy_since + self._wait_s - now, chance)
