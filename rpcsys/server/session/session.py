"""An rpcsys/1 session: one thread reads a call, runs it and answers, on a blocking socket.

`Watcher` steps in when a call lasts. When `serve` returns, or the process has ended, the supervisor cleans up.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import Any, Callable, Dict, Optional

from rpcsys.errors import ProtocolError
from rpcsys.server import capabilities
from rpcsys.server.sandbox import limits
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session import hello
from rpcsys.server.session.calls import Objects, ThreadMemory
from rpcsys.server.session.directory import Directory
from rpcsys.server.session.files import Files
from rpcsys.server.session.incoming import WINDOW_CALLS, Incoming
from rpcsys.server.session.operations import Operations
from rpcsys.server.session.outgoing import Outgoing, error_frame, exception_frame
from rpcsys.server.session.stdio import OutputForwarder, by_line
from rpcsys.server.session.watchdog import NO_CALL, Watcher
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.reader import FrameReader

QUICK_S = 100e-6  # a call that took no longer is quick: 16 of them may share one reply's journey
POLL_S = 1e-3  # between two polls of what the client sends while one quick call follows the other
MAX_QUICK = 1024  # targets of calls that are remembered as quick
#: What the client of a rehearsal says.
_REHEARSED: tuple[tuple[int, dict[str, Any]], ...] = (
    (frames.HELLO, {"version": hello.VERSION}),
    (frames.CALL, {"f": "session.has_function", "a": ["testing.nop"]}),
    (frames.CALL, {"f": "testing.echo", "a": [1]}),
    (frames.GOODBYE, {}),
)
Report = Callable[[Dict[str, Any]], None]
Renewal = Callable[[], Optional[Dict[str, Any]]]


def serve(sock: socket.socket, job: Job, report: Report, renewal: Renewal = lambda: None) -> str:
    """Serve one session on a connected stream socket; its outcome: ``closed``, ``lost`` or ``ended``.

    ``report`` sends the supervisor ``{"limit_s": seconds}`` that the client asked for, ``{"opened": true}`` when both
    have greeted, ``{"outcome": word}`` before the process is ended from inside. ``renewal`` gives the supervisor's last
    ``{"until": monotonic time or null}`` since it was last asked.
    """
    return SessionServer(sock, job, report, renewal).run()


def rehearse() -> None:
    """Serve a client that is not there, in a process that waits for one. No thread is started, and nothing is left.

    A session's first writes to pages shared with the zygote cost copies: this spares its client half of the wait.
    """
    by_line()
    ours, theirs = socket.socketpair()
    job = Job.from_bytes(Job("rpcsys/1", b"", os.curdir, "", "", options={"log": False}).to_bytes())
    with ours, theirs:
        for kind, fields in _REHEARSED:
            theirs.sendmsg(frames.encode(kind, 1, fields))
        server = SessionServer(ours, job, lambda message: None)
        server.open()
        server.serve()


class SessionServer:
    """One client, one directory, one process."""

    def __init__(self, sock: socket.socket, job: Job, report: Report, renewal: Renewal = lambda: None) -> None:
        self._job = job
        self._report = report
        memory = ThreadMemory()
        self._window_bytes = hello.window_bytes()
        self._stream = Stream(sock, FrameReader(max_body=hello.memory(), pool=memory.pool))
        self._out = Outgoing(self._stream)
        self._incoming = Incoming(self._stream, self._out, self._window_bytes)
        self._objects = Objects()
        self._files = Files(self._out, Directory(job.workdir), job.options.get("cache"))
        self._calls = Operations(self._objects, memory, self._files, allow_pickle=bool(job.options.get("allow_pickle")))
        self._quick: set[str] = set()  # targets of calls that were quick the last time
        self._polled = 0.0  # when it was last polled for a CANCEL
        self._watcher = Watcher(self._stream, self._incoming, self._out, self._end_process, renewal)
        self._forwarder = OutputForwarder(self._stream, self._out) if job.options.get("log") else None
        self._handlers: dict[int, Callable[[Frame], None]] = {
            frames.CHUNK: self._files.chunk,
            frames.FREE: lambda frame: self._objects.free(frame.get("ids")),
            frames.PING: lambda frame: self._out.send(frames.pack(frames.PONG, frame.call_id)),
            frames.CANCEL: self._files.cancel,
        }

    def run(self) -> str:
        """Serve until the client leaves; the outcome."""
        try:
            self.open()
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
        able = capabilities.capabilities(pickle=bool(options.get("allow_pickle")), cache=bool(options.get("cache")))
        about = hello.fields(self._job, able, WINDOW_CALLS, self._window_bytes, limit_s=limit_s, **hello.board())
        self._stream.send([self._job.reply, *frames.encode(frames.HELLO, 0, about)])
        asked = hello.received(self._stream).get("limit_s")
        if type(asked) in (int, float) and 0 < asked < math.inf:
            self._report({"limit_s": float(asked)})
            self._watcher.limit(float(asked))
        if limit_s is not None:
            self._watcher.limit(limit_s)
        self._report({"opened": True})

    def serve(self) -> None:
        """Take frames until the client says goodbye. Raises `Ended` and `ProtocolError`."""
        incoming, out, watcher = self._incoming, self._out, self._watcher
        while True:
            frame = incoming.next()
            if frame.kind == frames.CALL:
                if incoming.late or incoming.waiting or out.held:
                    self._call_in_a_row(frame)
                else:
                    pieces = self._run(frame)
                    # Let go of now, the memory that its arrays lie in, still in the caches, is there for the next.
                    frame = watcher.call = NO_CALL
                    if pieces:
                        out.send(pieces)
                continue
            if frame.kind == frames.GOODBYE:
                return
            handler = self._handlers.get(frame.kind)
            if handler is None:
                raise ProtocolError(f"a client does not send {frames.KINDS[frame.kind]}")
            handler(frame)

    def _end_process(self, outcome: str, kind: str = "", message: str = "") -> None:
        """End this process now, whatever it is doing, with an error of that ``kind`` for the client, if any."""
        try:
            self._report({"outcome": outcome})
            if kind:
                self._out.send_last(error_frame(0, kind, message))
        finally:
            os._exit(0)

    def _call_in_a_row(self, frame: Frame) -> None:
        """A call with others around it. Replies may wait for each other, but never for a call that may last."""
        target = frame.parsed.head.get("f")
        target = target if type(target) is str else repr(target)
        if target not in self._quick:
            self._out.flush()
        started = time.perf_counter()
        polled = started - self._polled <= POLL_S and target in self._quick
        # An upload begins at once, and what has come of it is kept though it be cancelled.
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
        watcher, calls = self._watcher, self._calls
        watcher.call = frame
        watcher.turn += 1
        if watcher.asleep:
            watcher.wake()
        try:
            call = frame.parsed.memo
            # As `Calls.answer` does, without its hop.
            pieces = calls.result(frame.call_id, call(frame)) if call else calls.answer(frame)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            pieces = exception_frame(frame.call_id, error)
        except BaseException as end:  # noqa: BLE001 - sys.exit(), and what else means to end a process
            watcher.turn += 1
            self._end_process("ended", "SessionLost", f"a function on the device ended its process ({end!r})"[:500])
            return []
        watcher.turn += 1
        if watcher.reading:
            watcher.nudge()
        return pieces
