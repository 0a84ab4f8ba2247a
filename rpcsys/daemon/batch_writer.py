"""A thread beside an event loop, for writes that may block: the disk, and whoever reads standard error.

Its owner keeps what is to be written and bounds it; the thread writes a batch now and then, one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

GATHER_S = 0.2  # how long a batch gathers: many small commits would cost more than one large one


class BatchWriter:
    """Calls ``write`` in a thread of its own, soon after each `wake`, until closed.

    ``write`` writes what there is and returns in how many seconds it wants to be called again even if nothing comes,
    None for not at all.
    """

    def __init__(self, name: str, write: Callable[[], float | None], gather_s: float = GATHER_S) -> None:
        self._write = write
        self._gather_s = gather_s
        self._something = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to write. From any thread."""
        if not self._something.is_set():  # which is a tenth of the cost of setting it again
            self._something.set()

    def close(self, timeout: float) -> bool:
        """Have what there is written, and end; whether that was done within ``timeout`` seconds."""
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
