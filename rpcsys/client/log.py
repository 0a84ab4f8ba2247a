"""What a session prints on the device, as a user reads it here: line by line.

`Log` is filled by whichever thread reads the session; `Lines` is one reader's place in it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Deque, List, Optional

from rpcsys.client.pending import Pending, wake
from rpcsys.wire.frames import Frame

if TYPE_CHECKING:
    from rpcsys.client.channel import Channel

#: Lines that are kept for readers who come late or are slow.
KEPT_LINES = 10_000


class Log:
    """The last lines that a session has printed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lines: Deque[str] = deque()
        self._callbacks: List[Callable[[str], Any]] = []
        self._waiting: List[Pending] = []
        self.first = 0  # the number of the oldest line that is kept

    def take(self, frame: Frame) -> None:
        """A LOG frame has come. Runs in the thread that reads: users' functions are called elsewhere."""
        lost = frame.get("lost", 0)
        if lost:
            self._add(gap(lost))
        for line in str(frame.get("message", "")).split("\n"):
            self._add(line)
        while self._waiting:
            pending = self._waiting.pop()
            pending.done = True
            wake(pending)

    def _add(self, line: str) -> None:
        self._lines.append(line)
        if len(self._lines) > KEPT_LINES:
            self._lines.popleft()
            self.first += 1
        for callback in self._callbacks:
            self._channel.call_back(callback, line)

    def call(self, callback: Callable[[str], Any]) -> None:
        """Call ``callback`` with each line from now on, in a thread that may use the session."""
        self._callbacks.append(callback)
        self._channel.listen()

    def line(self, number: int) -> Optional[str]:
        """The line of that number (`first` or above); None while it has not come."""
        index = number - self.first
        return self._lines[index] if 0 <= index < len(self._lines) else None

    def until_more(self) -> Pending:
        """What is done when the next line has come."""
        pending = Pending(0, lambda frame: None)
        self._waiting.append(pending)
        return pending


class Lines:
    """Iterates over what a session prints until the session ends, and waits for more meanwhile."""

    def __init__(self, channel: Channel, log: Log) -> None:
        self._channel = channel
        self._log = log
        self._next = 0

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self._taken()
        while line is None:
            more = self._log.until_more()
            line = self._taken()  # it may have come in this very moment
            if line is None:
                if self._channel.broken is not None:
                    raise StopIteration
                self._channel.wait(more, None)
                line = self._taken()
        return line

    def _taken(self) -> Optional[str]:
        gone = self._log.first - self._next
        if gone > 0:
            self._next += gone
            return gap(gone)
        line = self._log.line(self._next)
        self._next += line is not None
        return line


def gap(lines: object) -> str:
    """What stands in the place of lines that were lost."""
    return f"({lines} lines are missing here: they came faster than they were read)"
