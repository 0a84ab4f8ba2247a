"""Reads and sorts a session's incoming frames. One thread at a time reads, holding ``lock``.

Frames of one read are sorted together: a call cancelled in the same read never begins, and a PING waits for no call.
"""

from __future__ import annotations

import select
from collections import deque
from typing import Callable, Deque, Optional

from rpcsys.errors import ProtocolError
from rpcsys.server.session.outgoing import Outgoing, error_frame
from rpcsys.stream import DONT_WAIT, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

#: Calls that a client may have under way; so many small ones keep any connection busy.
WINDOW_CALLS = 256
#: Windows that may have arrived: a client no longer counts a call that it cancels, even before the CANCEL arrives.
WINDOWS = 2
#: Bytes of uploads that are read ahead during a call; further bytes wait at the client.
MAX_CHUNK_BYTES = 8 << 20
LARGE = 1 << 20  # after a call with more bytes, later frames may already be here
_TICK_S = 1.0  # how long a blocked sender waits before it polls again
_SHORT_TICK_S = 0.02  # the same while the other thread reads: it may wait for the sender
#: An answer out of order is dropped if another thread's reply blocks it for so long.
_SEND_TIMEOUT_S = 1.0


class Incoming:
    """The receiving half of a session's stream; the client has a window of ``window_bytes``."""

    def __init__(self, stream: Stream, out: Outgoing, window_bytes: int) -> None:
        self._stream = stream
        self._out = out
        self._window_bytes = window_bytes
        self.unsorted: Deque[Frame] = deque()  # read while a reply was blocked: no answer may interrupt it
        self._chunk_bytes = 0  # of frames read ahead, as are these:
        self._bytes = self._calls = self._body_bytes = 0
        self.late = False  # whether a CANCEL of the frame that `next` returned last may be here
        self.waiting: Deque[Frame] = deque()  # frames read ahead, in order
        self.lock = stream.new_lock()
        self.receive: Callable[[], Optional[Frame]] = stream.receive  # as `CallLoop.receive`
        #: Takes a CHUNK of a byte stream at once, under the lock: a call may run for long. False for another CHUNK.
        self.take_stream: Callable[[Frame], bool] = lambda frame: False
        out.on_full = self._while_full

    def next(self) -> Frame:
        """Return the next frame: one read ahead or, after all replies are sent, one from the socket."""
        out, lock, stream = self._out, self.lock, self._stream
        while True:
            if self.unsorted:
                self._sort_late()
            if out.held and not self.waiting:
                out.flush()
            lock.acquire()
            try:
                if self.waiting:
                    first = self.waiting.popleft()
                    self._count(first, -1)
                    self.late = True
                    return first
                if out.held or self.unsorted:
                    continue
                frame = self.receive()
                if frame is not None:
                    if not stream.unread:
                        if frame.kind == frames.CHUNK and self.take_stream(frame):
                            continue
                        self.late = frame.parsed.body_bytes > LARGE
                        return frame
                    while frame is not None:
                        self.sort(frame)
                        frame = stream.next() if stream.unread else None
            finally:
                lock.release()

    def withdrawn(self, call: Frame) -> bool:
        """Whether the client has cancelled ``call``, the frame that `next` returned last; if so, answer it."""
        self.read_ahead()
        if self._removed(frames.CANCEL, call.call_id) is None:
            return False
        self._answer_cancelled(call)
        return True

    def _removed(self, kind: int, call_id: int) -> Optional[Frame]:
        """Remove and return the waiting frame of that kind and number; None if there is none."""
        for frame in self.waiting:
            if frame.kind == kind and frame.call_id == call_id:
                self.waiting.remove(frame)
                self._count(frame, -1)
                return frame
        return None

    def _answer_cancelled(self, call: Frame) -> None:
        text = "the call was cancelled before it began"
        self._out.send(error_frame(call.call_id, "Cancelled", text), _SEND_TIMEOUT_S)

    def _count(self, frame: Frame, sign: int, *, waits: bool = True) -> None:
        """Count a frame, or with ``sign`` -1 remove it. A call counts for the window only if it ``waits`` in order."""
        if frame.kind == frames.CHUNK:
            self._chunk_bytes += sign * len(frame.buffers[0])
        else:
            self._bytes += sign * frame.parsed.weight
        if waits and frame.kind == frames.CALL:
            self._calls += sign
            self._body_bytes += sign * frame.parsed.body_bytes

    def read_ahead(self) -> None:
        """Sort the frames that have arrived, without waiting."""
        self._sort_late()
        with self.lock:
            while self.has_room() and (frame := self._stream.receive(DONT_WAIT)) is not None:
                self.sort(frame)

    def has_room(self) -> bool:
        """Whether another frame may be read ahead.

        This never stops a client within its window. It limits frames of other kinds, heads of calls, and uploads.
        """
        beside = len(self.waiting) + len(self.unsorted) - self._calls
        return (
            beside <= WINDOWS * WINDOW_CALLS
            and self._bytes - self._body_bytes <= self._window_bytes
            and self._chunk_bytes < MAX_CHUNK_BYTES
        )

    def sort(self, frame: Frame) -> None:
        """Handle frames at once that must not wait for earlier calls; append the others in order.

        Raises `ProtocolError` for a client that exceeds its window.
        """
        if frame.kind == frames.PING:
            self._out.send(frames.pack(frames.PONG, frame.call_id), _SEND_TIMEOUT_S)
            return
        if frame.kind == frames.CHUNK and self.take_stream(frame):
            return
        if frame.kind == frames.CANCEL:
            # A waiting call is answered here. The main thread handles the CANCEL of an upload, which has begun.
            call = self._removed(frames.CALL, frame.call_id)
            if call is not None:
                self._answer_cancelled(call)
                return
        elif frame.kind == frames.GOODBYE:
            self.waiting.clear()
            self._bytes = self._chunk_bytes = self._calls = self._body_bytes = 0
        self._count(frame, 1)
        too_large = self._calls > 1 and self._body_bytes > WINDOWS * self._window_bytes  # one alone may be larger
        if too_large or self._calls > WINDOWS * WINDOW_CALLS:
            window = f"{WINDOW_CALLS}, with {self._window_bytes} bytes of arguments"
            raise ProtocolError(f"more calls were sent than may be under way: {window}")
        self.waiting.append(frame)

    def _sort_late(self) -> None:
        while self.unsorted:
            frame = self.unsorted.popleft()
            self._count(frame, -1, waits=False)
            self.sort(frame)

    def _while_full(self) -> None:
        """While the client does not receive, read what it sends, and wait until it receives or sends more.

        So the two never deadlock with full buffers.
        """
        if not self.lock.acquire(False):
            self._stream.wait(_SHORT_TICK_S, read=False, write=True)
            return
        try:
            if not self._stream.wait(_TICK_S, read=self.has_room(), write=True) & ~select.POLLOUT:
                return
            frame = self._stream.receive(DONT_WAIT)
            while frame is not None:
                if not self._taken(frame):
                    self._count(frame, 1, waits=False)
                    self.unsorted.append(frame)
                frame = self._stream.receive(DONT_WAIT) if self.has_room() else None
        finally:
            self.lock.release()

    def _taken(self, frame: Frame) -> bool:
        """Whether a frame was one of a byte stream. An invalid one is kept: `sort` raises its error."""
        try:
            return frame.kind == frames.CHUNK and self.take_stream(frame)
        except ProtocolError:
            return False
