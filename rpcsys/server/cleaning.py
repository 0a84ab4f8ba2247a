"""What sessions leave on the disk and in shared memory: removed beside the loop.

A disk that has much to write takes milliseconds to remove a directory, and seconds for what a session can
leave. A thread of its own does it, so that nobody's opening waits for that; all else stays with the loop.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
from collections.abc import Callable

from rpcsys.server import events as ev
from rpcsys.server import workdirs
from rpcsys.server.leftovers import Leftovers
from rpcsys.server.loop import Loop


class Cleaner:
    """Removes what sessions leave in ``folder``, and tells ``feed`` when nothing of one is left."""

    def __init__(
        self, loop: Loop, folder: str, feed: Callable[[ev.Event], None], clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._feed = feed
        self._clock = clock
        self._leftovers = Leftovers()
        self._orders: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._results: collections.deque[tuple[int, tuple[str, ...], str]] = collections.deque()
        self._reading, self._writing = os.pipe()
        loop.add(self._reading, self._collect)
        self._thread: threading.Thread | None = None

    def note(self) -> None:
        """No session runs, and one is about to: what there is now is not its doing."""
        self._leftovers.idle()

    def start(self, session: int, sweep: str) -> None:
        """Begin to remove what a session has left; ``sweep`` as in :class:`rpcsys.server.events.Finish`."""
        self._orders.put((session, sweep))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rpcsys-cleaner", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            session, sweep = self._orders.get()
            home = workdirs.home(self._folder, session)
            try:
                removed = self._leftovers.remove(sweep == "idle") if sweep else ()
                for _ in workdirs.removal(home):
                    pass
                self._results.append((session, removed, workdirs.left_in(home)))
            except Exception as error:  # noqa: BLE001 - whatever it is, this board is not clean
                self._results.append((session, (), f"{home} ({error})"))
            os.write(self._writing, b".")

    def _collect(self) -> None:
        os.read(self._reading, 4096)
        while self._results:
            session, removed, left = self._results.popleft()
            self._feed(ev.Removed(self._clock(), session, removed, (left,) if left else ()))
