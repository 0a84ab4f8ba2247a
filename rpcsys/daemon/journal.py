"""Log lines that are made and written in a thread: whoever reads standard error slowly holds up nobody else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping
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
        self._box: list[Event | logging.LogRecord] = []
        self._missed = 0
        self._box_lock = threading.Lock()
        self._courier = Courier("journal", self._carry, _GATHER_S)

    def emit(self, record: logging.LogRecord) -> None:
        self._put(record)

    def note(self, at: float, level: int, event: str, fields: Mapping[str, Any]) -> None:
        """What `rpcsys.logs.note` does, at a fifth of its cost."""
        if level >= self._root.level:
            self._put((at, level, event, fields))

    def close(self) -> None:
        """Write what is still to be written, for at most 2 s, and put logging back as it was."""
        if self in self._root.handlers:
            self._root.removeHandler(self)
            self._root.addHandler(self._behind)
            self._courier.close(_CLOSE_S)
        super().close()

    def _put(self, item: Event | logging.LogRecord) -> None:
        with self._box_lock:
            if len(self._box) < MAX_LINES:
                self._box.append(item)
            else:
                self._missed += 1
        self._courier.wake()

    def _carry(self) -> None:
        with self._box_lock:
            box, self._box = self._box, []
            missed, self._missed = self._missed, 0
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
