"""Reads the replies of one session: one thread at a time, under the read lock, reads for all threads.

The oldest call under way is the one that runs; its deadline counts from when it became the oldest. After the end of the
session every call, present or later, ends with the same error.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from rpcsys.client import answers
from rpcsys.errors import DeadlineExceeded, ProtocolError, RpcsysError, SessionLost, printable
from rpcsys.link.tcp import KEEPALIVE_S, keep_alive
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

#: Seconds after which a blocked receive returns to check deadlines.
TICK_S = 1.0
#: Seconds that the device has to report an overdue call, or a stopped one, before the client hangs up.
GRACE_S = 2.0
#: Frames that are taken at a time without waiting: more than any window of calls, and a bound for a flood.
MOST_AT_ONCE = 100_000
_AT_ONCE = (False,)  # arguments to take a lock or do without
#: Takes a LOG frame, and a function that drops the LOG frames behind it and returns their number of lines.
OnLog = Callable[[Frame, Callable[[], int]], None]


class PendingCall:
    """A call under way, or another event that a thread waits for."""

    # Defaults on the class: a call pays only for the attributes that it changes.
    call_id = 0  # its id on the wire; 0 for other events
    answered = False  # whether it has its reply, or an error in its place
    submitted = False  # whether it has a future, so that no thread needs to wait for it
    frame: Optional[Frame] = None  # its RESULT
    error: Optional[BaseException] = None  # the error in place of a result
    sink: Optional[Callable[[Frame], None]] = None  # takes the CHUNKs that come before the reply
    bytes = 0  # of its arguments
    deadline_s: Optional[float] = None  # seconds it may run
    runs_since: Optional[float] = None  # when it became the oldest, if it has a deadline
    stop_by = float("inf")  # when to hang up, once its CANCEL is sent
    sleeper: Optional[threading.Lock] = None  # held while a thread sleeps until it is answered
    span: Any = None  # what records it, where `rpcsys.tracing` is on

    def complete(self, frame: Optional[Frame], error: Optional[BaseException] = None) -> None:
        """Set its reply, or the error in its place."""
        if self.span is not None:
            self.span.end(frame, error)
        self.frame = frame
        self.error = error
        self.answered = True  # last: a thread that reads it takes the result at once
        if self.sleeper is not None:
            self.wake()

    def wake(self) -> None:
        """Wake the thread that sleeps until it is answered."""
        lock = self.sleeper
        if lock is not None and lock.locked():
            try:
                lock.release()
            except RuntimeError:
                pass  # another thread has released it meanwhile


class Receiver:
    """The calls under way on a `Stream`, and the reading of their replies. For any number of threads."""

    def __init__(self, stream: Stream, peer: str) -> None:
        self._stream = stream
        self._peer = peer
        self.lock = stream.new_lock()  # the read lock
        self.pending: Dict[int, PendingCall] = {}  # the calls under way by id, the oldest first
        self.bytes_under_way = 0  # of their arguments
        self.errors: List[RpcsysError] = []  # the error that ended the session
        self.on_log: OnLog = lambda frame, skip: None
        self.on_streams: Callable[[Frame], object] = lambda frame: None  # takes a CHUNK of no call
        self.listening = False  # whether LOG frames are to be read though no call is under way
        self.sleepers: Deque[PendingCall] = deque()  # the calls whose threads wait for the one that reads
        self.reads = 0  # how many times a thread began to wait
        self._stopping: Dict[int, PendingCall] = {}  # the calls that the device must stop
        self._end_until = 0.0  # the end of the session may follow the end of a stopped call, until then
        self._look_at = 0.0
        stream.tick(TICK_S)

    # -------------------------------------------------------------- calls under way

    def forget(self, call: PendingCall) -> bool:
        """Remove a call: a later reply to it is dropped. False if its reply has arrived."""
        if self.pending.pop(call.call_id, None) is None:
            return False
        self.bytes_under_way -= call.bytes
        self._stopping.pop(call.call_id, None)
        return True

    def stop(self, call: PendingCall) -> bool:
        """`forget` a call that the device must stop. False if its reply has arrived.

        If the call runs, the device must answer it within `GRACE_S` of `sends_cancel`. An upload, the only call without
        a future that is stopped, stays open while other calls run.
        """
        if call.submitted and self.oldest() is call:
            self._stopping[call.call_id] = call  # first: its reply may arrive meanwhile
        if self.pending.pop(call.call_id, None) is None:
            self._stopping.pop(call.call_id, None)
            return False
        self.bytes_under_way -= call.bytes
        return True

    def sends_cancel(self, call: PendingCall) -> None:
        """Start the time that the device has to answer a stopped call: its CANCEL is sent next."""
        call.stop_by = time.monotonic() + GRACE_S

    def was_not_sent(self, call: PendingCall) -> None:
        """Expect no answer to a stopped call, which was still held."""
        self._stopping.pop(call.call_id, None)

    def await_stop(self, call: PendingCall) -> None:
        """Wait for the answer to a running call that the device was sent a CANCEL for; hang up without one."""
        self.sends_cancel(call)
        self._stopping[call.call_id] = call
        self.wait(call)
        self._stopping.pop(call.call_id, None)

    def oldest(self) -> Optional[PendingCall]:
        """The call that runs, if any is under way."""
        try:
            return next(iter(self.pending.values()), None)
        except RuntimeError:  # another thread has just added or taken one
            return None

    @property
    def awaited(self) -> bool:
        """Whether frames are expected."""
        return bool(self.pending or self._stopping or self.listening) or time.monotonic() < self._end_until

    @property
    def broken(self) -> Optional[RpcsysError]:
        """The error that ended the session, or None."""
        return self.errors[0] if self.errors else None

    # -------------------------------------------------------------- waiting

    def wait(self, call: PendingCall, timeout: Optional[float] = None) -> None:
        """Wait until ``call`` is answered. Raises `concurrent.futures.TimeoutError` after ``timeout`` seconds."""
        self.reads += 1
        until = None if timeout is None else time.monotonic() + timeout
        while not call.answered and not self.errors:
            taken: List[bool] = []
            try:
                taken.extend(map(self.lock.acquire, _AT_ONCE))  # an interruption may follow, and still finds it
                if taken[0]:
                    frame = None if call.answered else self.read(call, until)
                    if frame is not None:
                        self.bytes_under_way -= call.bytes
                        call.complete(frame)
                    if self._stream.late is not None:
                        self._stream.raise_late()
                    if self.pending and self._stream.unread:  # so that the threads that wait for them need not read
                        self.take_what_came(from_socket=False)
                else:
                    self._sleep(call, until)
            finally:
                if taken and taken[0]:
                    self.lock.release()
                    if self.sleepers:
                        self.wake_sleepers()
            if until is not None and not call.answered and time.monotonic() >= until:
                raise concurrent.futures.TimeoutError
        if not call.answered and call.call_id:
            assert self.broken is not None
            raise self.broken

    def drain(self) -> None:
        """Take the replies that have arrived, without waiting. Does nothing while another thread reads."""
        taken: List[bool] = []
        try:
            taken.extend(map(self.lock.acquire, _AT_ONCE))
            if taken[0]:
                self.take_what_came()
        finally:
            if taken and taken[0]:
                self.lock.release()
                self.wake_sleepers()

    def wake_sleepers(self) -> None:
        """Wake the sleeping threads after a release of the read lock: one of them reads on."""
        for sleeper in list(self.sleepers):
            sleeper.wake()

    def _sleep(self, call: PendingCall, until: Optional[float]) -> None:
        """Wait until ``call`` may be answered, or the read lock may be free."""
        lock = threading.Lock()
        lock.acquire()
        call.sleeper = lock
        self.sleepers.append(call)
        try:
            # Register first, then check: the reader either wakes this thread when it stops, or has stopped.
            if call.answered or not self.lock.locked():
                return
            left = TICK_S if until is None else max(0.0, min(TICK_S, until - time.monotonic()))
            lock.acquire(timeout=left)
        finally:
            self.sleepers.remove(call)
            call.sleeper = None

    # -------------------------------------------------------------- reading, with the read lock held

    def read(self, call: PendingCall, until: Optional[float] = None) -> Optional[Frame]:
        """Read until ``call`` is answered, or until ``until``. Returns its RESULT; the caller completes the call."""
        stream, call_id = self._stream, call.call_id
        try:
            while True:
                frame = stream.receive() if until is None else self._receive_before(until)
                if frame is None:
                    self.enforce()
                elif frame.call_id != call_id or frame.kind != frames.RESULT:
                    self.dispatch(frame)
                elif self.pending.pop(call_id, None) is not None:
                    return frame
                if call.answered or self.errors or (until is not None and time.monotonic() >= until):
                    break
                if stream.late is not None:
                    stream.raise_late()
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            self._ended_by(error, call_id)
        return None

    def read_on(self, call: PendingCall, frame: Optional[Frame], error: Optional[BaseException]) -> None:
        """Handle what came in place of the RESULT of ``call``: a frame, an error, or neither. Then read on."""
        try:
            self.dispatch(frame) if frame is not None else self.enforce()
            if error is not None:
                raise error
        except BaseException as problem:  # noqa: BLE001 - Ctrl-C, too
            self._ended_by(problem, call.call_id)
        if not call.answered and not self.errors:
            result = self.read(call)
            if result is not None:
                call.complete(result)

    def take_what_came(self, *, from_socket: bool = True) -> None:
        """Dispatch the frames that have arrived, `MOST_AT_ONCE` at most; or only those read from the socket before."""
        stream, pending = self._stream, self.pending
        try:
            for _ in range(MOST_AT_ONCE):
                frame = stream.receive(DONT_WAIT) if from_socket else stream.next()
                if frame is None:
                    return
                call = pending.pop(frame.call_id, None) if frame.kind == frames.RESULT else None
                if call is None or self._stopping:
                    self.dispatch(frame, call)
                else:  # as `dispatch`, without the cost of its call
                    self.bytes_under_way -= call.bytes
                    call.complete(frame)
                if stream.late is not None:
                    stream.raise_late()
                if self.errors:
                    return
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            self._ended_by(error)

    def _receive_before(self, until: float) -> Optional[Frame]:
        """The next frame. If none has arrived, waits until ``until``, a tick at most, and returns None."""
        frame = self._stream.receive(DONT_WAIT)
        if frame is None:
            left = until - time.monotonic()
            if left > 0:
                self._stream.wait(min(left, TICK_S))
        return frame

    def _ended_by(self, error: BaseException, own: int = 0) -> None:
        """End the session for an error of its reading. Raises an error that the device did not cause.

        An interruption ends the session only in the middle of a frame. The reply to the call ``own`` may be lost.
        """
        if isinstance(error, Ended):
            self.lost(error)
        elif isinstance(error, ProtocolError):
            self.break_(SessionLost(f"{self._peer} sent what is no rpcsys/1 frame ({error}); the session is closed"))
        else:
            if self._stream.torn and (not own or own in self.pending):
                self.interrupted()
            raise error

    def dispatch(self, frame: Frame, call: Optional[PendingCall] = None) -> None:
        """Complete the call of a frame, or handle a frame of another kind. Raises `ProtocolError`."""
        if frame.kind == frames.RESULT or frame.kind == frames.PONG:
            call = call or self.pending.pop(frame.call_id, None)
            if call is not None:
                self.bytes_under_way -= call.bytes
                call.complete(frame)
                if self._stopping:
                    self._stopping.pop(frame.call_id, None)
                return
            self._stopping.pop(frame.call_id, None)
        else:
            self._take(frame)
        self.enforce()  # frames without a call may arrive without end

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.ERROR:
            error = answers.error_of(frame)
            if not frame.call_id:
                self.break_(error)
                return
            call = self.pending.get(frame.call_id)
            if call is not None and self.forget(call):
                call.complete(None, error)
            elif self._stopping.pop(frame.call_id, None) is not None:
                self._end_until = time.monotonic() + GRACE_S
        elif kind == frames.CHUNK:
            call = self.pending.get(frame.call_id)
            if call is not None and call.sink is not None:
                self._stream.settle()  # the end of a download shows that a piece was lost
                call.sink(frame)
            elif call is None:
                self.on_streams(frame)
        elif kind == frames.LOG:
            self._stream.settle()
            self.on_log(frame, self._skip_log)
        elif kind == frames.GOODBYE:
            reason = printable(str(frame.get("reason", "no reason given"))[: answers.MAX_TEXT])
            self.break_(SessionLost(f"{self._peer} ended the session: {reason}"))

    def _skip_log(self) -> int:
        """Drop the LOG frames that have arrived. Returns their approximate number of lines."""
        skipped, heads = self._stream.skip(frames.LOG)
        return skipped + heads.count(b"\\n")

    def enforce(self) -> None:
        """Hang up on a device that ignores a deadline or a cancellation. Threads that wait call it regularly."""
        self.keep_alive()
        now = time.monotonic()
        call = self.oldest()
        if call is not None and call.deadline_s is not None:
            if call.runs_since is None:
                call.runs_since = now
            elif now >= call.runs_since + call.deadline_s + GRACE_S and self.forget(call):
                late = f"no reply {GRACE_S:g} s after the call's deadline of {call.deadline_s:g} s"
                why = late + "; hung up, and the session with it"
                call.complete(None, DeadlineExceeded(why))
                self._give_up(why)
        if self._stopping and any(now >= each.stop_by for each in list(self._stopping.values())):
            self._give_up(f"the device did not stop a cancelled call within {GRACE_S:g} s; hung up")

    def keep_alive(self) -> None:
        """Keep the connection to a device that reads nothing, as long as its system answers."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + KEEPALIVE_S
            keep_alive(self._stream.socket)

    # -------------------------------------------------------------- the end

    def interrupted(self) -> None:
        """End the session after Ctrl-C in the middle of a frame, of which a part may be lost."""
        self.break_(SessionLost("the session was interrupted in the middle of a frame; request a device again"))
        self.hang_up()

    def _give_up(self, why: str) -> None:
        self.break_(SessionLost(why + "; request a device again"))
        self.hang_up()

    def lost(self, end: Ended) -> RpcsysError:
        """End the session after the end of its connection. Returns the error for users."""
        said = self._stream.last_frame()
        if said is not None:
            return self.break_(answers.error_of(said))
        why = f"the session with {self._peer} is gone ({end}): its process or the board died, or the server stopped"
        return self.break_(SessionLost(why + "; request a device again"))

    def break_(self, error: RpcsysError) -> RpcsysError:
        """End every call with ``error``. The first error counts."""
        if not self.errors:
            self.errors.append(error)
        self._stopping.clear()
        while self.pending:
            with contextlib.suppress(KeyError):  # its reply has just been taken
                self.pending.popitem()[1].complete(None, self.errors[0])
        return self.errors[0]

    def hang_up(self) -> None:
        """End the connection: a thread that reads wakes up, and the device ends its calls."""
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)
