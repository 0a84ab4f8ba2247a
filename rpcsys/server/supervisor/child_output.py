"""What sessions, hosts and the zygote print: the supervisor reads it from a pipe and makes log lines of it.

None of them holds a descriptor of the log itself, so nobody can write a line there that looks like the server's own.
A session reads its own pipe: the supervisor looks at its descriptor of that only when the session is dead.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable

from rpcsys.server.supervisor.loop import Loop

PIECE = 64 << 10  # read at a time: others have their turn between
LINE = 4 << 10  # bytes of a line; what is longer is cut into several
#: Bytes that may be printed at once, and in each second beyond: a log on an SD card takes no more for long.
BURST = 1 << 20
PER_S = 64 << 10

LINE_COST = 100  # what a line costs beside its bytes: its beginning in the log, and the time to make it
#: Of what a session leaves, the lines that are logged, and the bytes that are read. A crash says why in a few lines.
CRASH_LINES, CRASH_BYTES = 20, 64 << 10

log = logging.getLogger("rpcsys.server")


class ChildOutput:
    """Pipes to print into, read in ``loop``."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._left = float(BURST)
        self._since = loop.now()
        self._omitted = 0
        self._parts: dict[int, bytes] = {}

    def open(self) -> int:
        """A new pipe: the end to print into, for the caller to hand over and close. Raises OSError."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._parts[reading] = b""
        self._loop.add(reading, lambda: self._read(reading))
        return writing

    def _read(self, descriptor: int) -> bool:
        """Take what is there; whether more may follow."""
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
        """Log what was printed, as far as it may be."""
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
        """Log a line that has no end yet: who began it may be dead."""
        for descriptor in list(self._parts):
            self._read(descriptor)
            part = self._parts.get(descriptor)
            if part:
                self._parts[descriptor] = b""
                self.log([part])

    def crash(self, left: bytes) -> None:
        """Log what a session printed last, of which a few lines are never left out."""
        self._left = max(self._left, float(LINE))
        self.log(left[-LINE // 2 :].splitlines()[-CRASH_LINES:])

    def close(self) -> None:
        """Log what is still there, and let go of all pipes."""
        for descriptor in list(self._parts):
            for _ in range(BURST // PIECE):
                if not self._read(descriptor):
                    break
            if descriptor in self._parts:
                self._loop.remove(descriptor)
                os.close(descriptor)
        self._parts.clear()


class CrashOutput:
    """The pipes of living sessions, by child. ``crash``: takes what is left."""

    def __init__(self, crash: Callable[[bytes], None]) -> None:
        self._crash = crash
        self._pipes: dict[int, int] = {}

    def keep(self, child: int, descriptor: int) -> int | None:
        """A session says where it prints; what is returned is not taken: its user code may send anything."""
        if child in self._pipes or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        self._pipes[child] = descriptor
        return None

    def log(self, child: int) -> None:
        """The session is dead: log what it left, and forget it."""
        descriptor = self._pipes.pop(child, None)
        if descriptor is None:
            return
        try:
            os.set_blocking(descriptor, False)
            self._crash(os.read(descriptor, CRASH_BYTES))
        except OSError:
            pass  # nothing is left, or nobody reads our own log
        finally:
            os.close(descriptor)
