"""What a session prints on the device, as a user reads it here: line by line.

`SessionLog` is filled by whichever thread reads the session; `LogLines` is one reader's place in it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

from rpcsys.client.calls import Channel, PendingCall
from rpcsys.client.calls.flusher import call_user
from rpcsys.client.log_limit import gap
from rpcsys.errors import printable
from rpcsys.wire.frames import Frame

#: Lines that are kept for readers who come late or are slow.
KEPT_LINES = 10_000
#: Letters of these lines together; a device of ours sends lines of 4 kB at most.
KEPT_LETTERS = 16 << 20
_log = logging.getLogger("rpcsys.session")


class SessionLog:
    """The last lines that a session has printed. For any number of threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # of the lines, and the number of the first
        self._lines: Deque[str] = deque()
        self._letters = 0
        self._first = 0
        self._followers: List[_Follower] = []
        self._waiting: List[PendingCall] = []

    def take(self, frame: Frame) -> None:
        """A LOG frame has come. Runs in the thread that reads: users' functions are called elsewhere."""
        level, lost = frame.get("level", logging.INFO), frame.get("lost", 0)
        if type(level) is not int or not 0 <= level <= logging.CRITICAL:
            level = logging.INFO
        lines = str(frame.get("message", "")).split("\n")
        for line in lines:
            _log.log(level, "%s", printable(line, "\t"))
        with self._lock:
            if type(lost) is int and lost > 0:
                self._add(gap(lost))
            for line in lines:
                self._add(line)
        while self._waiting:
            self._waiting.pop().complete(None)
        for follower in self._followers:
            follower.follow()

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._letters += len(line)
        while len(self._lines) > KEPT_LINES or self._letters > KEPT_LETTERS:
            self._letters -= len(self._lines.popleft())
            self._first += 1

    def call(self, callback: Callable[[str], Any]) -> None:
        """Call ``callback`` with each line from now on, in a thread that may use the session."""
        self._followers.append(_Follower(self._channel, self, callback))
        self._channel.listen()

    @property
    def end(self) -> int:
        """The number of the next line that comes."""
        with self._lock:
            return self._first + len(self._lines)

    def next(self, number: int) -> Tuple[int, Optional[str]]:
        """Where a reader at line ``number`` is next, and its line; a note where some were lost, None if it has all."""
        with self._lock:
            gone = self._first - number
            if gone > 0:
                return self._first, gap(gone)
            if -gone < len(self._lines):
                return number + 1, self._lines[-gone]
            return number, None

    def until_more(self) -> PendingCall:
        """What is answered when the next line has come."""
        more = PendingCall()
        self._waiting.append(more)
        return more


class _Follower:
    """Calls a function with each line from now on. One that is slow or stuck misses lines, as any slow reader does."""

    def __init__(self, channel: Channel, log: SessionLog, callback: Callable[[str], Any]) -> None:
        self._channel = channel
        self._log = log
        self._callback = callback
        self._next = log.end
        self._asked = False

    def follow(self) -> None:
        """Lines have come. At most one call for them waits, however many lines."""
        if not self._asked:
            self._asked = True
            self._channel.call_back(self._follow, None)

    def _follow(self, _: None) -> None:
        self._asked = False  # first: what comes from now on is for another call
        end = self._log.end  # others' callbacks have their turn, too
        while self._next < end:
            self._next, line = self._log.next(self._next)
            call_user(self._callback, line)


class LogLines:
    """Iterates over what a session prints until the session ends, and waits for more meanwhile."""

    def __init__(self, channel: Channel, log: SessionLog) -> None:
        self._channel = channel
        self._log = log
        self._next = 0

    def __iter__(self) -> LogLines:
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
        self._next, line = self._log.next(self._next)
        return line
