"""An rpcsys/1 session: one thread reads a call, runs it and answers, on a blocking socket.

`Watcher` takes over the reading in a slow call. When `serve` returns or the process ends, the supervisor cleans up.
"""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import time
from typing import Any, Callable, Dict, Optional

from rpcsys import stream as streams
from rpcsys.errors import ProtocolError
from rpcsys.server.sandbox import limits
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello
from rpcsys.server.session.calls import Objects, ThreadMemory, took_us
from rpcsys.server.session.device_calls import DeviceCalls
from rpcsys.server.session.directory import Directory
from rpcsys.server.session.exec_calls import ExecCalls, refusal
from rpcsys.server.session.files import Files
from rpcsys.server.session.incoming import WINDOW_CALLS, Incoming
from rpcsys.server.session.operations import Operations
from rpcsys.server.session.outgoing import Outgoing, error_frame, exception_frame
from rpcsys.server.session.program_groups import ProgramGroups
from rpcsys.server.session.stdio import OutputForwarder, by_line
from rpcsys.server.session.watchdog import NO_CALL, Watcher
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.limits import Limits

QUICK_S = 100e-6  # a call that took no longer is quick: the replies of 16 may be sent together
POLL_S = 1e-3  # between two polls of the socket during a series of quick calls
MAX_QUICK = 1024  # targets of calls that are remembered as quick
#: The frames that the client of a rehearsal sends.
_REHEARSED: tuple[tuple[int, dict[str, Any]], ...] = (
    (frames.HELLO, {"version": hello.VERSION}),
    (frames.CALL, {"f": "session.has_function", "a": ["testing.nop"]}),
    (frames.CALL, {"f": "testing.echo", "a": [1]}),
    (frames.GOODBYE, {}),
)
Report = Callable[[Dict[str, Any]], None]
Renewal = Callable[[], Optional[Dict[str, Any]]]


def serve(
    sock: socket.socket, job: Job, report: Report, renewal: Renewal = lambda: None,
    control: Optional[socket.socket] = None, groups: Optional[ProgramGroups] = None,
) -> str:  # fmt: skip
    """Serve one session on a connected stream socket; return its outcome: closed, lost, ended or unused.

    ``report`` sends the supervisor ``{"limit_s": seconds}``, which the client requests; ``{"opened": true}`` after both
    HELLOs; ``{"outcome": word}`` before the process ends itself, with ``why`` for "ended". ``renewal`` returns the
    supervisor's newest ``{"until": monotonic time or null}`` since its last call, None if there is none.
    A client that asks for a hold gets one where there is a ``control`` socket, through which connections attach.
    ``groups``: where an attached session notes its programs.
    """
    memory, limits = ThreadMemory(), Limits(max_body=hello.memory())
    if not job.seed:
        stream = streams.open(sock, limits, memory.pool)
        return SessionServer(stream, memory, job, report, renewal, control, groups).run()
    from rpcsys.server.session import secure_opening  # only a closed lab's sessions pay for it

    accepted = secure_opening.accept(sock, job, limits, memory.pool)
    if accepted is None:
        return "unused"
    stream, answer = accepted
    job = dataclasses.replace(job, reply=answer)
    return SessionServer(stream, memory, job, report, renewal, control, groups).run()


def rehearse() -> None:
    """Serve a simulated client, in a process that waits for one. This starts no thread and leaves no state.

    A session's first writes copy pages that it shares with the zygote: done ahead, a client waits half as long.
    """
    by_line()
    ours, theirs = socket.socketpair()
    job = Job.from_bytes(Job("rpcsys/1", b"", os.curdir, "", "", options={"log": False}).to_bytes())
    with ours, theirs:
        for kind, fields in _REHEARSED:
            theirs.sendmsg(frames.encode(kind, 1, fields))
        memory = ThreadMemory()
        stream = streams.open(ours, Limits(max_body=hello.memory()), memory.pool)
        server = SessionServer(stream, memory, job, lambda message: None)
        server.open()
        server.serve()


class SessionServer:
    """Serves one client, in one directory, in one process."""

    def __init__(
        self, stream: Stream, memory: ThreadMemory, job: Job, report: Report, renewal: Renewal = lambda: None,
        control: Optional[socket.socket] = None, groups: Optional[ProgramGroups] = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._control = control
        self._is_hold = False
        self._report = report
        self._window_bytes = hello.window_bytes()
        self._stream = stream
        self._out = Outgoing(self._stream)
        self._incoming = Incoming(self._stream, self._out, self._window_bytes)
        self._objects = Objects()
        self._files = Files(self._out, Directory(job.workdir), job.options.get("cache"))
        flags = {name: bool(job.options.get(name)) for name in ("allow_pickle", "models_only")}
        programs = ExecCalls(self._out, job.workdir, refusal(job.options), groups)
        self._incoming.take_stream = programs.take
        self._calls = Operations(
            self._objects, memory, self._files, programs, forget_heads=self._stream.forget_heads, **flags
        )
        self._quick: set[str] = set()  # targets whose last call was quick
        self._polled = 0.0  # when the socket was last polled for a CANCEL
        self._watcher = Watcher(self._stream, self._incoming, self._out, self._end_process, renewal)
        self._loop = self._stream.call_loop(
            send_lock=self._out.lock,
            read_lock=self._incoming.lock,
            templates=self._calls.templates,
            waiting=(self._incoming.waiting, self._incoming.unsorted),
            held=self._out.held,
            quick=self._quick,
            idle=NO_CALL,
            wake=self._watcher.wake,
            nudge=self._watcher.nudge,
            finish=self._finish,
            flush=self._out.flush,
            on_full=self._out.on_full,
        )
        self._device_calls = DeviceCalls(
            self._calls, self._out, self._window_bytes, self._error_of, self._end_process, self._watcher.wake
        )
        self._watcher.check_others = self._device_calls.check
        self._incoming.receive = self._loop.receive
        self._watcher.loop = self._loop
        self._forwarder = OutputForwarder(self._stream, self._out) if job.options.get("log") else None
        if self._forwarder is not None:
            self._calls.settle = self._forwarder.settle
        self._handlers: dict[int, Callable[[Frame], None]] = {
            frames.CHUNK: self._files.chunk,
            frames.FREE: lambda frame: self._objects.free(frame.get("ids")),
            frames.PING: lambda frame: self._out.send(frames.pack(frames.PONG, frame.call_id)),
            frames.CANCEL: self._cancel,
        }

    def run(self) -> str:
        """Serve until the client closes the session; return the outcome."""
        try:
            self.open()
            if self._is_hold and self._control is not None:
                return self._hold(self._control)
            self._watcher.start()
            if self._forwarder is not None:
                self._report({"printed": self._forwarder.pipe})
                self._forwarder.start()
            self.serve()
            return "closed"
        except Ended:
            return "lost"
        except ProtocolError as error:
            text = str(error)
            self._out.send_last(error_frame(0, "ProtocolError", text + limits.hint(text), fault="network"))
            return "lost"
        finally:
            self._files.close()
            if self._forwarder is not None:
                self._forwarder.finish()

    def open(self) -> None:
        """Answer the handshake and exchange HELLO."""
        options, limit_s = self._job.options, self._job.limit_s
        able = hello.capable(*(bool(options.get(flag)) for flag in ("allow_pickle", "cache", "deploy", "allow_exec")))
        about = hello.frame(
            self._job, able, WINDOW_CALLS, self._window_bytes, limit_s=limit_s, **hello.board(self._job)
        )
        self._stream.send([self._job.reply, *about])
        said = hello.received(self._stream)
        asked, self._is_hold = said.get("limit_s"), said.get("hold") is True
        if type(asked) in (int, float) and 0 < asked < math.inf:
            self._report({"limit_s": float(asked)})
            self._watcher.limit(float(asked))
        self._watcher.longest_s = self._job.longest_s
        if limit_s is not None:
            self._watcher.limit(limit_s)
        self._report({"opened": True})

    def _hold(self, control: socket.socket) -> str:
        from rpcsys.server.session.held import HeldSession  # few sessions pay for it

        if self._forwarder is not None:
            self._forwarder.finish()  # each attached session has one of its own
            self._forwarder = None
        self._report({"held": True})
        return HeldSession(self._stream, control, self._job, serve).run()

    def serve(self) -> None:
        """Handle frames until the client sends GOODBYE. Raises `Ended` and `ProtocolError`."""
        incoming, out, loop = self._incoming, self._out, self._loop
        while True:
            frame = incoming.next()
            if frame.kind == frames.CALL:
                if self._calls.uses_devices and self._device_calls.start(frame):
                    continue
                if incoming.late or incoming.waiting or out.held:
                    self._call_in_a_row(frame)
                else:
                    pieces = self._run(frame)
                    # Freed now, the memory of its arrays is reused by the next call while the CPU still caches it.
                    frame = loop.call = NO_CALL
                    if pieces:
                        out.send(pieces)
                continue
            if frame.kind == frames.GOODBYE:
                return
            handler = self._handlers.get(frame.kind)
            if handler is None:
                raise ProtocolError(f"a client does not send {frames.KINDS[frame.kind]}")
            handler(frame)

    def _cancel(self, frame: Frame) -> None:
        if not self._device_calls.cancel(frame):
            self._files.cancel(frame)

    def _end_process(self, outcome: str, kind: str = "", message: str = "") -> None:
        """End this process now, even during a call; first send the client an error of that ``kind``, if any."""
        try:
            self._report({"outcome": outcome, "why": message} if outcome == "ended" else {"outcome": outcome})
            if kind:
                self._out.send_last(error_frame(0, kind, message))
        finally:
            os._exit(0)

    def _call_in_a_row(self, frame: Frame) -> None:
        """Run a call that comes with others. Replies may wait for each other, but never for a call that may be slow."""
        target = frame.parsed.head.get("f")
        target = target if type(target) is str else repr(target)
        if target not in self._quick:
            self._out.flush()
        started = time.perf_counter()
        polled = started - self._polled <= POLL_S and target in self._quick
        # An upload begins at once: what has arrived is kept even if it is cancelled.
        if self._incoming.late and not polled and target != "session.upload":
            self._polled = started
            if self._incoming.withdrawn(frame):
                return
            started = time.perf_counter()
        pieces = self._run(frame)
        if time.perf_counter() - started > QUICK_S:
            self._quick.discard(target)
        elif len(self._quick) < MAX_QUICK:
            self._quick.add(target)
        if pieces:
            self._out.hold(pieces)

    def _run(self, frame: Frame) -> list[Buffer]:
        """Run a call; the pieces of its answer, none if it only begins an upload."""
        loop, calls = self._loop, self._calls
        loop.call = frame
        loop.turn += 1
        if loop.asleep:
            self._watcher.wake()
        try:
            call = frame.parsed.memo
            if call:  # as `Calls.answer` does, without the cost of its call
                began = time.perf_counter()
                result = call(frame)
                pieces = calls.result(frame.call_id, result, took_us(began))
            else:
                pieces = calls.answer(frame)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
            pieces = self._error_of(frame, error)
        loop.turn += 1
        if loop.reading:
            self._watcher.nudge()
        return pieces

    def _finish(self, frame: Frame, result: Any, error: BaseException | None, took: int) -> None:
        """Answer a call that the library has run, in ``took`` microseconds, as `_run` does."""
        try:
            # Not raised again: it would refer to this function's frame, and so to itself and the call's arrays.
            pieces = self._calls.result(frame.call_id, result, took) if error is None else self._error_of(frame, error)
        except BaseException as problem:  # noqa: BLE001 - a user's function may raise anything
            pieces = self._error_of(frame, problem)
        self._loop.turn += 1
        if self._loop.reading:
            self._watcher.nudge()
        self._out.send(pieces)

    def _error_of(self, frame: Frame, error: BaseException) -> list[Buffer]:
        """The pieces of the ERROR for what a call raised. Ends the process for what means to, such as sys.exit()."""
        if isinstance(error, Exception):
            stopped = self._watcher.stopped() if self._loop.call is frame else None
            return error_frame(frame.call_id, *stopped) if stopped else exception_frame(frame.call_id, error)
        self._loop.turn += 1
        self._end_process("ended", "SessionLost", f"a function on the device ended its process ({error!r})"[:500])
        return []
