"""Sends a session's frames, from any of its threads; makes its ERROR frames.

Short replies to quick calls may be held and sent together. They are flushed before a call that may be slow.
"""

from __future__ import annotations

import contextlib
import os
import socket
import traceback as tracebacks
from types import TracebackType
from typing import Callable, Iterator, List, Optional, Sequence

from rpcsys import errors
from rpcsys.errors import NativeError, RemoteError, RpcsysError, one_line
from rpcsys.server.sandbox import limits
from rpcsys.stream import Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer

BATCH = 16  # replies in a batch: a client's calls come in batches of as many
SMALL = 4096  # a reply above this many bytes is sent by its own system call, without a copy
STRETCH = 2 << 20  # bytes sent at a time; in between, the client's frames are read
_OWN = os.path.join(os.path.dirname(one_line.__code__.co_filename), "")  # the folder of this package's files
_MAX_TRACEBACK = 64000  # the end of a traceback is kept; a head holds 1 MiB


class Outgoing:
    """The sending half of a session's stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.lock = stream.new_lock()
        self.held: List[bytes] = []  # replies that wait to be sent with others
        self.on_full: Optional[Callable[[], None]] = None  # called while the client reads nothing, and in long replies

    def send(self, pieces: Sequence[Buffer], wait_s: float = -1) -> None:
        """Send one frame. With ``wait_s``, give up when another thread sends for that long."""
        lock = self.lock
        if not (lock.acquire() if wait_s < 0 else lock.acquire(True, wait_s)):
            return
        try:
            if self.held:
                pieces = [b"".join(self.held), *pieces]
                self.held.clear()
            if sum(map(len, pieces)) <= STRETCH:
                self._stream.send(pieces, self.on_full, True)
                return
            for number, part in enumerate(_stretches(pieces)):
                if number and self.on_full is not None:
                    self.on_full()
                self._stream.send(part, self.on_full, True)
        finally:
            lock.release()

    def hold(self, pieces: Sequence[Buffer]) -> None:
        """Send one frame together with later ones; at once if it is large, or enough are held."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces) if sum(map(len, pieces)) <= SMALL else b""
        if len(self.held) + 1 < BATCH and 0 < len(data) <= SMALL:
            with self.lock:
                self.held.append(data)
        else:
            self.send(pieces)

    def try_send(self, pieces: Sequence[Buffer]) -> bool:
        """Send a small frame that is no reply, when the socket is writable; False if another thread sends."""
        if not self.lock.acquire(False):
            return False
        try:
            self._stream.send(pieces)
            return True
        finally:
            self.lock.release()

    def flush(self) -> None:
        """Send the held replies."""
        if self.held:
            self.send([])

    def send_last(self, pieces: Sequence[Buffer]) -> None:
        """Send the reason for the session's end. The client may be gone or not reading, so the wait is short."""
        with contextlib.suppress(OSError):  # then the client only sees the connection's end
            if self.lock.acquire(timeout=0.3):
                self._stream.send_at_once([*self.held, *pieces])
                self._stream.socket.shutdown(socket.SHUT_WR)


def _stretches(pieces: Sequence[Buffer]) -> Iterator[List[Buffer]]:
    """``pieces`` in parts of `STRETCH` bytes."""
    part: List[Buffer] = []
    free = STRETCH
    for piece in pieces:
        left = memoryview(piece)
        while left:
            if not free:
                yield part
                part, free = [], STRETCH
            part.append(left[:free])
            left = left[free:]
            free -= len(part[-1])
    if part:
        yield part


def error_frame(
    call_id: int, kind: str, message: str, traceback: str = "", *, fault: str = "user", retryable: bool = False
) -> List[Buffer]:
    """The pieces of an ERROR for a call, or with number 0 for the session: an error of the class ``kind``."""
    fields = {"type": kind, "message": message, "traceback": traceback, "retryable": retryable, "fault": fault}
    return frames.encode(frames.ERROR, call_id, fields)


def _of_user(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """A traceback from the first frame on that is not of this package; all of it where there is none."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OWN):
        first = first.tb_next
    return first or trace


def exception_frame(call_id: int, error: Exception) -> List[Buffer]:
    """The pieces of an ERROR for what a call raised. Our errors are one line; a user's have a traceback."""
    kind = type(error).__name__
    if isinstance(error, NativeError):
        # Native code chooses its kind: it must not equal one of our errors.
        kind = "NativeError" if hasattr(errors, error.kind) else error.kind
        return error_frame(call_id, kind, str(error), error.backtrace[-_MAX_TRACEBACK:])
    if isinstance(error, RemoteError):
        return error_frame(call_id, kind, one_line(error, None), fault=error.fault, retryable=error.retryable)
    if isinstance(error, RpcsysError):
        return error_frame(call_id, kind, one_line(error, None))
    trace = "".join(tracebacks.format_exception(type(error), error, _of_user(error.__traceback__)))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's exception may fail at anything
        message = "an exception whose text cannot be made"
    return error_frame(call_id, kind, (message + limits.hint(trace)).lstrip("; "), trace[-_MAX_TRACEBACK:])
