"""Who reads a session and who waits: the calls under way and their replies.

There is no reader thread: whoever waits for a reply reads, and hands the replies of others to them.
The rules of this file:

- Frames are read under the read lock, by one thread at a time. A thread that waits for a reply while
  another one reads sleeps on a lock of its own, until its reply is there or the reader leaves.
- Who holds the read lock never waits for the send lock: its holder may wait for somebody to read.
- The oldest call under way is the one that runs: calls run in the order they are sent. Its deadline
  counts from when it became the oldest. A device that keeps silent long after a deadline, or after it
  was told to stop what runs, is hung up on: its supervisor then ends what does not let go.
- Once the stream is broken every call, present and future, ends with the same error.
"""

from __future__ import annotations

import concurrent.futures
import socket
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, Optional

from rpcsys.client import faults
from rpcsys.client.log import Flow
from rpcsys.client.pending import Pending, settle, wake
from rpcsys.errors import DeadlineExceeded, ProtocolError, RpcsysError, SessionLost, printable
from rpcsys.link import LOOK_S, be_patient
from rpcsys.stream import DONT_WAIT, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame

#: How often a blocked receive comes back to look at deadlines.
TICK_S = 1.0
#: What the device is given to say that a call is overdue, or stopped, before it is hung up on.
GRACE_S = 2.0
#: Frames that are taken at a time by who does not wait: more than any window of calls, and an endless flood keeps nobody.
MOST_AT_ONCE = 100_000


class Replies:
    """The calls under way on a `Stream`, and the reading of what answers them. For any number of threads.

    Attributes
    ----------
    pending : the calls under way by number, the oldest first
    bytes_under_way : bytes of their arguments
    broken : why nothing works any more, or None
    on_log : what is called with each LOG frame
    listening : whether these are to be read though no call is under way
    sleepers : the calls whose threads wait for the one that reads
    last_read : when somebody stopped reading, by `time.monotonic`; kept while ``watched``
    """

    def __init__(self, stream: Stream, peer: str, on_log: Callable[[Frame], None]) -> None:
        self._stream = stream
        self._peer = peer
        self.on_log = [on_log]
        self._printed = Flow()
        self.listening = False
        self.sleepers: Deque[Pending] = deque()
        self._stopping: Dict[int, float] = {}
        self.read_lock = threading.Lock()
        self.pending: Dict[int, Pending] = {}
        self.bytes_under_way = 0
        self.broken: Optional[RpcsysError] = None
        self.watched = False
        self.last_read = 0.0
        self._look_at = 0.0
        stream.tick(TICK_S)

    # -------------------------------------------------------------- calls under way

    def expect(self, pending: Pending) -> None:
        """A call is about to be sent."""
        if pending.deadline_s is not None and not self.pending:
            pending.runs_since = time.monotonic()
        self.bytes_under_way += pending.bytes
        self.pending[pending.call_id] = pending

    def forget(self, pending: Pending) -> bool:
        """Nobody waits for this call any more: its reply, if it comes, is dropped. False if it has come."""
        if self.pending.pop(pending.call_id, None) is None:
            return False
        self.bytes_under_way -= pending.bytes
        return True

    def stop(self, pending: Pending) -> bool:
        """`forget` a call that the device is told to stop; if that runs, the device must answer in `GRACE_S`.

        An upload, the one kind that is stopped and has no future, lies open while other calls run.
        """
        runs = self.oldest() is pending and pending.future is not None
        if not self.forget(pending):
            return False
        if runs:
            self._stopping[pending.call_id] = time.monotonic() + GRACE_S
        return True

    def oldest(self) -> Optional[Pending]:
        """The call that runs, if any is under way."""
        try:
            return next(iter(self.pending.values()), None)
        except RuntimeError:  # another thread has just added or taken one
            return None

    @property
    def awaited(self) -> bool:
        """Whether anything is to come."""
        return bool(self.pending or self._stopping or self.listening)

    # -------------------------------------------------------------- waiting

    def drive(self, pending: Pending, timeout: Optional[float]) -> None:
        """Read until ``pending`` is done. Raises `concurrent.futures.TimeoutError` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not pending.done and self.broken is None:
            if self.read_lock.acquire(False):
                try:
                    self._read_until(pending, deadline)
                except BaseException:
                    self.interrupted()
                    raise
                finally:
                    self.leave()
            else:
                self._sleep(pending, deadline)
            if deadline is not None and not pending.done and time.monotonic() >= deadline:
                raise concurrent.futures.TimeoutError

    def drain(self) -> None:
        """Take the replies that have arrived, without waiting; nothing where another thread reads."""
        if not self.read_lock.acquire(False):
            return
        try:
            self.take_what_came()
        except BaseException:
            self.interrupted()
            raise
        finally:
            self.leave()

    def leave(self) -> None:
        """Stop reading, and let those who sleep look again: one of them reads on."""
        self.read_lock.release()
        if self.watched or self.sleepers:
            self.left()

    def left(self) -> None:
        """The read lock was let go of while somebody is ``watched`` for it, or sleeps."""
        if self.watched:
            self.last_read = time.monotonic()
        for sleeper in list(self.sleepers):
            wake(sleeper)

    def _sleep(self, pending: Pending, deadline: Optional[float]) -> None:
        """Wait until ``pending`` may be done or the reader may have left."""
        lock = threading.Lock()
        lock.acquire()
        pending.wake = lock
        self.sleepers.append(pending)
        try:
            # Registered first, looked second: the reader either sees us when it leaves, or has left.
            if pending.done or not self.read_lock.locked():
                return
            left = TICK_S if deadline is None else max(0.0, min(TICK_S, deadline - time.monotonic()))
            lock.acquire(timeout=left)
        finally:
            self.sleepers.remove(pending)
            pending.wake = None

    # -------------------------------------------------------------- reading, with the read lock held

    def take_what_came(self) -> None:
        """Read and hand out all that is here, up to `MOST_AT_ONCE` frames."""
        for _ in range(MOST_AT_ONCE):
            frame = self.receive(DONT_WAIT)
            if frame is None:
                return
            self.dispatch(frame)
            if self.broken is not None:
                return

    def _read_until(self, pending: Pending, deadline: Optional[float]) -> None:
        while not pending.done and self.broken is None:
            if deadline is None:
                frame = self.receive()
            else:
                frame = self.receive(DONT_WAIT)
                if frame is None and not pending.done:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return
                    self._stream.wait(min(left, TICK_S))
            if frame is None:
                self.enforce()
            else:
                self.dispatch(frame)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        self._take_the_rest()

    def _take_the_rest(self) -> None:
        """Hand out what came in the same read: its waiters then need not read at all."""
        try:
            reader = self._stream.reader
            while reader.unread:
                frame = reader.next()
                if frame is None:
                    return
                self.dispatch(frame)
        except ProtocolError as error:
            self.break_(self.nonsense(error))

    def receive(self, flags: int = 0) -> Optional[Frame]:
        """The next frame; None when the tick went by, or the stream is broken now."""
        try:
            return self._stream.receive(flags)
        except Ended as end:
            self.break_(self.lost(end))
        except ProtocolError as error:
            self.break_(self.nonsense(error))
        return None

    def dispatch(self, frame: Frame) -> None:
        """Give a frame to whom it belongs."""
        if frame.kind == frames.RESULT or frame.kind == frames.PONG:
            pending = self.pending.pop(frame.call_id, None)
            if pending is not None:
                self.bytes_under_way -= pending.bytes
                self._complete(pending, frame)
            else:
                self._stopping.pop(frame.call_id, None)
                self.enforce()
            return
        try:
            self._take(frame)
            self.enforce()  # there may be no end of frames that answer nobody
        except ProtocolError as error:
            self.break_(self.nonsense(error))

    def _take(self, frame: Frame) -> None:
        kind = frame.kind
        if kind == frames.ERROR:
            error = faults.error_of(frame)
            if not frame.call_id:
                self.break_(error)
                return
            pending = self._answered(frame)
            if pending is not None:
                self._complete(pending, None, error)
        elif kind == frames.CHUNK:
            pending = self.pending.get(frame.call_id)
            if pending is not None and pending.sink is not None:
                pending.sink(frame)
        elif kind == frames.LOG:
            for taken in self._printed.taken(frame, time.monotonic(), self._skip):
                for listener in self.on_log:
                    listener(taken)
        elif kind == frames.GOODBYE:
            self.break_(
                SessionLost(
                    "{} ended the session: {}".format(
                        self._peer, printable(str(frame.get("reason", "no reason given"))[: faults.MAX_TEXT])
                    )
                )
            )

    def _skip(self) -> int:
        """Drop the LOG frames that are here already; how many lines that were, about."""
        skipped, heads = self._stream.reader.skip(frames.LOG)
        return skipped + heads.count(b"\\n")

    def _answered(self, frame: Frame) -> Optional[Pending]:
        """The call that a reply belongs to; None if nobody waits for it any more."""
        pending = self.pending.pop(frame.call_id, None)
        if pending is not None:
            self.bytes_under_way -= pending.bytes
        elif self._stopping:
            self._stopping.pop(frame.call_id, None)
        return pending

    def _complete(
        self, pending: Pending, frame: Optional[Frame], error: Optional[BaseException] = None
    ) -> None:
        pending.frame = frame
        if error is not None:
            pending.error = error
        future = pending.future
        if future is not None:
            pending.future = (
                None  # no circle: what is done goes when its user drops it, not when a collector finds it
            )
            settle(future, pending)
        pending.done = True  # last: whoever sees it takes the result at once
        if pending.wake is not None:
            wake(pending)

    def enforce(self) -> None:
        """Hang up on a device that does not end what it was to end; whoever waits calls it now and then."""
        self.be_patient()
        now = time.monotonic()
        call = self.oldest()
        if call is not None and call.deadline_s is not None:
            if call.runs_since is None:
                call.runs_since = now
            elif now >= call.runs_since + call.deadline_s + GRACE_S and self.forget(call):
                why = f"no reply {GRACE_S:g} s after the call's deadline of {call.deadline_s:g} s; hung up, and the session with it"
                self._complete(call, None, DeadlineExceeded(why))
                self.give_up(why)
        if self._stopping and now >= min(self._stopping.values()):
            self.give_up(f"the device did not stop a cancelled call within {GRACE_S:g} s; hung up")

    def be_patient(self) -> None:
        """See that a device that takes nothing is not taken for dead while it answers; whoever waits calls it now and then."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            be_patient(self._stream.socket)

    # -------------------------------------------------------------- the end

    def interrupted(self) -> None:
        """Ctrl-C while this thread read: what it had received may be lost, so nothing sensible can follow."""
        self.break_(SessionLost("the session was interrupted while it waited for a reply; open a new one"))
        self.hang_up()

    def give_up(self, why: str) -> None:
        """End the session from this side."""
        self.break_(SessionLost(why + "; request a device again"))
        self.hang_up()

    def lost(self, end: Ended) -> RpcsysError:
        """What a user is told of the end of a connection."""
        return SessionLost(
            f"the session with {self._peer} is gone ({end}): its process or the board died, or the server stopped; "
            "request a device again"
        )

    def nonsense(self, error: ProtocolError) -> RpcsysError:
        """What a user is told of a device that breaks the rules of the wire."""
        return SessionLost(f"{self._peer} sent what is no rpcsys/1 frame ({error}); the session is closed")

    def break_(self, error: RpcsysError) -> RpcsysError:
        """Nothing more comes or goes: every call ends with ``error`` (the first one given counts)."""
        if self.broken is None:
            self.broken = error
        self._stopping.clear()
        while self.pending:
            try:
                _, pending = self.pending.popitem()
            except KeyError:
                break
            self._complete(pending, None, self.broken)
        return self.broken

    def hang_up(self) -> None:
        """End the connection: a thread that reads wakes up, and the device ends what it runs."""
        try:
            self._stream.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
