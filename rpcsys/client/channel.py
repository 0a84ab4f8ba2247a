"""Calls on one session: who sends, and when. `Replies` says who reads.

The rules of this file:

- A frame is written under the send lock; while the peer takes nothing, replies are read meanwhile, so
  that two full sockets never wait for each other.
- Submitted calls go out in batches: at once while few are under way, else when `BATCH` of them are
  there, when anything else is sent, when somebody waits, or after half a millisecond, by the helper thread.
  What is held back is copied and small: a user may reuse an array once `submit` returns.
- Futures are completed by whoever reads. If nobody does, the helper thread looks every 20 ms: so
  callbacks and `concurrent.futures.wait` work.
"""

from __future__ import annotations

import concurrent.futures
import socket
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

from rpcsys.client import faults
from rpcsys.client.helper import Helper
from rpcsys.client.pending import CallFuture, Pending
from rpcsys.client.replies import TICK_S, Replies
from rpcsys.errors import DeadlineExceeded, ProtocolError, RpcsysError, SessionClosed, SessionLost
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame, Lead

#: Calls under way up to which another one is sent at once: the device has nothing better to do.
FEW = 2
#: Calls that make a batch. More save little: one system call and one wake-up of the device are shared by these.
BATCH = 16
#: The number of a call has four bytes; 0 is none.
LAST_ID = 0xFFFFFFFF
#: A call above this many bytes is worth a system call of its own, and not worth copying.
SMALL = 4096


class Channel:
    """Calls and their replies over a `Stream`. For any number of threads.

    ``held``: calls that wait for others to be sent with, by number; ``batches``: how many times they were sent.
    """

    def __init__(
        self, stream: Stream, peer: str, window: Dict[str, Any], on_log: Callable[[Frame], None]
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._replies = Replies(stream, peer, on_log)
        self._window_calls: int = window.get("calls", 64)
        self._window_bytes: int = window.get("bytes", 64 << 20)
        self._next_id = 0
        self._send_lock = threading.Lock()
        self.held: Dict[int, bytes] = {}
        self.batches = 0
        self._freed: Deque[int] = deque()
        self._helper = Helper(self, self._replies)
        self.condition = threading.Condition()  # of all futures of this session

    # -------------------------------------------------------------- calls

    def call(self, lead: Lead, buffers: Sequence[Buffer] = (), deadline_s: Optional[float] = None) -> Frame:
        """Send a CALL and wait for its RESULT.

        Raises what the call raised on the device, `DeadlineExceeded`, or a `SessionError`.
        """
        frame = self._exchange(lead, buffers) if deadline_s is None else None
        if frame is None:
            frame = self.finish(self.start(lead, buffers, _as_it_is, deadline_s))
        return frame

    def _exchange(self, lead: Lead, buffers: Sequence[Buffer]) -> Optional[Frame]:
        """`call`, with both locks held from the sending to the RESULT; None, and nothing done, if anybody else is about.

        What `start` and `finish` do, without an object for a call that this very thread waits for, and of which
        nobody else has to be told.
        """
        replies, stream = self._replies, self._stream
        if not replies.read_lock.acquire(False):
            return None
        pieces: List[Buffer] = []
        try:
            if not self._send_lock.acquire(False):
                return None
            try:
                if replies.pending or self.held or self._freed or replies.broken is not None:
                    return None
                call_id = self._next_id = self._next_id + 1 if self._next_id < LAST_ID else 1
                pieces = lead.pieces(call_id, buffers)
                # With no other call under way the device has nothing to send, and the system may do the waiting.
                stream.send(pieces, self._while_full_reading, True)
            finally:
                self._send_lock.release()
            while True:
                frame = stream.receive()
                if frame is not None and frame.call_id == call_id:
                    if frame.kind == frames.RESULT:
                        return frame
                    if frame.kind == frames.ERROR:
                        raise faults.error_of(frame)
                elif frame is not None:
                    replies.dispatch(frame)
                else:
                    replies.enforce()
                if replies.broken is not None:
                    raise replies.broken
        except BaseException as error:  # noqa: BLE001 - Ctrl-C breaks the session, too
            raise self._why(error) if pieces else error from None
        finally:
            replies.read_lock.release()
            if replies.watched or replies.sleepers:
                replies.left()

    def _why(self, error: BaseException) -> BaseException:
        """What a caller is told whose call ended with ``error`` here, the read lock held; most break the session."""
        replies = self._replies
        if isinstance(error, Ended):
            return self._hung_up(error, replies.take_what_came)
        if isinstance(error, ProtocolError):
            return replies.break_(replies.nonsense(error))
        if not isinstance(error, RpcsysError):
            replies.interrupted()
        return error

    def submit(
        self,
        lead: Lead,
        buffers: Sequence[Buffer],
        convert: Callable[[Frame], Any],
        deadline_s: Optional[float] = None,
    ) -> CallFuture:
        """Send a CALL, now or with the next ones; its future. Waits only while the device's window is full."""
        pending = Pending(0, convert)
        future = pending.future = CallFuture(self, pending)
        if not self._helper.running:
            self._helper.start()
        self._start(lead, buffers, pending, deadline_s)
        return future

    def start(
        self,
        lead: Lead,
        buffers: Sequence[Buffer],
        convert: Callable[[Frame], Any],
        deadline_s: Optional[float] = None,
        *,
        sink: Optional[Callable[[Frame], None]] = None,
    ) -> Pending:
        """Send a CALL; what to wait for with `finish`. ``sink`` takes the CHUNKs that come before the reply."""
        pending = Pending(0, convert)
        pending.sink = sink
        self._start(lead, buffers, pending, deadline_s)
        return pending

    def _start(
        self, lead: Lead, buffers: Sequence[Buffer], pending: Pending, deadline_s: Optional[float]
    ) -> None:
        replies = self._replies
        deadline_ms = 0
        if deadline_s is not None:
            pending.deadline_s = deadline_s
            deadline_ms = max(1, min(int(deadline_s * 1000), 0xFFFFFFFF))
        size = pending.bytes = lead.body_bytes
        with self._send_lock:
            call_id = self._next_id = self._next_id + 1 if self._next_id < LAST_ID else 1
            pending.call_id = call_id
            pieces = lead.pieces(call_id, buffers, deadline_ms)
            under_way = len(replies.pending)
            if under_way >= self._window_calls or replies.bytes_under_way + size > self._window_bytes:
                self._wait_for_window(size)
            may_wait = under_way > FEW and pending.future is not None and size <= SMALL
            replies.expect(pending)
            if self._freed:
                # Beside the call, not part of it: it goes out before, and though the call may be cancelled.
                self.held[-call_id] = b"".join(self._free_frame())
            if may_wait:
                self._hold(call_id, pieces)
            else:
                self._send(pieces)

    def finish(self, pending: Pending) -> Any:
        """Wait for a call's reply and give its result, or raise its error."""
        if not pending.done:
            self._replies.drive(pending, None)
        if pending.error is not None:
            raise pending.error
        assert pending.frame is not None
        return pending.convert(pending.frame)

    def wait(self, pending: Pending, timeout: Optional[float]) -> None:
        """Wait until a submitted call is done. Raises `concurrent.futures.TimeoutError` after ``timeout`` seconds."""
        if not pending.done:
            self.flush()
            self._replies.drive(pending, timeout)

    def send(
        self, kind: int, call_id: int, fields: Dict[str, Any], buffers: Sequence[Buffer] = (), flags: int = 0
    ) -> None:
        """Send a frame that is no call: CHUNK, CANCEL, PING, GOODBYE."""
        head, more = frames.encode_head(fields) if fields else (b"", [])
        with self._send_lock:
            self._send(frames.pack(kind, call_id, head, [*more, *buffers], flags=flags))

    def ping(self, deadline_s: float) -> None:
        """Wait for a PONG, which comes while a call runs, too. Raises `DeadlineExceeded` or a `SessionError`."""
        with self._send_lock:
            call_id = self._next_id = self._next_id + 1 if self._next_id < LAST_ID else 1
            pending = Pending(call_id, lambda frame: None)
            self._replies.expect(pending)
            self._send(frames.pack(frames.PING, call_id))
        try:
            self._replies.drive(pending, deadline_s)
        except concurrent.futures.TimeoutError:
            self._replies.forget(pending)
            raise DeadlineExceeded(
                f"no sign of life from {self._peer} within {deadline_s:g} s; the device may hang: close the session"
            ) from None
        if pending.error is not None:
            raise pending.error

    def cancel(self, pending: Pending) -> bool:
        """Have the device drop a call that waits, or end one that runs (and with it the session); waits for nothing.

        False if the call is answered already.
        """
        if not self._replies.stop(pending):
            return False
        try:
            with self._send_lock:
                if self.held.pop(pending.call_id, None) is None:
                    self._send(frames.pack(frames.CANCEL, pending.call_id))
        except RpcsysError:
            pass  # then there is nothing left to be cancelled
        return True

    def on_log(self, listener: Callable[[Frame], None]) -> None:
        """Call ``listener`` with each LOG frame, in the thread that reads it: it must be quick and call nobody."""
        self._replies.on_log.append(listener)

    def listen(self) -> None:
        """Have LOG frames read while no call is under way, too."""
        self._replies.listening = True
        self._helper.start()
        self._helper.wake()

    def call_back(self, callback: Callable[[Any], Any], what: Any) -> None:
        """Have ``callback`` called with ``what`` by a thread that holds no lock of this file."""
        self._helper.call_back(callback, what)

    def free(self, ref: int) -> None:
        """Note that the device may drop object ``ref``; said with the next call. For finalisers: never blocks."""
        self._freed.append(ref)

    def _free_frame(self) -> List[Buffer]:
        ids: List[int] = []
        while self._freed and len(ids) < 1000:
            ids.append(self._freed.popleft())
        return frames.encode(frames.FREE, 0, {"ids": ids})

    def drain(self) -> None:
        """Take the replies that have arrived, without waiting."""
        self._replies.drain()

    # -------------------------------------------------------------- sending

    def flush(self) -> None:
        """Send what is held back. Waits for another thread that sends, which reads meanwhile."""
        if self.held:
            with self._send_lock:
                if self.held:
                    self._send([])

    def _hold(self, call_id: int, pieces: Sequence[Buffer]) -> None:
        self.held[call_id] = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(self.held) >= BATCH:
            self._send([])
        elif not self._helper.looking:
            self._helper.wake()

    def _send(self, pieces: Sequence[Buffer]) -> None:
        """Send what is held back and ``pieces``, with the send lock held."""
        if self._replies.broken is not None:
            raise self._replies.broken
        if self.held:
            pieces = [b"".join(self.held.values()), *pieces]
            self.held.clear()
            self.batches += 1
        try:
            self._stream.send(pieces, self._while_full)
        except Ended as end:
            raise self._hung_up(end, self._replies.drain) from None
        except RpcsysError:
            raise
        except BaseException:
            self._half_sent()
            raise

    def _hung_up(self, end: Ended, read: Callable[[], None]) -> RpcsysError:
        """What a sender raises when the device is gone, which may have said why before."""
        read()
        return self._replies.break_(self._replies.lost(end))

    def _half_sent(self) -> None:
        """Ctrl-C while a frame was being sent: nothing sensible can follow half of it."""
        self._replies.break_(SessionLost("the session was interrupted while it sent a call; open a new one"))

    def _while_full(self) -> None:
        """The peer takes nothing now: read what it sends, then wait until it takes or sends more."""
        self._replies.drain()
        self._wait_for_peer()

    def _while_full_reading(self) -> None:
        """`_while_full` for the thread that holds the read lock already."""
        self._replies.take_what_came()
        self._wait_for_peer()

    def _wait_for_peer(self) -> None:
        if self._replies.broken is not None:
            raise self._replies.broken
        if not self._stream.wait(TICK_S, write=True):
            self._replies.be_patient()

    def _wait_for_window(self, size: int) -> None:
        """Wait until the device can hold another call of ``size`` bytes; called with the send lock held."""
        replies = self._replies
        while replies.pending and (
            len(replies.pending) >= self._window_calls or replies.bytes_under_way + size > self._window_bytes
        ):
            oldest = replies.oldest()
            if oldest is None:
                continue
            if self.held:
                self._send([])
            replies.drive(oldest, None)
            replies.drain()  # all that came with it, so that the next calls go out in a batch again

    # -------------------------------------------------------------- the end

    def close(self) -> None:
        """Say goodbye if possible, then close. Calls under way end with `SessionClosed`."""
        if self._replies.broken is None and self._send_lock.acquire(timeout=1.0):
            try:
                goodbye = frames.encode(frames.GOODBYE, 0, {})
                self._stream.socket.sendmsg(goodbye, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # the end of the connection says the same
            finally:
                self._send_lock.release()
        self._replies.break_(SessionClosed("the session is closed; open a new one"))
        self._replies.hang_up()
        self._stream.close()
        self._helper.wake()

    @property
    def broken(self) -> Optional[RpcsysError]:
        """Why nothing works any more, or None."""
        return self._replies.broken


def _as_it_is(frame: Frame) -> Frame:
    return frame
