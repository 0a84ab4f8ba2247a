"""Log lines that are written in a thread: whoever reads standard error slowly holds up nobody else.

They are made where they come from: a thread that made them would fight for the interpreter with the loop, line by line.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpcsys import logs
from rpcsys.daemon.courier import Courier
from rpcsys.serve import end_without_memory

MAX_LINES = 100_000
MAX_CHARACTERS = 32 << 20
"""Lines that may wait for whoever reads them, and how long they may be together; more are counted and dropped."""

_GATHER_S = 0.05
_CLOSE_S = 2.0

_LEVELS = {logging.INFO: "INFO", logging.WARNING: "WARNING", logging.ERROR: "ERROR"}

Event = tuple[float, int, str, Mapping[str, Any]]
"""When (seconds since 1970), level, what, fields."""


class Journal(logging.Handler):
    """Stands before the handler that logging has, until closed: what is logged goes there by way of a thread.

    ``words`` makes texts of events and their fields.
    """

    def __init__(self, words: logs.Words = logs.in_words) -> None:
        super().__init__()
        self._words = words
        self._root = logging.getLogger()
        self._behind = next(one for one in self._root.handlers if isinstance(one, logging.StreamHandler))
        assert isinstance(self._behind.formatter, logs.Formatter)
        self._form = self._behind.formatter
        self.filters = self._behind.filters
        self._root.removeHandler(self._behind)
        self._root.addHandler(self)
        self._box: deque[str] = deque()
        self._missed = self._told = 0
        self._put_in = self._taken_out = 0  # characters, each counted by one thread
        self._courier = Courier("journal", self._carry, _GATHER_S)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], MemoryError):
            end_without_memory()  # a library has swallowed it
        self._put((self._form.format(record),))

    def note_all(self, events: Iterable[Event]) -> None:
        """What `rpcsys.logs.note` does, for many events and at a tenth of its cost."""
        line, lowest, words = self._form.line, self._root.level, self._words
        self._put(
            [line(at, _LEVELS[level], event, fields, words) for at, level, event, fields in events if level >= lowest]
        )

    def close(self) -> None:
        """Write what is still to be written, for at most 2 s, and put logging back as it was."""
        if self in self._root.handlers:
            self._root.removeHandler(self)
            self._root.addHandler(self._behind)
            self._courier.close(_CLOSE_S)
        super().close()

    def _put(self, lines: Sequence[str]) -> None:
        size = sum(map(len, lines))
        fits = self._put_in - self._taken_out + size <= MAX_CHARACTERS
        room = max(0, MAX_LINES - len(self._box)) if fits else 0
        some = lines if len(lines) <= room else lines[:room]
        self._box.extend(some)
        self._put_in += size if some is lines else sum(map(len, some))
        self._missed += len(lines) - len(some)
        self._courier.wake()

    def _carry(self) -> None:
        lines = [self._box.popleft() for _ in range(len(self._box))]
        taken = sum(map(len, lines))
        missed = self._missed - self._told
        self._told += missed
        if missed:
            lines.append(self._form.line(time.time(), "WARNING", "missing", {"lines": missed}))
        if lines:
            try:
                self._behind.stream.write("\n".join(lines) + "\n")
                self._behind.stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads any more, or the disk that it goes to is full: a daemon goes on all the same
        self._taken_out += taken
