"""What a session has been sent: read by one thread at a time, and put in order.

Whoever reads holds ``lock``: the main thread between calls, the watcher while one lasts. Frames that came
in one read are looked at together: a call that is cancelled in it does not even begin, and a PING waits
for no call. While a reply does not go out because the client takes nothing, what the client sends is
read, so that full buffers never lock the two against each other; it is put in order afterwards, since
nothing may be sent in the middle of a frame.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from typing import Deque, Optional

from rpcsys.errors import ProtocolError
from rpcsys.server.session.faults import error_fields
from rpcsys.server.session.outgoing import Outgoing
from rpcsys.stream import DONT_WAIT, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

#: Calls a client may have under way. The 257th waits at the client; that many small ones keep any wire full.
WINDOW_CALLS = 256
#: So many windows may have come. A call that its client gives up makes room there before the device has heard of that.
WINDOWS = 2
#: Pieces of files that are read ahead while a call lasts: more is no use, and stays with the client.
MAX_CHUNK_BYTES = 8 << 20
#: A call that brings more was long on its way: what was sent behind it may be here.
LARGE = 1 << 20
#: How long a blocked sender waits before it looks again.
_TICK_S = 1.0
#: The same where the other thread reads, which may be waiting for the sender in turn.
_SHORT_TICK_S = 0.02
#: Answers that come out of order are given up when another thread's reply does not go out for so long.
_SEND_TIMEOUT_S = 1.0


class Incoming:
    """The receiving half of a session's stream; the client was told of a window of ``window_bytes``.

    ``waiting``: frames that have been read ahead, in order; ``late``: whether the last one that `next` gave may
    have been cancelled since it came.
    """

    def __init__(self, stream: Stream, out: Outgoing, window_bytes: int) -> None:
        self._stream = stream
        self._out = out
        self._window_bytes = window_bytes
        self._unsorted: Deque[Frame] = deque()
        self._chunk_bytes = 0
        self._bytes = self._calls = self._body_bytes = 0
        self.late = False
        self.waiting: Deque[Frame] = deque()
        self.lock = threading.Lock()
        out.on_full = self._while_full

    def next(self) -> Frame:
        """The next frame: one that was read ahead, else from the socket, all replies sent."""
        out, lock, stream = self._out, self.lock, self._stream
        while True:
            if self._unsorted:
                self._sort_late()
            if out.held and not self.waiting:
                out.flush()
            lock.acquire()
            try:
                if self.waiting:
                    return self._taken()
                if out.held or self._unsorted:
                    continue
                frame = stream.receive()
                if frame is not None:
                    if not stream.reader.unread:
                        self.late = frame.parsed.body_bytes > LARGE
                        return frame
                    self._sort_all(frame)
            finally:
                lock.release()

    def _taken(self) -> Frame:
        frame = self.waiting.popleft()
        self._count(frame, -1)
        if frame.kind == frames.CALL:
            self._count_call(frame, -1)
        self.late = True
        return frame

    def taken_back(self, call: Frame) -> bool:
        """Whether the client has cancelled ``call``, the last frame that `next` gave, before it begins.

        It is told so.
        """
        self.read_ahead()
        for frame in self.waiting:
            if frame.kind == frames.CANCEL and frame.call_id == call.call_id:
                self.waiting.remove(frame)
                self._count(frame, -1)
                self._say_cancelled(call)
                return True
        return False

    def _say_cancelled(self, call: Frame) -> None:
        fields = error_fields("Cancelled", "the call was cancelled before it began")
        self._out.send(frames.encode(frames.ERROR, call.call_id, fields), _SEND_TIMEOUT_S)

    def _count(self, frame: Frame, sign: int) -> None:
        if frame.kind == frames.CHUNK:
            self._chunk_bytes += sign * len(frame.buffers[0])
        else:
            self._bytes += sign * frame.parsed.weight

    def _count_call(self, frame: Frame, sign: int) -> None:
        """Keep account of the window, as the client does."""
        self._calls += sign
        self._body_bytes += sign * frame.parsed.body_bytes

    def _check_window(self) -> None:
        """Raises `ProtocolError` for a client that does not keep to it. One call may be larger, if it comes alone."""
        if self._calls > WINDOWS * WINDOW_CALLS or (
            self._calls > 1 and self._body_bytes > WINDOWS * self._window_bytes
        ):
            raise ProtocolError(
                f"more calls were sent than may be under way: {WINDOW_CALLS}, with {self._window_bytes} bytes of arguments"
            )

    def read_ahead(self) -> None:
        """Put in order what has come meanwhile, without waiting."""
        self._sort_late()
        with self.lock:
            while self.has_room():
                frame = self._stream.receive(DONT_WAIT)
                if frame is None:
                    return
                self.sort(frame)

    def has_room(self) -> bool:
        """Whether another frame may be read ahead.

        A client that keeps to its window, calls and bytes, always has room; of a file little is taken. What the calls here
        bring is bounded by the window, what their heads and all else hold on to is bounded here.
        """
        beside = len(self.waiting) + len(self._unsorted) - self._calls
        return (
            beside <= WINDOWS * WINDOW_CALLS
            and self._bytes - self._body_bytes <= self._window_bytes
            and self._chunk_bytes < MAX_CHUNK_BYTES
        )

    def sort(self, frame: Frame) -> None:
        """What must not wait for the calls before it is done at once; the rest keeps its order."""
        if frame.kind == frames.CALL:
            self._count(frame, 1)
            self._count_call(frame, 1)
            self._check_window()
            self.waiting.append(frame)
        elif frame.kind == frames.CANCEL:
            self._cancel_waiting(frame)
        elif frame.kind == frames.PING:
            self._out.send(frames.pack(frames.PONG, frame.call_id), _SEND_TIMEOUT_S)
        else:
            if frame.kind == frames.GOODBYE:
                self.waiting.clear()
                self._bytes = self._chunk_bytes = self._calls = self._body_bytes = 0
            self._count(frame, 1)
            self.waiting.append(frame)

    def _sort_all(self, first: Frame) -> None:
        """Put in order all that came in one read."""
        reader = self._stream.reader
        frame: Optional[Frame] = first
        while frame is not None:
            self.sort(frame)
            frame = reader.next() if reader.unread else None

    def _sort_late(self) -> None:
        while self._unsorted:
            frame = self._unsorted.popleft()
            self._count(frame, -1)
            self.sort(frame)

    def _cancel_waiting(self, cancel: Frame) -> None:
        """Drop a call that has been read and not begun; what has begun, an upload, is the main thread's."""
        for frame in list(self.waiting):
            if frame.call_id == cancel.call_id and frame.kind == frames.CALL:
                self.waiting.remove(frame)
                self._count(frame, -1)
                self._count_call(frame, -1)
                self._say_cancelled(frame)
                return
        self._count(cancel, 1)
        self.waiting.append(cancel)

    def _while_full(self) -> None:
        """The client takes nothing now: read what it sends, and wait until it takes or sends more."""
        if not self.lock.acquire(False):
            self._stream.wait(_SHORT_TICK_S, read=False, write=True)
            return
        try:
            if not self._stream.wait(_TICK_S, read=self.has_room(), write=True) & ~select.POLLOUT:
                return
            frame = self._stream.receive(DONT_WAIT)
            while frame is not None:
                self._count(frame, 1)
                self._unsorted.append(frame)
                frame = self._stream.receive(DONT_WAIT) if self.has_room() else None
        finally:
            self.lock.release()
