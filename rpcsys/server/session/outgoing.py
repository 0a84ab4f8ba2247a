"""What a session sends, from whichever of its threads; ERROR frames: what went wrong on the device.

Short replies to quick calls may be held back and go out together; whoever holds one back flushes before what may last.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import traceback as tracebacks
from typing import Callable, Iterator, List, Optional, Sequence

from rpcsys import errors
from rpcsys.errors import NativeError, RemoteError, RpcsysError, one_line
from rpcsys.server.sandbox import limits
from rpcsys.stream import Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer

BATCH = 16  # replies that make a batch: the client's calls come in batches of as many
SMALL = 4096  # a reply above this many bytes is worth a system call of its own, and not worth copying
STRETCH = 2 << 20  # bytes given to the system at a time; between two, what the client sends is read
_MAX_TRACEBACK = 64000  # the end of a traceback says most; a head holds 1 MiB


class Outgoing:
    """The sending half of a session's stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.held: List[bytes] = []  # replies that wait for others to join them
        self.on_full: Optional[Callable[[], None]] = None  # called while the client takes nothing, and in long replies

    def send(self, pieces: Sequence[Buffer], wait_s: float = -1) -> None:
        """Send one frame. With ``wait_s``, give up when another thread sends for that long."""
        lock = self._lock
        if not (lock.acquire() if wait_s < 0 else lock.acquire(True, wait_s)):
            return
        try:
            if self.held:
                pieces = [b"".join(self.held), *pieces]
                self.held = []
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
        """Send one frame with those that follow; at once if it is large, or if enough are held back."""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces) if sum(map(len, pieces)) <= SMALL else b""
        if len(self.held) + 1 < BATCH and 0 < len(data) <= SMALL:
            with self._lock:
                self.held.append(data)
        else:
            self.send(pieces)

    def try_send(self, pieces: Sequence[Buffer]) -> bool:
        """Send a small frame that is no reply, which the client is ready to take; False if another thread sends."""
        if not self._lock.acquire(False):
            return False
        try:
            self._stream.send(pieces)
            return True
        finally:
            self._lock.release()

    def flush(self) -> None:
        """Send what is held back."""
        if self.held:
            self.send([])

    def send_last(self, pieces: Sequence[Buffer]) -> None:
        """Say why the session ends. The client may be gone or not reading, so this never waits for long."""
        with contextlib.suppress(OSError):  # then the end of the connection has to say it
            if self._lock.acquire(timeout=0.3):
                self._stream.socket.sendmsg([*self.held, *pieces], (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                self._stream.socket.shutdown(socket.SHUT_WR)


def _stretches(pieces: Sequence[Buffer]) -> Iterator[List[Buffer]]:
    """``pieces`` in parts of `STRETCH` bytes."""
    part: List[Buffer] = []
    room = STRETCH
    for piece in pieces:
        left = memoryview(piece)
        while left:
            if not room:
                yield part
                part, room = [], STRETCH
            part.append(left[:room])
            left = left[room:]
            room -= len(part[-1])
    if part:
        yield part


def error_frame(
    call_id: int, kind: str, message: str, traceback: str = "", *, fault: str = "user", retryable: bool = False
) -> List[Buffer]:
    """The pieces of an ERROR for a call, or with number 0 for the session: an error of the class ``kind``."""
    fields = {"type": kind, "message": message, "traceback": traceback, "retryable": retryable, "fault": fault}
    return frames.encode(frames.ERROR, call_id, fields)


def exception_frame(call_id: int, error: Exception) -> List[Buffer]:
    """The pieces of an ERROR for what a call raised. Errors of ours are one line; a user's have their traceback."""
    kind = type(error).__name__
    if isinstance(error, NativeError):
        # A kind of native code's own choosing must not pass for one of the session's.
        kind = "NativeError" if hasattr(errors, error.kind) else error.kind
        return error_frame(call_id, kind, str(error), error.backtrace[-_MAX_TRACEBACK:])
    if isinstance(error, RemoteError):
        return error_frame(call_id, kind, one_line(error, None), fault=error.fault, retryable=error.retryable)
    if isinstance(error, RpcsysError):
        return error_frame(call_id, kind, one_line(error, None))
    trace = "".join(tracebacks.format_exception(type(error), error, error.__traceback__))
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's exception may fail at anything
        message = "an exception whose text cannot be made"
    return error_frame(call_id, kind, (message + limits.hint(trace)).lstrip("; "), trace[-_MAX_TRACEBACK:])
