"""The output of a session on the device, line by line."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Iterator, List, Optional, Tuple

from rpcsys.client.calls import Channel, PendingCall
from rpcsys.client.calls.channel import call_user
from rpcsys.errors import printable
from rpcsys.wire.frames import Frame
from rpcsys.wire.head import ParsedHead

#: Lines that are kept for late or slow readers.
KEPT_LINES = 10_000
#: Characters of these lines together; our device sends lines of 4 kB at most.
KEPT_LETTERS = 16 << 20
#: Lines and characters taken from one device: so many at once, and as many again in `REFILL_S`. Log lines must not
#: delay replies, and a line may cost 100 us where it is logged.
MOST_LINES = 10_000
MOST_LETTERS = 4 << 20
REFILL_S = 5.0
_log = logging.getLogger("rpcsys.session")


class SessionLog:
    """The last lines that a session has printed. For any number of threads."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # of the lines, and of the first one's number
        self._lines: Deque[str] = deque()
        self._letters = 0
        self._first = 0
        self._limit = LogLimit()
        self._followers: List[_Follower] = []
        self._waiting: List[PendingCall] = []

    def take(self, frame: Frame, skip: Callable[[], int]) -> None:
        """Take a LOG frame; ``skip`` as in `LogLimit`. Runs in the thread that reads: calls no user's function."""
        for taken in self._limit.taken(frame, time.monotonic(), skip):
            self.add(taken)

    def add(self, frame: Frame) -> None:
        """Keep a frame's lines, and wake the readers."""
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
        """The number of the next line to arrive."""
        with self._lock:
            return self._first + len(self._lines)

    def kept(self) -> List[str]:
        """The lines that are kept now."""
        with self._lock:
            return list(self._lines)

    def next(self, number: int) -> Tuple[int, Optional[str]]:
        """The next number of a reader at line ``number``, and its line: a note for lost lines, None at the end."""
        with self._lock:
            gone = self._first - number
            if gone > 0:
                return self._first, gap(gone)
            if -gone < len(self._lines):
                return number + 1, self._lines[-gone]
            return number, None

    def lines(self) -> Iterator[str]:
        """The session's output, from its first line until the session ends; waits for new lines."""
        number = 0
        while True:
            number, line = self.next(number)
            if line is None:
                more = PendingCall()
                self._waiting.append(more)
                number, line = self.next(number)  # one may have arrived meanwhile
            if line is not None:
                yield line
            elif self._channel.broken is not None:
                return
            else:
                self._channel.wait(more, None)


class _Follower:
    """Calls a function with each line from now on. A slow function misses lines, as any slow reader does."""

    def __init__(self, channel: Channel, log: SessionLog, callback: Callable[[str], Any]) -> None:
        self._channel = channel
        self._log = log
        self._callback = callback
        self._next = log.end
        self._asked = False

    def follow(self) -> None:
        """Schedule a call for new lines. At most one is scheduled, for any number of lines."""
        if not self._asked:
            self._asked = True
            self._channel.call_back(self._follow, None)

    def _follow(self, _: None) -> None:
        self._asked = False  # first: lines from now on schedule another call
        end = self._log.end  # later lines wait, so that other callbacks run
        while self._next < end:
            self._next, line = self._log.next(self._next)
            call_user(self._callback, line)


class LogLimit:
    """Admits `MOST_LINES` and `MOST_LETTERS` of one device, and as many again in `REFILL_S`."""

    def __init__(self) -> None:
        self._at = 0.0
        self._lines, self._letters = float(MOST_LINES), float(MOST_LETTERS)
        self._lost = 0

    def taken(self, frame: Frame, now: float, skip: Callable[[], int]) -> List[Frame]:
        """The LOG frames to take for this one: itself, none, or a frame about the lines left out and then itself.

        For none, ``skip`` drops the LOG frames behind it, and returns their number of lines.
        """
        refilled = max(0.0, now - self._at) / REFILL_S
        self._at = now
        self._lines = min(MOST_LINES, self._lines + refilled * MOST_LINES)
        self._letters = min(MOST_LETTERS, self._letters + refilled * MOST_LETTERS)
        lines, letters = _measured(frame)
        if lines > self._lines or letters > self._letters:
            self._lost += lines + skip()
            return []
        self._lines -= lines
        self._letters -= letters
        if not self._lost:
            return [frame]
        left_out = ParsedHead({"message": gap(self._lost)}, ())
        self._lost = 0
        return [Frame(frame.kind, 0, 0, 0, left_out, ()), frame]


def _measured(frame: Frame) -> Tuple[int, int]:
    """Lines and characters of a LOG frame, counted without building its message."""
    message = frame.parsed.head.get("message")
    if type(message) is str:
        return 1 + message.count("\n"), len(message)
    letters = frame.parsed.weight
    if letters > MOST_LETTERS:
        return 1, letters
    return 1 + sum(bytes(buffer).count(b"\n") for buffer in frame.buffers), letters


def gap(lines: object) -> str:
    """The note in the place of lost lines."""
    return f"({lines} lines are missing here: they came faster than they were read)"
