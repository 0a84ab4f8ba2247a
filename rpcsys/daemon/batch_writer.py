"""A thread beside an event loop, for writes that may block: to the disk, or to standard error.

The owner holds the pending data and bounds it. The thread writes it in batches, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

GATHER_S = 0.2  # seconds to gather a batch: one large commit costs less than many small ones


class BatchWriter:
    """Calls ``write`` in a thread of its own, soon after each `wake`, until closed.

    ``write`` writes the pending data. It returns the seconds until its next call without a `wake`, None for no call.
    """

    def __init__(self, name: str, write: Callable[[], float | None], gather_s: float = GATHER_S) -> None:
        self._write = write
        self._gather_s = gather_s
        self._something = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have pending data written. May be called from any thread."""
        if not self._something.is_set():  # this check costs a tenth of setting it again
            self._something.set()

    def close(self, timeout: float) -> bool:
        """Write the pending data and end the thread; whether it ended within ``timeout`` seconds."""
        self._closing.set()
        self._something.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        again: float | None = 0.0
        while not self._closing.is_set():
            self._something.wait(again)
            self._closing.wait(self._gather_s)
            self._something.clear()
            again = self._write()
        self._write()
