"""Log lines that are made and written in a thread: whoever reads standard error slowly holds up nobody else."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Container, Iterable, Mapping
from itertools import islice
from typing import Any

from rpcsys import logs
from rpcsys.daemon.courier import Courier

MAX_LINES = 100_000
"""Lines that may wait for whoever reads them; more are counted and dropped."""

_GATHER_S = 0.05
_CLOSE_S = 2.0

_LEVELS = {logging.INFO: "INFO", logging.WARNING: "WARNING", logging.ERROR: "ERROR"}

Event = tuple[float, int, str, Mapping[str, Any]]
"""When (seconds since 1970), level, what, fields."""


class Journal(logging.Handler):
    """Stands before the handler that logging has, until closed: what is logged goes there by way of a thread.

    ``quiet`` names fields of events that people are spared.
    """

    def __init__(self, quiet: Container[str] = ()) -> None:
        super().__init__()
        self._quiet = quiet
        self._root = logging.getLogger()
        self._behind = next(one for one in self._root.handlers if isinstance(one, logging.StreamHandler))
        self._root.removeHandler(self._behind)
        self._root.addHandler(self)
        self._box: deque[Event | logging.LogRecord] = deque()
        self._missed = self._told = 0
        self._courier = Courier("journal", self._carry, _GATHER_S)

    def emit(self, record: logging.LogRecord) -> None:
        self._put((record,))

    def note_all(self, events: Iterable[Event]) -> None:
        """What `rpcsys.logs.note` does, for many events and at a tenth of its cost."""
        self._put(event for event in events if event[1] >= self._root.level)

    def close(self) -> None:
        """Write what is still to be written, for at most 2 s, and put logging back as it was."""
        if self in self._root.handlers:
            self._root.removeHandler(self)
            self._root.addHandler(self._behind)
            self._courier.close(_CLOSE_S)
        super().close()

    def _put(self, items: Iterable[Event | logging.LogRecord]) -> None:
        items = iter(items)
        self._box.extend(islice(items, MAX_LINES - len(self._box)))
        self._missed += sum(1 for _ in items)
        self._courier.wake()

    def _carry(self) -> None:
        box = [self._box.popleft() for _ in range(len(self._box))]
        missed = self._missed - self._told
        self._told += missed
        form = self._behind.formatter
        assert isinstance(form, logs.Formatter)
        lines = [
            form.format(item)
            if isinstance(item, logging.LogRecord)
            else form.line(item[0], _LEVELS[item[1]], item[2], item[3], self._quiet)
            for item in box
        ]
        if missed:
            lines.append(form.line(_when(box[-1]), "WARNING", "missing", {"lines": missed}))
        if lines:
            try:
                self._behind.stream.write("\n".join(lines) + "\n")
                self._behind.stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads any more, or the disk that it goes to is full: a daemon goes on all the same


def _when(item: Event | logging.LogRecord) -> float:
    return item.created if isinstance(item, logging.LogRecord) else item[0]
