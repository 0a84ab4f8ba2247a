"""What a session has been sent: read by one thread at a time, which holds ``lock``, and put in order.

Frames of one read are sorted together: a call that is cancelled in it does not begin, and a PING waits for no call.
"""

from __future__ import annotations

import select
import threading
from collections import deque
from typing import Deque, Optional

from rpcsys.errors import ProtocolError
from rpcsys.server.session.outgoing import Outgoing, error_frame
from rpcsys.stream import DONT_WAIT, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

#: Calls a client may have under way. The 257th waits at the client; that many small ones keep any wire full.
WINDOW_CALLS = 256
#: So many windows may have come. A call that its client gives up makes room there before the device has heard of that.
WINDOWS = 2
#: Pieces of files that are read ahead while a call lasts: more is no use, and stays with the client.
MAX_CHUNK_BYTES = 8 << 20
LARGE = 1 << 20  # a call that brings more was long on its way: what was sent behind it may be here
_TICK_S = 1.0  # how long a blocked sender waits before it polls again
_SHORT_TICK_S = 0.02  # the same where the other thread reads, which may be waiting for the sender in turn
#: Answers that come out of order are given up when another thread's reply does not go out for so long.
_SEND_TIMEOUT_S = 1.0


class Incoming:
    """The receiving half of a session's stream; the client has a window of ``window_bytes``."""

    def __init__(self, stream: Stream, out: Outgoing, window_bytes: int) -> None:
        self._stream = stream
        self._out = out
        self._window_bytes = window_bytes
        self._unsorted: Deque[Frame] = deque()  # read while a reply did not go out: nothing may be sent in its middle
        self._chunk_bytes = 0  # of frames that have been read ahead, as are these:
        self._bytes = self._calls = self._body_bytes = 0
        self.late = False  # whether the frame that `next` gave last may have been cancelled since it came
        self.waiting: Deque[Frame] = deque()  # frames that have been read ahead, in order
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
                    first = self.waiting.popleft()
                    self._count(first, -1)
                    self.late = True
                    return first
                if out.held or self._unsorted:
                    continue
                frame = stream.receive()
                if frame is not None:
                    if not stream.reader.unread:
                        self.late = frame.parsed.body_bytes > LARGE
                        return frame
                    while frame is not None:
                        self.sort(frame)
                        frame = stream.reader.next() if stream.reader.unread else None
            finally:
                lock.release()

    def withdrawn(self, call: Frame) -> bool:
        """Whether the client has cancelled ``call``, the frame that `next` gave last; it is answered then."""
        self.read_ahead()
        if self._removed(frames.CANCEL, call.call_id) is None:
            return False
        self._say_cancelled(call)
        return True

    def _removed(self, kind: int, call_id: int) -> Optional[Frame]:
        """The frame of that kind and number, which waits no more; None if there is none."""
        for frame in self.waiting:
            if frame.kind == kind and frame.call_id == call_id:
                self.waiting.remove(frame)
                self._count(frame, -1)
                return frame
        return None

    def _say_cancelled(self, call: Frame) -> None:
        text = "the call was cancelled before it began"
        self._out.send(error_frame(call.call_id, "Cancelled", text), _SEND_TIMEOUT_S)

    def _count(self, frame: Frame, sign: int, *, waits: bool = True) -> None:
        """Keep account of a frame; of a call that ``waits`` in order, as the client does for its window."""
        if frame.kind == frames.CHUNK:
            self._chunk_bytes += sign * len(frame.buffers[0])
        else:
            self._bytes += sign * frame.parsed.weight
        if waits and frame.kind == frames.CALL:
            self._calls += sign
            self._body_bytes += sign * frame.parsed.body_bytes

    def read_ahead(self) -> None:
        """Put in order what has come meanwhile, without waiting."""
        self._sort_late()
        with self.lock:
            while self.has_room() and (frame := self._stream.receive(DONT_WAIT)) is not None:
                self.sort(frame)

    def has_room(self) -> bool:
        """Whether another frame may be read ahead.

        A client that keeps to its window always has room; of a file little is taken; heads of calls are bounded here.
        """
        beside = len(self.waiting) + len(self._unsorted) - self._calls
        return (
            beside <= WINDOWS * WINDOW_CALLS
            and self._bytes - self._body_bytes <= self._window_bytes
            and self._chunk_bytes < MAX_CHUNK_BYTES
        )

    def sort(self, frame: Frame) -> None:
        """What must not wait for the calls before it is done at once; the rest keeps its order.

        Raises `ProtocolError` for a client that does not keep to its window.
        """
        if frame.kind == frames.PING:
            self._out.send(frames.pack(frames.PONG, frame.call_id), _SEND_TIMEOUT_S)
            return
        if frame.kind == frames.CANCEL:
            # Of a call that was read and has not begun; what has begun, an upload, is the main thread's.
            call = self._removed(frames.CALL, frame.call_id)
            if call is not None:
                self._say_cancelled(call)
                return
        elif frame.kind == frames.GOODBYE:
            self.waiting.clear()
            self._bytes = self._chunk_bytes = self._calls = self._body_bytes = 0
        self._count(frame, 1)
        too_large = self._calls > 1 and self._body_bytes > WINDOWS * self._window_bytes  # one may be larger, alone
        if too_large or self._calls > WINDOWS * WINDOW_CALLS:
            window = f"{WINDOW_CALLS}, with {self._window_bytes} bytes of arguments"
            raise ProtocolError(f"more calls were sent than may be under way: {window}")
        self.waiting.append(frame)

    def _sort_late(self) -> None:
        while self._unsorted:
            frame = self._unsorted.popleft()
            self._count(frame, -1, waits=False)
            self.sort(frame)

    def _while_full(self) -> None:
        """The client takes nothing now: read what it sends, and wait until it takes or sends more.

        So full buffers never lock the two against each other.
        """
        if not self.lock.acquire(False):
            self._stream.wait(_SHORT_TICK_S, read=False, write=True)
            return
        try:
            if not self._stream.wait(_TICK_S, read=self.has_room(), write=True) & ~select.POLLOUT:
                return
            frame = self._stream.receive(DONT_WAIT)
            while frame is not None:
                self._count(frame, 1, waits=False)
                self._unsorted.append(frame)
                frame = self._stream.receive(DONT_WAIT) if self.has_room() else None
        finally:
            self.lock.release()
