"""What sessions printed just before they died, when they could no longer pass it on.

A session reads its own standard output and error from a pipe; its supervisor holds another descriptor of
that pipe, looks at it only when the session is dead, and writes what is left to the server's log.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

MOST_BYTES = 64 << 10
"""Of one session. A crash says why in a few lines."""


class LastWords:
    """The pipes of living sessions, by child. ``told``: takes what is left."""

    def __init__(self, told: Callable[[bytes], None]) -> None:
        self._told = told
        self._pipes: dict[int, int] = {}

    def keep(self, child: int, descriptor: int) -> int | None:
        """A session has said where it prints; what is returned is not taken. User code shares its process, so anything may come."""
        if child in self._pipes or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        self._pipes[child] = descriptor
        return None

    def tell(self, child: int) -> None:
        """The session is dead: tell what it left, and forget it."""
        descriptor = self._pipes.pop(child, None)
        if descriptor is None:
            return
        try:
            os.set_blocking(descriptor, False)
            words = os.read(descriptor, MOST_BYTES)
            self._told(words)
        except OSError:
            pass  # nothing is left, or nobody reads our own log
        finally:
            os.close(descriptor)
