"""The second thread of a session: in a call that lasts `TAKEOVER_S` it takes over the reading and ``incoming.lock``.

Before that the main thread reads a call, runs it and answers alone, which is the fastest way.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from typing import Any, Callable, NamedTuple

from rpcsys.errors import ProtocolError
from rpcsys.module.module import running_call
from rpcsys.server.sandbox.limits import longer
from rpcsys.server.session.incoming import Incoming
from rpcsys.server.session.outgoing import Outgoing, error_frame
from rpcsys.stream import DONT_WAIT, CallLoop, Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.head import ParsedHead

TAKEOVER_S = 0.02  # after this long a call is watched
#: Between two frames sent to a client whose data is not read: unread data hides its end, a failed send shows it.
KEEPALIVE_S = 5.0
NO_CALL = Frame(frames.CALL, 0, 0, 0, ParsedHead({}, ()), ())
#: Seconds that a call has to end after it was stopped by its own means; a client hangs up after two.
STOP_S = 1.0
STOPPED = "; it was stopped, and the session goes on"  # the end of the message of a call that was
#: Bytes that one key of AES-GCM may encrypt, with some room: RFC 8446, section 5.5, has 388 GB.
MOST_MOVED = 256 << 30
#: Bytes beyond these for a session that is never quiet: it has this much time to end between two calls.
_MORE_MOVED = 32 << 30
TOO_MUCH = "256 GiB have gone one way, and one key encrypts no more"
_QUIET_POLLS = 50  # polls without any call before the watcher goes to sleep: one second
_KEY_POLLS = 5  # polls without a call or a byte before a session ends for its key's sake: what has come is answered
_LONGEST_SLEEP_S = 3600.0  # the system's clocks limit a single wait


class Stopping(NamedTuple):
    """The running call, by its ``turn``, is to end: the ERROR in place of its result, and when its process is ended."""

    turn: int
    kind: str
    message: str
    kill_at: float


class Watcher:
    """During a slow call: answers PING, reads ahead, and enforces CANCEL, deadlines and the session's time limit.

    It ends a call by the functions in ``stops``, if the call has added any (`running_call`). Otherwise it ends the
    process: nothing else stops native code. Native code that holds the GIL stops the watcher, too; then the supervisor
    ends the session at its limit or when the client is gone.

    The two threads share a ``loop``, of `Stream.call_loop`. When a call begins, the main thread sets its ``call``, adds
    one to ``turn``, and wakes the watcher if it is ``asleep``. When the call ends, before its answer is sent, it adds
    one to ``turn``, and nudges the watcher if it is ``reading``.
    """

    def __init__(
        self,
        stream: Stream, incoming: Incoming, out: Outgoing,
        end_process: Callable[..., None], renewal: Callable[[], dict[str, Any] | None],
    ) -> None:  # fmt: skip
        self._stream = stream
        self._incoming = incoming
        self._out = out
        self._end_process = end_process  # takes an outcome; and the kind and text of an error for the client, if any
        self._renewal = renewal
        self._began = time.monotonic()
        self.loop: Any = CallLoop(stream, NO_CALL)
        self.stops: list[Callable[[], None]] = []
        self._stopping: Stopping | None = None
        self._woken = threading.Event()
        self.wake = self._woken.set  # a call has begun
        self.check_others: Callable[[], bool] = bool  # checks the calls of other threads; whether any is under way
        self._limit_at = math.inf
        self._limit_s = 0.0
        self.longest_s: float | None = None  # seconds that a session of the key may last
        self._keepalive_at = 0.0

    def start(self) -> None:
        """Begin to watch the calls of this thread."""
        running_call.stops = self.stops
        self._wakeup, self._nudge = os.pipe()
        threading.Thread(target=self._run, name="rpcsys-watcher", daemon=True).start()

    def limit(self, seconds: float) -> None:
        """End the session ``seconds`` from now; the lowest of several limits counts."""
        at = time.monotonic() + seconds
        if at < self._limit_at:
            self._limit_at, self._limit_s = at, seconds
            self.wake()

    def nudge(self) -> None:
        """Stop the watcher's reading: the call has ended."""
        os.write(self._nudge, b".")

    def stopped(self) -> tuple[str, str] | None:
        """For a call that raised: the kind and text of its ERROR if it was to end. Called before its turn ends."""
        stopping = self._stopping
        if stopping is None or stopping.turn != self.loop.turn:
            return None
        return stopping.kind, stopping.message + STOPPED

    def _run(self) -> None:
        last, last_moved, quiet = self.loop.turn, self._stream.moved, 0
        while True:
            time.sleep(TAKEOVER_S)
            self._check_limit()
            turn, moved = self.loop.turn, self._stream.moved
            others = self.check_others()
            if not turn & 1 and not others:
                self._check_key(moved, quiet)
            if turn != last or (others and not turn & 1):
                last, quiet = turn, 0
            elif turn & 1:  # a call that streams moves bytes, and is watched all the same
                self._take_over(turn)
            elif moved != last_moved:
                quiet = 0
            else:
                quiet = (quiet + 1) % _QUIET_POLLS
                if not quiet:
                    self._sleep(turn)
            last_moved = moved

    def _sleep(self, turn: int) -> None:
        """Sleep until a call begins or the limit is near. ``asleep`` is set before ``turn`` is read: none is missed."""
        self.loop.asleep = True
        if self.loop.turn == turn:
            self._woken.wait(max(0.0, min(self._limit_at - time.monotonic(), _LONGEST_SLEEP_S)))
        self._woken.clear()
        self.loop.asleep = False

    def _take_over(self, turn: int) -> None:
        limit_s = self.loop.call.deadline_ms / 1000 or math.inf
        deadline = time.monotonic() - TAKEOVER_S + limit_s
        if not self._incoming.lock.acquire(timeout=TAKEOVER_S):
            return  # the call has just ended, and the main thread reads the next one
        self.loop.reading = True
        try:
            self._out.flush()  # a call known as quick may be slow this time
            while self.loop.turn == turn:
                self._check_limit()
                others = self.check_others()
                if time.monotonic() >= deadline:
                    deadline = math.inf
                    self._stop_call("DeadlineExceeded", f"the call was not done in its {limit_s:g} s")
                again = time.monotonic() + TAKEOVER_S if others else math.inf
                if self._readable(min(deadline, self._insist(), again)) and self.loop.turn == turn:
                    self._read()
        except Ended:
            self._end_process("lost")
        finally:
            self.loop.reading = False
            self._incoming.lock.release()
            poll = select.poll()
            poll.register(self._wakeup, select.POLLIN)
            while poll.poll(0):
                os.read(self._wakeup, 64)

    def _readable(self, deadline: float) -> bool:
        """Wait until the client sends, the call ends, or a limit is near."""
        wait_s = min(1.0, max(0.0, min(deadline, self._limit_at) - time.monotonic()) + 0.001)
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if self._incoming.has_room():
            if self._stream.held:
                return True
            poll.register(self._stream, select.POLLIN)
        else:
            self._keep_alive()
        return any(fd != self._wakeup for fd, _ in poll.poll(wait_s * 1000))

    def _keep_alive(self) -> None:
        """Send a PONG that answers nothing, unless unsent data waits: that alone already shows the client's end."""
        now = time.monotonic()
        if now < self._keepalive_at or not self._stream.wait(0, read=False, write=True) & select.POLLOUT:
            return
        self._keepalive_at = now + KEEPALIVE_S
        self._out.try_send(frames.pack(frames.PONG, 0))

    def _read(self) -> None:
        try:
            while self._incoming.has_room() and (frame := self._stream.receive(DONT_WAIT)) is not None:
                if frame.kind == frames.CANCEL and frame.call_id == self.loop.call.call_id and self.loop.turn & 1:
                    self._stop_call("Cancelled", "the call was cancelled", grace_s(frame))
                elif frame.kind == frames.GOODBYE:
                    self._end_process("closed")
                else:
                    self._incoming.sort(frame)
        except Ended:
            self._end_process("lost")
        except ProtocolError as error:
            self._end_process("lost", "ProtocolError", str(error))

    def _stop_call(self, kind: str, message: str, grace_s: float = 0.0) -> None:
        """Have the running call end: by its own means, if it has any; or end its process, after ``grace_s``."""
        turn, earlier = self.loop.turn, self._stopping
        kill_at = time.monotonic() + (max(grace_s, STOP_S) if self.stops else grace_s)
        if earlier is None or earlier.turn != turn or kill_at < earlier.kill_at:
            self._stopping = Stopping(turn, kind, message, kill_at)

    def _insist(self) -> float:
        """Stop a call that is to end, again and again: it may have begun another part. Returns when to do so next."""
        stopping = self._stopping
        if stopping is None or stopping.turn != self.loop.turn:
            return math.inf
        for stop in tuple(self.stops):
            stop()
        now = time.monotonic()
        if now >= stopping.kill_at:
            self._end_call(stopping.kind, stopping.message)
        return now + TAKEOVER_S if self.stops else stopping.kill_at

    def _end_call(self, kind: str, message: str) -> None:
        """End a running call with its process: only this always works."""
        text = message + "; its process was ended, and the session with it"
        with contextlib.suppress(Ended):  # the client is gone
            self._out.send(error_frame(self.loop.call.call_id, kind, text), wait_s=1.0)
        self._end_process("ended", "SessionLost", text)

    def _check_key(self, moved: int, quiet: int) -> None:
        """End a session between two calls once its key has encrypted enough: nothing changes keys in a session.

        A call that has arrived, and a result that is being sent, are not lost: the session is quiet first, unless
        it never is.
        """
        if moved <= MOST_MOVED or (quiet < _KEY_POLLS and moved <= MOST_MOVED + _MORE_MOVED):
            return
        if self._out.lock.acquire(timeout=TAKEOVER_S):
            self._out.lock.release()
            self._end_process("ended", "SessionLost", f"the session is over: {TOO_MUCH}; open another one")

    def _check_limit(self) -> None:
        if time.monotonic() < self._limit_at:
            return
        renewed = self._renewal()  # of the lease: read only when the limit is reached
        if renewed is not None:
            self._limit_at = math.inf if renewed["until"] is None else renewed["until"]
            self._limit_s = round(self._limit_at - self._began, 0)
        if time.monotonic() >= self._limit_at:
            text = f"the session's time limit of {self._limit_s:g} s is over; {longer(self._limit_s, self.longest_s)}"
            self._end_process("timeout", "SessionTimeout", text)


def grace_s(cancel: Frame) -> float:
    """The seconds that a CANCEL leaves a call to end by itself; infinity for a call that is not ended by force."""
    given = cancel.parsed.head.get("grace_s", 0)
    if given is None:
        return math.inf
    return float(min(given, _LONGEST_SLEEP_S)) if type(given) in (int, float) and given >= 0 else 0.0
