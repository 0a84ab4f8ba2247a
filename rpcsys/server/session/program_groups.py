"""The process groups of an attached session's programs, in memory that it shares with its hold.

So the hold kills them however the session has ended, also by a crash.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal

_BYTES = 4  # of a number


class ProgramGroups:
    """At most ``size`` process groups; a copy of this process (`os.fork`) has the same ones."""

    def __init__(self, size: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, _BYTES * size)).cast("i")

    def add(self, group: int) -> None:
        """Add a group. Raises ValueError beyond ``size``."""
        self._numbers[self._numbers.tolist().index(0)] = group

    def remove(self, group: int) -> None:
        """Remove a group: before its leader is reaped, as its number is another one's then."""
        self._numbers[self._numbers.tolist().index(group)] = 0

    def kill(self) -> None:
        """Send SIGKILL to all of them, and to other groups of their leaders' sessions, as a shell's jobs are."""
        leaders = {*self._numbers} - {0}
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc") if leaders else ())):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if os.getsid(pid) in leaders:
                    os.kill(pid, signal.SIGKILL)
