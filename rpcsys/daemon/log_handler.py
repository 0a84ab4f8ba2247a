"""Writes log lines in a thread, so that a slow reader of standard error does not stop the loop.

The caller formats each line: a thread that did so would compete with the loop for the interpreter at every line.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpcsys import logs
from rpcsys.daemon.batch_writer import BatchWriter
from rpcsys.serve import end_without_memory

#: Lines that may wait to be written, and their characters in all; lines beyond are counted and dropped.
MAX_LINES = 100_000
MAX_CHARACTERS = 32 << 20

_GATHER_S = 0.05
_CLOSE_S = 2.0

_LEVELS = {logging.INFO: "INFO", logging.WARNING: "WARNING", logging.ERROR: "ERROR"}
LogEvent = tuple[float, int, str, Mapping[str, Any]]  # time (seconds since 1970), level, event, fields


class BatchLogHandler(logging.Handler):
    """Replaces logging's stream handler until closed, and writes to its stream in a thread.

    ``words`` formats an event and its fields as text.
    """

    def __init__(self, words: logs.Words = logs.in_words) -> None:
        super().__init__()
        self._words = words
        self._root = logging.getLogger()
        streams = (each for each in self._root.handlers if isinstance(each, logging.StreamHandler))
        self._replaced, self._form = next(
            (each, each.formatter) for each in streams if isinstance(each.formatter, logs.Formatter)
        )
        self.filters = self._replaced.filters
        self._root.removeHandler(self._replaced)
        self._root.addHandler(self)
        self._lines: deque[str] = deque()
        self._dropped = self._dropped_told = 0
        self._characters_in = self._characters_out = 0  # each counted by one thread
        self._writer = BatchWriter("log", self._write, _GATHER_S)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], MemoryError):
            end_without_memory()  # a library has caught and logged it
        self._queue((self._form.format(record),))

    def note_all(self, events: Iterable[LogEvent]) -> None:
        """Log many events as `rpcsys.logs.note` does, at a tenth of its cost."""
        line, lowest, words = self._form.line, self._root.level, self._words
        lines = [line(at, _LEVELS[level], what, fields, words) for at, level, what, fields in events if level >= lowest]
        self._queue(lines)

    def close(self) -> None:
        """Write the waiting lines, for at most 2 s, and restore logging's own handler."""
        if self in self._root.handlers:
            self._root.removeHandler(self)
            self._root.addHandler(self._replaced)
            self._writer.close(_CLOSE_S)
        super().close()

    def _queue(self, lines: Sequence[str]) -> None:
        size = sum(map(len, lines))
        fits = self._characters_in - self._characters_out + size <= MAX_CHARACTERS
        room = max(0, MAX_LINES - len(self._lines)) if fits else 0
        some = lines if len(lines) <= room else lines[:room]
        self._lines.extend(some)
        self._characters_in += size if some is lines else sum(map(len, some))
        self._dropped += len(lines) - len(some)
        self._writer.wake()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        size = sum(map(len, lines))
        dropped = self._dropped - self._dropped_told
        self._dropped_told += dropped
        if dropped:
            lines.append(self._form.line(time.time(), "WARNING", "missing", {"lines": dropped}))
        if lines:
            try:
                self._replaced.stream.write("\n".join(lines) + "\n")
                self._replaced.stream.flush()
            except (OSError, ValueError):
                pass  # the reader has closed the pipe, or the disk is full: the daemon goes on
        self._characters_out += size
