"""Forwards what Python and native code print in a session: to the server's log, and to the client in LOG frames.

Descriptors 1 and 2 become a pipe, which a thread reads; after a crash the supervisor logs what is left in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Any, Deque

from rpcsys.server.sandbox.processes import LIBC
from rpcsys.server.session.outgoing import Outgoing
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames

#: Bytes kept for a client that does not read: beyond that the oldest lines are dropped, and their number is sent.
KEPT_BYTES = 256 << 10
FRAME_BYTES = 8 << 10  # text of one LOG frame: so short that a writable socket takes all of it
LINE_BYTES = 4 << 10  # a line that is longer is cut
PART_S = 0.2  # how long the beginning of a line waits for its end
SETTLE_S = 1.0  # how long a call waits for lines before it; a process may print without end
_AGAIN_S = 0.02  # between two attempts while another thread sends
#: Known weakness: native code that prints more than this while it holds the GIL blocks forever.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ, _IOLBF = 1031, 1


class OutputForwarder:
    """Redirects this process's standard output and error into a pipe. ``pipe``: the descriptor to read from."""

    def __init__(self, stream: Stream, out: Outgoing) -> None:
        self._stream = stream
        self._out = out
        self._lines: Deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        self._part = b""
        self._idle = True  # no line is on its way from the pipe to the stream
        self._stderr = os.dup(2)
        self._copies = os.pipe()
        self.pipe, writing = os.pipe()
        with contextlib.suppress(OSError):  # above this user's limit: 64 KiB suffice
            fcntl.fcntl(writing, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        by_line()

    def start(self) -> None:
        """Start the thread that forwards the output."""
        threading.Thread(target=self._run, name="rpcsys-printed", daemon=True).start()

    def finish(self) -> None:
        """At the session's end, send the rest of the pipe, and all later output, to the server's log only."""
        flush()
        for descriptor in (1, 2):
            os.dup2(self._stderr, descriptor)
        while self._printed():
            os.write(2, os.read(self.pipe, _PIPE_BYTES))

    def settle(self) -> None:
        """Wait until the client is sent what was printed before, for `SETTLE_S` at most."""
        flush()
        until = time.monotonic() + SETTLE_S
        while (self._printed() or not self._idle) and time.monotonic() < until:  # in this order
            time.sleep(0.001)

    def _printed(self) -> bool:
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def _run(self) -> None:
        refused = False
        while True:
            self._idle = not (self._lines or self._part)
            ready = self._wait(refused)
            self._idle = False
            if self.pipe in ready:
                data = self._log()
                if not data:
                    return
                self._split(data)
            elif self._part and not self._lines:
                self._split(b"\n")
            try:
                refused = self._stream.fileno() in ready and not self._send()
            except Ended:
                self._lines.clear()

    def _log(self) -> bytes:
        """Move what has been printed to the server's log; a copy of it, empty at the end.

        The kernel moves it, for a crash between a read and a write would lose what is often the reason of the crash.
        Reads and writes where it does not: the log is a file that is appended to.
        """
        reading, writing = self._copies
        count = LIBC.tee(self.pipe, writing, ctypes.c_size_t(_PIPE_BYTES), 0)
        copy = os.read(reading, count) if count > 0 else b""
        left = len(copy)
        while left and (moved := LIBC.splice(self.pipe, None, self._stderr, None, ctypes.c_size_t(left), 0)) > 0:
            left -= moved
        if copy and not left:
            return copy
        rest = os.read(self.pipe, left or _PIPE_BYTES)
        os.write(self._stderr, rest)
        return copy or rest

    def _wait(self, refused: bool) -> list[int]:
        """Wait for output, or until lines can be sent. ``refused``: another thread was sending just now."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        if self._lines and not refused:
            poll.register(self._stream, select.POLLOUT)
        timeout = _AGAIN_S if refused and self._lines else PART_S if self._part and not self._lines else None
        return [descriptor for descriptor, _ in poll.poll(timeout and timeout * 1000)]

    def _split(self, data: bytes) -> None:
        *lines, self._part = (self._part + data).split(b"\n")
        while len(self._part) > LINE_BYTES:
            lines.append(self._part[:LINE_BYTES])
            self._part = self._part[LINE_BYTES:]
        self._lines += (line[:LINE_BYTES] for line in lines)
        self._bytes += sum(min(len(line), LINE_BYTES) + 1 for line in lines)
        while self._bytes > KEPT_BYTES:
            self._bytes -= len(self._lines.popleft()) + 1
            self._lost += 1

    def _send(self) -> bool:
        """Send one frame of lines; False if another thread is sending."""
        ends = itertools.accumulate(len(line) + 1 for line in self._lines)
        taken = sum(1 for _ in itertools.takewhile(lambda end: end <= FRAME_BYTES + 1, ends))
        text = b"\n".join(itertools.islice(self._lines, taken)).decode("utf-8", "replace")
        fields: dict[str, Any] = {"message": text, "level": logging.INFO}
        if self._lost:
            fields["lost"] = self._lost
        if not self._out.try_send(frames.encode(frames.LOG, 0, fields)):
            return False
        self._lost = 0
        for _ in range(taken):
            self._bytes -= len(self._lines.popleft()) + 1
        return True


def flush() -> None:
    """Flush the output buffers of Python and C."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    LIBC.fflush(None)


@functools.lru_cache(maxsize=None)
def by_line() -> None:
    """Have Python and C flush each whole line, as on a terminal; to a pipe they would write 4 kB at a time."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)
    try:
        stdout = ctypes.c_void_p.in_dll(LIBC, "stdout")
    except ValueError:  # another C library than Linux's
        return
    LIBC.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))
