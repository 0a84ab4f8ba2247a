"""Output of sessions, hosts and the zygote: the supervisor reads it from pipes and logs it line by line.

None of these processes has a descriptor of the log, so none can forge a line of the server.
A session reads its own pipe. The supervisor keeps a descriptor of it, and reads it only after the session's death.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable

from rpcsys.server.supervisor.loop import Loop

PIECE = 64 << 10  # bytes read at a time, before the loop serves other descriptors
LINE = 4 << 10  # bytes of a log line; longer lines are split
#: Bytes that may be logged at once, and the bytes per second beyond that: an SD card sustains no more.
BURST = 1 << 20
PER_S = 64 << 10

LINE_COST = 100  # bytes counted for each line beside its text: the log's prefix, and the time to format it
#: Lines logged, and bytes read, of a dead session's last output. A crash needs a few lines.
CRASH_LINES, CRASH_BYTES = 20, 64 << 10

log = logging.getLogger("rpcsys.server")


class ChildOutput:
    """Pipes for the output of child processes, read in ``loop``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._left = float(BURST)
        self._since = loop.now()
        self._omitted = 0
        self._parts: dict[int, bytes] = {}

    def open(self) -> int:
        """Open a pipe and return its write end, which the caller hands over and closes. Raises OSError."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._parts[reading] = b""
        self._loop.add(reading, lambda: self._read(reading))
        return writing

    def _read(self, descriptor: int) -> bool:
        """Read and log one piece; whether more may follow."""
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        *lines, part = (self._parts[descriptor] + data).split(b"\n")
        if not data or len(part) > LINE:
            lines, part = [*lines, part], b""
        self._parts[descriptor] = part
        self.log(lines)
        if not data:
            self._loop.remove(descriptor)
            del self._parts[descriptor]
            os.close(descriptor)
        return bool(data)

    def log(self, lines: list[bytes]) -> None:
        """Log lines within the rate limit; count the rest as omitted."""
        now = self._loop.now()
        self._left = min(BURST, self._left + (now - self._since) * PER_S)
        self._since = now
        for number, line in enumerate(lines):
            if self._left < len(line) + LINE_COST:
                self._omitted += len(lines) - number
                return
            self._left -= len(line) + LINE_COST
            if self._omitted:
                log.warning("%d lines were printed that are left out here: too many in a row", self._omitted)
                self._omitted = 0
            for start in range(0, len(line), LINE):
                log.info("printed: %s", line[start : start + LINE].decode("utf-8", "replace").rstrip())

    def flush(self) -> None:
        """Log unfinished lines: the process that printed one may be dead."""
        for descriptor in list(self._parts):
            self._read(descriptor)
            part = self._parts.get(descriptor)
            if part:
                self._parts[descriptor] = b""
                self.log([part])

    def crash(self, left: bytes) -> None:
        """Log the last output of a session. A few lines are logged even beyond the rate limit."""
        self._left = max(self._left, float(LINE))
        self.log(left[-LINE // 2 :].splitlines()[-CRASH_LINES:])

    def close(self) -> None:
        """Log the remaining output and close all pipes."""
        for descriptor in list(self._parts):
            for _ in range(BURST // PIECE):
                if not self._read(descriptor):
                    break
            if descriptor in self._parts:
                self._loop.remove(descriptor)
                os.close(descriptor)
        self._parts.clear()


class CrashOutput:
    """The output pipes of running sessions, by child. ``crash`` receives the unread bytes of a dead one."""

    def __init__(self, crash: Callable[[bytes], None]) -> None:
        self._crash = crash
        self._pipes: dict[int, int] = {}

    def keep(self, child: int, descriptor: int) -> int | None:
        """Keep a session's output pipe. Returns ``descriptor`` if it is refused: user code may send any descriptor."""
        if child in self._pipes or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        self._pipes[child] = descriptor
        return None

    def log(self, child: int) -> None:
        """Log the last output of a dead session and close its pipe."""
        descriptor = self._pipes.pop(child, None)
        if descriptor is None:
            return
        try:
            os.set_blocking(descriptor, False)
            self._crash(os.read(descriptor, CRASH_BYTES))
        except OSError:
            pass  # the pipe is empty, or our own log has no reader
        finally:
            os.close(descriptor)
