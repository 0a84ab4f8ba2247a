"""Sends the calls of one session. `Receiver` reads the replies; `rpcsys.client.calls` has the order of locks.

Submitted calls are sent in batches: at once while few are under way, else when `BATCH` of them are held, when another
frame is sent, when a thread waits, or by the flusher. That also reads for futures without a waiting thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from rpcsys.client.calls.flusher import Flusher
from rpcsys.client.calls.receiver import GRACE_S, TICK_S, OnLog, PendingCall, Receiver
from rpcsys.errors import Cancelled, DeadlineExceeded, RpcsysError, SessionClosed, one_line
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame, FrameTemplate, HeadCache

Buffers = Sequence[Buffer]
#: Calls under way up to which another one is sent at once: the device is idle, or soon will be.
FEW = 2
#: Calls in a batch. They share one system call and one wake-up of the device; more would save little.
BATCH = 16
#: A call of more bytes is sent at once, without a copy. A held call is copied, because a user may reuse an array once
#: `submit` returns.
SMALL = 4096
#: Seconds that an interrupted call has to end by itself, before the device ends its process.
STOP_S = 1.0
_log = logging.getLogger("rpcsys.session")


class Channel:
    """Calls and their replies over a `Stream`. For any number of threads."""

    traced = False  # whether each call has a span (`rpcsys.tracing`)

    def __init__(self, stream: Stream, peer: str, window: Dict[str, Any]) -> None:
        self._stream = stream
        self._peer = peer
        self._receiver = Receiver(stream, peer)
        self._window_calls: int = window.get("calls", 64)
        self._window_bytes: int = window.get("bytes", 64 << 20)
        self._turn = threading.Lock()  # held by the call that waits for space in the window; others wait behind it
        self._send_lock = stream.new_lock()
        self._held: Dict[int, bytes] = {}  # calls that wait to be sent in a batch, by id
        self._freed: Deque[int] = deque()
        self._handed_over = False
        self._on_full = functools.partial(self._while_full, self._receiver.drain)
        self._flusher = Flusher(self._receiver, self._held, self.flush)
        self.futures_lock = threading.RLock()
        self.condition = threading.Condition(self.futures_lock)  # of all futures of this session

    def exchange(self, templates: HeadCache) -> Any:
        """What makes short calls on this channel, with the heads of ``templates``; None where Python makes them all."""
        receiver = self._receiver
        return self._stream.exchange(
            send_lock=self._send_lock,
            read_lock=receiver.lock,
            templates=templates,
            idle=(receiver.pending, self._held, self._freed, receiver.errors),
            sleepers=receiver.sleepers,
            wake=receiver.wake_sleepers,
            on_full=functools.partial(self._while_full, receiver.take_what_came),
            take_over=self._take_over,
        )

    # -------------------------------------------------------------- calls

    def call(self, template: FrameTemplate, buffers: Buffers = (), deadline_s: Optional[float] = None) -> Frame:
        """Send a CALL and wait for its RESULT.

        Raises what the call raised on the device, `DeadlineExceeded`, or a `SessionError`.
        """
        call = PendingCall()
        self.start(call, template, buffers, deadline_s)
        return self.finish(call)

    def _take_over(self, call_id: int, frame: Optional[Frame], error: Optional[BaseException], sent: bool) -> Frame:
        """Finish a call of the exchange, which has the read lock, and until the call is ``sent`` the send lock."""
        receiver = self._receiver
        call = PendingCall()
        try:
            try:
                call.call_id = call_id
                receiver.pending[call_id] = call
                if error is not None and not sent:
                    try:
                        error = self._failed(error, receiver.take_what_came)
                    finally:
                        self._send_lock.release()
                receiver.read_on(call, frame, error)
            finally:
                receiver.lock.release()
                receiver.wake_sleepers()
        except BaseException as problem:  # noqa: BLE001 - Ctrl-C, too
            raise self._interrupted(call, problem) from None
        return self.finish(call)

    def start(
        self, call: PendingCall, template: FrameTemplate, buffers: Buffers = (), deadline_s: Optional[float] = None
    ) -> None:
        """Send a CALL, at once or, if it has a future, in a batch. Waits only while the device's window is full."""
        try:
            with self._send_lock:
                started = not self._turn.locked() and self._start(call, template, buffers, deadline_s)
            if not started:
                self._start_in_turn(call, template, buffers, deadline_s)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            raise self._interrupted(call, error) from None

    def _start_in_turn(self, *call: Any) -> None:
        """`_start` a call once the window has space for it. The send lock is free meanwhile, for `cancel`."""
        receiver = self._receiver
        with self._turn:
            while True:
                with self._send_lock:
                    if self._start(*call):
                        return
                    if self._held:
                        self._send([])
                oldest = receiver.oldest()
                if oldest is not None:
                    with contextlib.suppress(concurrent.futures.TimeoutError):  # a cancelled call has no reply
                        receiver.wait(oldest, TICK_S)
                    receiver.drain()  # all other replies, so that the next calls form a batch again

    def _start(self, call: PendingCall, template: FrameTemplate, buffers: Buffers, deadline_s: Optional[float]) -> bool:
        """Send a CALL, or hold it for a batch; False while the window has no space. The caller has the send lock."""
        receiver = self._receiver
        size = call.bytes = template.body_bytes
        under_way = len(receiver.pending)
        full = under_way >= self._window_calls or receiver.bytes_under_way + size > self._window_bytes
        if full and receiver.pending:
            return False
        call_id = self._stream.next_id()
        pieces = template.pieces(call_id, buffers, _milliseconds(deadline_s) if deadline_s is not None else 0)
        if deadline_s is not None:
            call.deadline_s = deadline_s
            call.runs_since = None if receiver.pending else time.monotonic()
        call.call_id = call_id
        receiver.bytes_under_way += size
        receiver.pending[call_id] = call
        if receiver.errors:
            receiver.break_(receiver.errors[0])  # this call, too: nothing may wait for it
        if self._freed:
            # Held apart from the call: it is sent before it, and even if the call is cancelled.
            self._held[-call_id] = b"".join(self._free_frame())
        if under_way <= FEW or not call.submitted or size > SMALL:
            self._send(pieces)
        else:
            self._held[call_id] = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if len(self._held) >= BATCH:
                self._send([])
            elif not self._flusher.looking:
                self._flusher.wake()
        if call.submitted and self._flusher.dozing:
            self._flusher.start()
        return True

    def start_rows(self, calls: Sequence[PendingCall], encode: Callable[[], Optional[Tuple[bytes, int]]]) -> bool:
        """Send CALLs without arrays together. ``encode`` gives their frames and the first one's id, or None.

        False, and nothing is sent, if there are none, or if something else is to be sent before, or the device's window
        has no space for all of them.
        """
        receiver = self._receiver
        with self._send_lock:
            space = self._window_calls - len(receiver.pending)
            if space < len(calls) or self._held or self._freed or self._turn.locked():
                return False
            encoded = encode()
            if encoded is None:
                return False
            frame, call_id = encoded
            for call in calls:
                call.call_id = call_id
                receiver.pending[call_id] = call
                call_id += 1
            self._send([frame])
        return True

    def drop(self, calls: Iterable[PendingCall]) -> None:
        """Have the device drop calls that wait, and stop one that can be stopped. Their results are lost.

        A finaliser may call this in any place: while the send lock is held, the device runs the calls.
        """
        dropped = [call.call_id for call in calls if self._receiver.forget(call)]
        if not dropped or not self._send_lock.acquire(False):
            return
        try:
            head, _ = frames.encode_head({"grace_s": None})
            sent = [call_id for call_id in dropped if self._held.pop(call_id, None) is None]
            with contextlib.suppress(RpcsysError):  # then the session has ended, and with it the calls
                self._send([b"".join(frames.pack(frames.CANCEL, call_id, head)[0] for call_id in sent)])
        finally:
            self._send_lock.release()

    def wait(self, call: PendingCall, timeout: Optional[float] = None) -> None:
        """Wait until a call is answered. Raises `concurrent.futures.TimeoutError` after ``timeout`` seconds."""
        try:
            if self._held:
                self.flush()
            self._receiver.wait(call, timeout)
        except concurrent.futures.TimeoutError:
            raise
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            raise self._interrupted(call, error) from None

    def finish(self, call: PendingCall) -> Frame:
        """Wait for a call's RESULT, or raise its error."""
        if not call.answered:
            try:
                self._receiver.wait(call)
            except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
                raise self._interrupted(call, error) from None
        if call.frame is not None:
            return call.frame
        problem, call.error = call.error, None  # no reference cycle of error, traceback and call
        assert problem is not None
        try:
            raise problem
        finally:
            del problem

    def send(self, kind: int, call_id: int, fields: Dict[str, Any], buffers: Buffers = (), flags: int = 0) -> None:
        """Send a frame other than CALL: CHUNK, CANCEL, PING, GOODBYE."""
        head, more = frames.encode_head(fields) if fields else (b"", [])
        with self._send_lock:
            self._send(frames.pack(kind, call_id, head, [*more, *buffers], flags=flags))

    def new_id(self) -> int:
        """An id that no call has, for byte streams."""
        with self._send_lock:
            return self._stream.next_id()

    def ping(self, deadline_s: float) -> None:
        """Wait for a PONG, which comes while a call runs, too. Raises `DeadlineExceeded` or a `SessionError`."""
        call = PendingCall()
        with self._send_lock:
            call.call_id = self._stream.next_id()
            self._receiver.pending[call.call_id] = call
            self._send(frames.pack(frames.PING, call.call_id))
        try:
            self._receiver.wait(call, deadline_s)
        except concurrent.futures.TimeoutError:
            self._receiver.forget(call)
            raise DeadlineExceeded(
                f"no sign of life from {self._peer} within {deadline_s:g} s; the device may hang: close the session"
            ) from None
        except BaseException:
            self._receiver.forget(call)
            raise
        if call.error is not None:
            raise call.error

    def cancel(self, call: PendingCall) -> bool:
        """Have the device drop a call that waits, or stop one that runs, if need be with its process. Does not wait.

        False if the call is answered already.
        """
        if not self._receiver.stop(call):
            return False
        with contextlib.suppress(RpcsysError):  # then the session has ended, and with it the call
            with self._send_lock:
                if self._held.pop(call.call_id, None) is not None:
                    self._receiver.was_not_sent(call)
                else:
                    self._receiver.sends_cancel(call)
                    self._send(frames.pack(frames.CANCEL, call.call_id))
        return True

    def _interrupted(self, call: PendingCall, error: BaseException) -> BaseException:
        """Have the device drop a call whose wait ``error``, such as Ctrl-C's, has ended. Returns what to raise.

        A call that runs and does not stop in `STOP_S` is ended with its process, and the exception reports what is
        lost. The call of a future goes on in this case: its caller may still want the result.
        """
        receiver = self._receiver
        if isinstance(error, RpcsysError):
            return error
        with contextlib.suppress(RpcsysError):  # the session has ended
            if call.call_id in receiver.pending:
                runs = receiver.oldest() is call and not call.submitted
                call.sink = None
                self.send(frames.CANCEL, call.call_id, {"grace_s": STOP_S if runs else None})
                if runs:
                    receiver.await_stop(call)
                    if call.error is not None:  # the end of the session may follow
                        self.ping(GRACE_S)
                elif not call.submitted:
                    receiver.forget(call)
            elif not call.answered:
                call.complete(None, Cancelled("the call was interrupted while its result was received"))
        return self.loss(error)

    def loss(self, error: BaseException) -> BaseException:
        """``error``; or, if Ctrl-C has cost the session, a KeyboardInterrupt that reports this."""
        broken = self._receiver.broken
        if broken is None or not isinstance(error, KeyboardInterrupt) or isinstance(broken, SessionClosed):
            return error
        lost = f"the session with {self._peer} is lost, and the modules, arrays and files on it"
        return KeyboardInterrupt(f"{lost}: {one_line(broken)}")

    def on_log(self, listener: OnLog) -> None:
        """Call ``listener`` with each LOG frame, in the thread that reads: it must be fast and call no user code."""
        self._receiver.on_log = listener

    def on_streams(self, take: Callable[[Frame], object]) -> None:
        """Call ``take`` with each CHUNK that belongs to no call, in the thread that reads: it must not wait."""
        self._receiver.on_streams = take

    def listen(self) -> None:
        """Read LOG frames while no call is under way, too."""
        self._receiver.listening = True
        self._flusher.start()

    @functools.cached_property
    def _callbacks(self) -> concurrent.futures.Executor:
        return concurrent.futures.ThreadPoolExecutor(1, "rpcsys-callbacks")

    def call_back(self, callback: Callable[[Any], Any], what: Any) -> None:
        """Call ``callback`` with ``what`` in a thread that holds no lock of the session."""
        self._callbacks.submit(call_user, callback, what)

    def free(self, ref: int) -> None:
        """Have the device free the object ``ref`` with the next call. For finalisers: never blocks."""
        self._freed.append(ref)

    def _free_frame(self) -> List[Buffer]:
        ids = [self._freed.popleft() for _ in range(min(len(self._freed), 1000))]
        return frames.encode(frames.FREE, 0, {"ids": ids})

    def drain(self) -> None:
        """Take the replies that have arrived, without waiting."""
        self._receiver.drain()

    # -------------------------------------------------------------- sending

    def flush(self) -> None:
        """Send the held calls. Waits while another thread sends, which also reads."""
        if self._held:
            with self._send_lock:
                if self._held:
                    self._send([])

    def _send(self, pieces: Buffers) -> None:
        """Send the held calls, then ``pieces``. The caller has the send lock."""
        if self._receiver.errors:
            raise self._receiver.errors[0]
        if self._held:
            pieces = [b"".join(self._held.values()), *pieces]
            self._flusher.sent += 1
        try:
            self._stream.send(pieces, self._on_full, begun=self._held.clear if self._held else None)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, too
            raise self._failed(error, self._receiver.drain) from None

    def _failed(self, error: BaseException, read: Callable[[], None]) -> BaseException:
        """The exception to raise for ``error``. A device that closed may have sent the reason: ``read`` it.

        After an interruption the rest of the frame is sent, so that the session goes on.
        """
        if isinstance(error, Ended):
            read()
            return self._receiver.lost(error)
        if not isinstance(error, RpcsysError):
            whole = False
            try:
                whole = self._stream.resume(functools.partial(self._while_full, read), GRACE_S)
            finally:
                if not whole:
                    self._receiver.interrupted()
        return error

    def _while_full(self, read: Callable[[], None]) -> None:
        """Wait for a peer that reads nothing: ``read`` its frames, then wait until it reads or sends more."""
        read()
        if self._receiver.broken is not None:
            raise self._receiver.broken
        if not self._stream.wait(TICK_S, write=True):
            self._receiver.keep_alive()

    # -------------------------------------------------------------- the end

    def close(self) -> None:
        """Send GOODBYE if possible, then close. Calls under way end with `SessionClosed`."""
        if self._handed_over:
            return
        was_open = self._receiver.broken is None
        # First: the device's answer to GOODBYE is the connection's end, which another thread may read at once.
        self._receiver.break_(SessionClosed("the session is closed; open a new one"))
        if was_open and self._send_lock.acquire(timeout=1.0):
            try:
                with contextlib.suppress(OSError):  # the end of the connection has the same effect
                    self._stream.send_at_once(frames.encode(frames.GOODBYE, 0, {}))
            finally:
                self._send_lock.release()
        self._receiver.hang_up()
        self._stream.close()
        self._flusher.wake()

    def hand_over(self) -> Stream:
        """Give the stream to another owner, who closes it. Nothing is under way; calls here end with `SessionClosed`.

        Raises the error that ended the session, if it has ended.
        """
        if self._receiver.broken is not None:
            raise self._receiver.broken
        self._receiver.break_(SessionClosed("the session's connection has another owner"))
        self._flusher.wake()
        self._handed_over = True
        return self._stream

    @property
    def broken(self) -> Optional[RpcsysError]:
        """The error that ended the session, or None."""
        return self._receiver.broken


def _milliseconds(seconds: float) -> int:
    return max(1, min(int(seconds * 1000), 0xFFFFFFFF))


def call_user(callback: Callable[[Any], Any], what: Any) -> None:
    """Call a user's function with ``what``. Its error is logged, as `concurrent.futures` does."""
    try:
        callback(what)
    except Exception:  # noqa: BLE001 - whatever it is
        _log.exception("a callback of %r raised", what)
