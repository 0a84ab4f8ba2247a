"""Calls under way on one session: who sends, who reads, and who waits.

There is no reader thread: whoever waits for a reply reads, and hands the replies of others to them.
The rules of this file:

- A frame is written under the send lock; while the peer takes nothing, replies are read meanwhile, so
  that two full sockets never wait for each other.
- Frames are read under the read lock, by one thread at a time. A thread that waits for a reply while
  another one reads sleeps on a lock of its own, until its reply is there or the reader leaves.
- Futures of `submit` are completed by whoever reads. If nobody does, a helper thread that starts with
  the first `submit` looks every 20 ms: so callbacks and `concurrent.futures.wait` work, and plain
  calls never pay for it. Callbacks run in a thread of their own, which holds none of the locks.
- Who holds the read lock never waits for the send lock: its holder may wait for somebody to read.
- Once the stream is broken every call, present and future, ends with the same error.
"""

from __future__ import annotations

import concurrent.futures
import logging
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence

from rpcsys.client import faults
from rpcsys.client.pending import CallFuture, Pending, settle
from rpcsys.errors import DeadlineExceeded, ProtocolError, RpcsysError, SessionClosed, SessionLost
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame

#: How often a blocked receive comes back to look at deadlines.
_TICK_S = 1.0
#: How long replies may lie unread before the helper thread takes them.
_IDLE_S = 0.02
#: What the device is given beyond a call's deadline to report it itself.
_GRACE_S = 2.0

_log = logging.getLogger("rpcsys.session")


class Channel:
    """Calls and their replies over a `Stream`. For any number of threads."""

    def __init__(
        self, stream: Stream, peer: str, window: Dict[str, Any], on_log: Callable[[Frame], None]
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._on_log = on_log
        self._window_calls: int = window.get("calls", 64)
        self._window_bytes: int = window.get("bytes", 64 << 20)
        self._bytes_under_way = 0
        self._pending: Dict[int, Pending] = {}
        self._next_id = 0
        self._send_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._sleepers: Deque[Pending] = deque()
        self._freed: Deque[int] = deque()
        self._broken: Optional[RpcsysError] = None
        self._last_read = 0.0
        self._helper: Optional[threading.Thread] = None
        self._callbacks: Optional[concurrent.futures.ThreadPoolExecutor] = None
        stream.tick(_TICK_S)

    # -------------------------------------------------------------- calls

    def call(
        self,
        head: bytes,
        buffers: Sequence[Buffer],
        convert: Callable[[Frame], Any],
        deadline_s: Optional[float] = None,
    ) -> Any:
        """Send a CALL and wait for its result, which ``convert`` makes of the reply.

        Raises what the call raised on the device, `DeadlineExceeded`, or a `SessionError`.
        """
        if deadline_s is None and not self._freed and self._read_lock.acquire(False):
            try:
                frame = self._exchange(head, buffers) if self._send_lock.acquire(False) else None
            finally:
                self._leave()
            if frame is not None:
                return convert(frame)
        pending = self.start(head, buffers, convert, deadline_s)
        return self.finish(pending, deadline_s)

    def _exchange(self, head: bytes, buffers: Sequence[Buffer]) -> Frame:
        """Send a CALL and read until its RESULT, with both locks held: nobody else has to be told of it.

        What `start` and `finish` do, without an object for a call that this very thread waits for.
        """
        try:
            call_id = self._next_id = (self._next_id % 0xFFFFFFFF) + 1
            self._send(frames.pack(frames.CALL, call_id, head, buffers), reading=True)
        finally:
            self._send_lock.release()
        while True:
            frame = self._receive()
            if frame is None or frame.call_id != call_id:
                if frame is not None:
                    self._dispatch(frame)
                if self._broken is not None:
                    raise self._broken
            elif frame.kind == frames.RESULT:
                return frame
            elif frame.kind == frames.ERROR:
                raise faults.error_of(frame)

    def submit(
        self,
        head: bytes,
        buffers: Sequence[Buffer],
        convert: Callable[[Frame], Any],
        deadline_s: Optional[float] = None,
    ) -> CallFuture:
        """Send a CALL; its future. Waits only while the device's window is full."""
        pending = self.start(head, buffers, convert, deadline_s, future=True)
        assert pending.future is not None
        return pending.future

    def start(
        self,
        head: bytes,
        buffers: Sequence[Buffer],
        convert: Callable[[Frame], Any],
        deadline_s: Optional[float] = None,
        *,
        future: bool = False,
        sink: Optional[Callable[[Frame], None]] = None,
    ) -> Pending:
        """Send a CALL; what to wait for with `finish`. ``sink`` takes the CHUNKs that come before the reply."""
        deadline_ms = 0 if deadline_s is None else max(1, min(int(deadline_s * 1000), 0xFFFFFFFF))
        with self._send_lock:
            call_id = self._next_id = (self._next_id % 0xFFFFFFFF) + 1
            pending = Pending(call_id, convert)
            pending.sink = sink
            for buffer in buffers:
                pending.bytes += len(buffer)
            pieces = frames.pack(frames.CALL, call_id, head, buffers, deadline_ms=deadline_ms)
            if self._pending:
                self._wait_for_window(pending.bytes)
            if future:
                pending.future = CallFuture(self, pending)
                if self._helper is None:
                    self._start_helper()
            self._pending[call_id] = pending
            self._bytes_under_way += pending.bytes
            if self._freed:
                pieces = self._free_frame() + pieces
            self._send(pieces)
        return pending

    def finish(self, pending: Pending, deadline_s: Optional[float] = None) -> Any:
        """Wait for a call's reply and give its result, or raise its error."""
        if not pending.done:
            try:
                self.drive(pending, None if deadline_s is None else deadline_s + _GRACE_S)
            except concurrent.futures.TimeoutError:
                self._forget(pending)
                raise DeadlineExceeded(
                    f"no reply {_GRACE_S:g} s after the call's deadline of {deadline_s or 0:g} s; the device may hang: close the session"
                ) from None
        if pending.error is not None:
            raise pending.error
        assert pending.frame is not None
        return pending.convert(pending.frame)

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
            call_id = self._next_id = (self._next_id % 0xFFFFFFFF) + 1
            pending = self._pending[call_id] = Pending(call_id, lambda frame: None)
            self._send(frames.pack(frames.PING, call_id))
        try:
            self.drive(pending, deadline_s)
        except concurrent.futures.TimeoutError:
            self._forget(pending)
            raise DeadlineExceeded(
                f"no sign of life from {self._peer} within {deadline_s:g} s; the device may hang: close the session"
            ) from None
        if pending.error is not None:
            raise pending.error

    def cancel(self, pending: Pending) -> None:
        """Give up a call that is sent in pieces and not complete. Says so, and waits for nothing."""
        self._forget(pending)
        try:
            self.send(frames.CANCEL, pending.call_id, {})
        except RpcsysError:
            pass  # then there is nothing left to be cancelled

    def call_back(self, callback: Callable[[Any], Any], future: CallFuture) -> None:
        """Have ``callback`` called with ``future`` by a thread that holds no lock of this file."""
        if self._callbacks is None:
            self._callbacks = concurrent.futures.ThreadPoolExecutor(1, "rpcsys-callbacks")
        self._callbacks.submit(_call_back, callback, future)

    def free(self, ref: int) -> None:
        """Note that the device may drop object ``ref``; said with the next call. For finalisers: never blocks."""
        self._freed.append(ref)

    def _free_frame(self) -> List[Buffer]:
        ids: List[int] = []
        while self._freed and len(ids) < 1000:
            ids.append(self._freed.popleft())
        return frames.encode(frames.FREE, 0, {"ids": ids})

    def _forget(self, pending: Pending) -> None:
        """Nobody waits for this call any more: its reply, if it comes, is dropped."""
        if self._pending.pop(pending.call_id, None) is not None:
            self._bytes_under_way -= pending.bytes

    # -------------------------------------------------------------- sending

    def _send(self, pieces: Sequence[Buffer], reading: bool = False) -> None:
        """Send, with the send lock held; ``reading``: this thread holds the read lock as well."""
        if self._broken is not None:
            raise self._broken
        read = self._read_what_came if reading else self.drain
        try:
            self._stream.send(pieces, self._while_full_reading if reading else self._while_full)
        except Ended as end:
            read()  # the device may have said why before it hung up
            raise self._break(self._lost(end)) from None
        except RpcsysError:
            raise
        except BaseException:
            # Half a frame may be out: nothing sensible can follow it.
            self._break(SessionLost("the session was interrupted while it sent a call; open a new one"))
            raise

    def _while_full(self) -> None:
        """The peer takes nothing now: read what it sends, then wait until it takes or sends more."""
        self.drain()
        self._wait_for_peer()

    def _while_full_reading(self) -> None:
        """`_while_full` for the thread that holds the read lock already."""
        self._read_what_came()
        self._wait_for_peer()

    def _wait_for_peer(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._stream.wait(_TICK_S, write=True)

    def _wait_for_window(self, size: int) -> None:
        """Wait until the device can hold another call of ``size`` bytes; called with the send lock held."""
        while self._pending and (
            len(self._pending) >= self._window_calls or self._bytes_under_way + size > self._window_bytes
        ):
            oldest = next(iter(self._pending.values()), None)
            if oldest is None:
                return
            self.drive(oldest, None)

    # -------------------------------------------------------------- reading

    def drive(self, pending: Pending, timeout: Optional[float]) -> None:
        """Read until ``pending`` is done. Raises `concurrent.futures.TimeoutError` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not pending.done:
            if self._read_lock.acquire(False):
                try:
                    self._read_until(pending, deadline)
                finally:
                    self._leave()
            else:
                self._sleep(pending, deadline)
            if deadline is not None and not pending.done and time.monotonic() >= deadline:
                raise concurrent.futures.TimeoutError

    def drain(self) -> None:
        """Take the replies that have arrived, without waiting; nothing where another thread reads."""
        if not self._read_lock.acquire(False):
            return
        try:
            self._read_what_came()
        finally:
            self._leave()

    def _read_what_came(self) -> None:
        while self._broken is None:
            frame = self._receive(DONT_WAIT)
            if frame is None:
                return
            self._dispatch(frame)

    def _read_until(self, pending: Pending, deadline: Optional[float]) -> None:
        while not pending.done:
            if deadline is None:
                frame = self._receive()
            else:
                frame = self._receive(DONT_WAIT)
                if frame is None and not pending.done:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return
                    self._stream.wait(min(left, _TICK_S))
            if frame is not None:
                self._dispatch(frame)

    def _receive(self, flags: int = 0) -> Optional[Frame]:
        try:
            return self._stream.receive(flags)
        except Ended as end:
            self._break(self._lost(end))
        except ProtocolError as error:
            self._break(self._nonsense(error))
        except BaseException:
            # What was received may be lost between two instructions: nothing sensible can follow it.
            self._break(
                SessionLost("the session was interrupted while it waited for a reply; open a new one")
            )
            self._hang_up()
            raise
        return None

    def _leave(self) -> None:
        """Stop reading, and let those who sleep look again: one of them reads on."""
        if self._helper is not None:
            self._last_read = time.monotonic()
        self._read_lock.release()
        if not self._sleepers:
            return
        for sleeper in list(self._sleepers):
            wake = sleeper.wake
            if wake is not None and wake.locked():
                _release(wake)

    def _sleep(self, pending: Pending, deadline: Optional[float]) -> None:
        """Wait until ``pending`` may be done or the reader may have left."""
        wake = threading.Lock()
        wake.acquire()
        pending.wake = wake
        self._sleepers.append(pending)
        try:
            # Registered first, looked second: the reader either sees us when it leaves, or has left.
            if pending.done or not self._read_lock.locked():
                return
            left = _TICK_S if deadline is None else max(0.0, min(_TICK_S, deadline - time.monotonic()))
            wake.acquire(timeout=left)
        finally:
            self._sleepers.remove(pending)
            pending.wake = None

    def _dispatch(self, frame: Frame) -> None:
        try:
            self._take(frame)
        except ProtocolError as error:
            self._break(self._nonsense(error))

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.RESULT or kind == frames.PONG:
            pending = self._pending.pop(frame.call_id, None)
            if pending is not None:
                self._bytes_under_way -= pending.bytes
                self._complete(pending, frame, None)
        elif kind == frames.ERROR:
            error = faults.error_of(frame)
            if not frame.call_id:
                self._break(error)
                return
            pending = self._pending.pop(frame.call_id, None)
            if pending is not None:
                self._bytes_under_way -= pending.bytes
                self._complete(pending, None, error)
        elif kind == frames.CHUNK:
            pending = self._pending.get(frame.call_id)
            if pending is not None and pending.sink is not None:
                pending.sink(frame)
        elif kind == frames.LOG:
            self._on_log(frame)
        elif kind == frames.GOODBYE:
            self._break(
                SessionLost(
                    "{} ended the session: {}".format(self._peer, frame.get("reason", "no reason given"))
                )
            )

    def _complete(self, pending: Pending, frame: Optional[Frame], error: Optional[BaseException]) -> None:
        pending.frame = frame
        pending.error = error
        if pending.future is not None:
            settle(pending.future, pending)
        pending.done = True  # last: whoever sees it takes the result at once
        wake = pending.wake
        if wake is not None and wake.locked():
            _release(wake)

    # -------------------------------------------------------------- the end

    def _nonsense(self, error: ProtocolError) -> RpcsysError:
        return SessionLost(f"{self._peer} sent what is no rpcsys/1 frame ({error}); the session is closed")

    def _lost(self, end: Ended) -> RpcsysError:
        return SessionLost(
            f"the session with {self._peer} is gone ({end}): its process or the board died, or the server stopped; "
            "request a device again"
        )

    def _break(self, error: RpcsysError) -> RpcsysError:
        """Nothing more comes or goes: every call ends with ``error`` (the first one given counts)."""
        if self._broken is None:
            self._broken = error
        while self._pending:
            try:
                _, pending = self._pending.popitem()
            except KeyError:
                break
            self._complete(pending, None, self._broken)
        return self._broken

    def close(self) -> None:
        """Say goodbye if possible, then close. Calls under way end with `SessionClosed`."""
        if self._broken is None and self._send_lock.acquire(timeout=1.0):
            try:
                goodbye = frames.encode(frames.GOODBYE, 0, {})
                self._stream.socket.sendmsg(goodbye, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                pass  # the end of the connection says the same
            finally:
                self._send_lock.release()
        self._break(SessionClosed("the session is closed; open a new one"))
        self._hang_up()
        self._stream.close()

    def _hang_up(self) -> None:
        """End the connection: a thread that reads wakes up, and the device ends what it runs."""
        try:
            self._stream.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    @property
    def broken(self) -> Optional[RpcsysError]:
        """Why nothing works any more, or None."""
        return self._broken

    # -------------------------------------------------------------- the helper

    def _start_helper(self) -> None:
        helper = threading.Thread(target=self._help, name="rpcsys-futures", daemon=True)
        self._helper = helper
        helper.start()

    def _help(self) -> None:
        """Read for futures that nobody waits for in `result`."""
        while self._broken is None:
            time.sleep(_IDLE_S)
            if (
                self._pending
                and not self._read_lock.locked()
                and time.monotonic() - self._last_read > _IDLE_S
            ):
                self.drain()


def _call_back(callback: Callable[[Any], Any], future: CallFuture) -> None:
    try:
        callback(future)
    except Exception:  # noqa: BLE001 - as concurrent.futures has it: told, and nobody's end
        _log.exception("a callback of %r raised", future)


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError:
        pass  # two wakers met; one is enough
