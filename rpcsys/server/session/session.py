"""An rpcsys/1 session: what runs in a session's own process.

One thread reads a call, runs it and answers, on a blocking socket. `Watcher` steps in when a call
lasts. When `serve` returns, or `Session.abandon` ends the process, the supervisor cleans up.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from rpcsys.errors import ProtocolError
from rpcsys.server import capabilities
from rpcsys.server.sandbox import limits, processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session.faults import described, error_fields
from rpcsys.server.session.files import Files
from rpcsys.server.session.incoming import WINDOW_CALLS, Incoming
from rpcsys.server.session.objects import (
    Objects,
    from_function,
    keep_arrays,
    plain_call,
    returned,
    run_by_name,
    to_function,
)
from rpcsys.server.session.operations import Operations
from rpcsys.server.session.outgoing import Outgoing
from rpcsys.server.session.stdio import Printed, by_line
from rpcsys.server.session.transfers import Directory
from rpcsys.server.session.watchdog import NO_CALL, Watcher
from rpcsys.stream import Ended, Stream
from rpcsys.wire import frames, values
from rpcsys.wire.encoding import encoded
from rpcsys.wire.frames import Buffer, Frame
from rpcsys.wire.head_cache import HeadCache
from rpcsys.wire.memory import Pool
from rpcsys.wire.reader import FrameReader

VERSION = 1
#: A client that says nothing after the handshake is dropped after this many seconds.
HELLO_S = 10.0
#: A call that took no longer is quick: 16 of them may share one reply's journey.
QUICK_S = 100e-6
#: Between two looks at what the client sends while one quick call follows the other.
LOOK_S = 1e-3
#: Targets of calls that are remembered as quick.
MAX_QUICK = 1024
_EXIT_AFTER_ABANDON = 0
#: What the client of a rehearsal says.
_IMAGINED: Tuple[Tuple[int, Dict[str, Any]], ...] = (
    (frames.HELLO, {"version": VERSION}),
    (frames.CALL, {"f": "session.has_function", "a": ["testing.nop"]}),
    (frames.CALL, {"f": "testing.echo", "a": [1]}),
    (frames.GOODBYE, {}),
)

Report = Callable[[Dict[str, Any]], None]


def serve(
    sock: socket.socket,
    job: Job,
    report: Optional[Report] = None,
    renewal: Callable[[], Optional[Dict[str, Any]]] = lambda: None,
) -> str:
    """Serve one session on a connected stream socket; its outcome: ``closed``, ``lost`` or ``ended``.

    ``report`` tells the supervisor what it must know at once: ``{"limit_s": seconds}`` that the client
    asked for, ``{"opened": true}`` when both have greeted, ``{"outcome": word}`` before the process is ended from
    inside. ``renewal`` gives the last ``{"until": monotonic time or null}`` that it told since it was last asked.
    """
    return Session(sock, job, report or (lambda message: None), renewal).run()


def rehearse(options: Dict[str, Any]) -> None:
    """Serve a client that is not there, in a process that waits for one: what a session needs first is then at hand.

    The first write to a page that a process shares with the one it was forked from costs a copy, and opening a
    session writes to hundreds: this spares its client half of the wait. No thread is started, and nothing is left.
    """
    by_line()
    ours, theirs = socket.socketpair()
    job = Job.from_bytes(Job("rpcsys/1", b"", os.curdir, "", "", options={**options, "log": False}).to_bytes())
    with ours, theirs:
        for kind, fields in _IMAGINED:
            theirs.sendmsg(frames.encode(kind, 1, fields))
        session = Session(ours, job, lambda message: None)
        session.rehearse()


class Session:
    """One client, one directory, one process."""

    def __init__(
        self,
        sock: socket.socket,
        job: Job,
        report: Report,
        renewal: Callable[[], Optional[Dict[str, Any]]] = lambda: None,
    ) -> None:
        self._job = job
        self._report = report
        self._pool = Pool()
        self._window_bytes = _window_bytes()
        self.stream = Stream(sock, FrameReader(max_body=_memory(), pool=self._pool))
        self.out = Outgoing(self.stream)
        self.incoming = Incoming(self.stream, self.out, self._window_bytes)
        self.objects = Objects()
        self.directory = Directory(job.workdir)
        self.files = Files(self.out, self.directory, job.options.get("cache"))
        self._operations = Operations(self, allow_pickle=bool(job.options.get("allow_pickle")))
        self._heads = HeadCache()
        self._quick: Set[str] = set()
        self._looked = 0.0
        self._watcher = Watcher(self, renewal)
        self._printed = Printed(self.stream, self.out) if job.options.get("log") else None
        self._handlers: Dict[int, Callable[[Frame], None]] = {
            frames.CHUNK: self.files.chunk,
            frames.FREE: self._free,
            frames.PING: self._ping,
            frames.CANCEL: self.files.cancel,
        }

    def run(self) -> str:
        """Serve until the client leaves; the outcome."""
        try:
            self.open()
            self._attend()
            self.serve()
            return "closed"
        except Ended:
            return "lost"
        except ProtocolError as error:
            self._say("ProtocolError", str(error) + limits.hint(str(error)), "network")
            return "lost"
        finally:
            self.files.close()
            if self._printed is not None:
                self._printed.finish()

    def rehearse(self) -> None:
        """Serve without anything beside it, for a client whose frames are all here."""
        try:
            self.open()
            self.serve()
        finally:
            self.files.close()
            self._watcher.close()

    # -------------------------------------------------------------- frames

    def serve(self) -> None:
        """Take frames until the client says goodbye. Raises `Ended` and `ProtocolError`."""
        incoming, out, watcher = self.incoming, self.out, self._watcher
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

    def open(self) -> None:
        """Answer the handshake and exchange HELLO."""
        limit_s = self._job.limit_s
        hello = {
            "version": VERSION,
            "key": self._job.key,
            "pid": processes.number(),
            "limit_s": limit_s,
            "capabilities": capabilities.capabilities(
                pickle=bool(self._job.options.get("allow_pickle")), cache=bool(self._job.options.get("cache"))
            ),
            "machine": capabilities.machine(),
            "devices": ["cpu:0"],
            "window": {"calls": WINDOW_CALLS, "bytes": self._window_bytes},
        }
        self.stream.send([self._job.reply, *frames.encode(frames.HELLO, 0, hello)])
        frame = self.stream.receive_within(HELLO_S)
        if frame is None or frame.kind != frames.HELLO:
            raise ProtocolError("a session begins with HELLO")
        asked = frame.get("limit_s")
        if type(asked) in (int, float) and 0 < asked < math.inf:
            self._report({"limit_s": float(asked)})
            self._watcher.limit(float(asked))
        if limit_s is not None:
            self._watcher.limit(limit_s)
        self._report({"opened": True})

    def _attend(self) -> None:
        """Start what goes on beside the calls."""
        self._watcher.start()
        if self._printed is not None:
            self._report({"printed": self._printed.pipe})
            self._printed.start()

    def abandon(self, outcome: str, kind: str = "", message: str = "") -> None:
        """End this process now, whatever it is doing, having told the client why if there is something to tell."""
        try:
            self._report({"outcome": outcome})
            if kind:
                self._say(kind, message, "user")
        finally:
            os._exit(_EXIT_AFTER_ABANDON)

    def _say(self, kind: str, message: str, fault: str) -> None:
        """Tell the client why the session ends."""
        self.out.last_words(frames.encode(frames.ERROR, 0, error_fields(kind, message, fault=fault)))

    def _ping(self, frame: Frame) -> None:
        self.out.send(frames.pack(frames.PONG, frame.call_id))

    def _free(self, frame: Frame) -> None:
        self.objects.free(frame.get("ids"))

    # -------------------------------------------------------------- calls

    def _call_in_a_row(self, frame: Frame) -> None:
        """A call with others around it. Replies may wait for each other, but never for a call that may last."""
        target = frame.parsed.head.get("f")
        if type(target) is not str:
            target = repr(target)
        if target not in self._quick:
            self.out.flush()
        started = time.perf_counter()
        looked = started - self._looked <= LOOK_S and target in self._quick
        # An upload begins at once, and what has come of it is kept though it be cancelled.
        if self.incoming.late and not looked and target != "session.upload":
            self._looked = started
            if self.incoming.taken_back(frame):
                return
            started = time.perf_counter()
        pieces = self._run(frame)
        took = time.perf_counter() - started
        if took > QUICK_S:
            self._quick.discard(target)
        elif len(self._quick) < MAX_QUICK:
            self._quick.add(target)
        if pieces:
            self.out.hold(pieces)

    def _run(self, frame: Frame) -> List[Buffer]:
        """Run a call, watched; the pieces of its reply."""
        watcher = self._watcher
        watcher.call = frame
        watcher.turn += 1
        if watcher.asleep:
            watcher.wake()
        try:
            call = frame.parsed.memo
            if call:
                pieces = returned(frame.call_id, call(frame), self.objects, self._heads)
            else:
                pieces = self._answer(frame)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            pieces = frames.encode(frames.ERROR, frame.call_id, described(error))
        except BaseException as end:  # noqa: BLE001 - sys.exit(), and what else means to end a process
            watcher.turn += 1
            self.abandon("ended", "SessionLost", f"a function on the device ended its process ({end!r})"[:500])
            return []
        watcher.turn += 1
        if watcher.reading:
            watcher.nudge()
        return pieces

    def _answer(self, frame: Frame) -> List[Buffer]:
        """Run a call; the pieces of its RESULT, none when an upload has only begun."""
        parsed, buffers = frame.parsed, frame.buffers
        if parsed.memo is None:
            parsed.memo = plain_call(parsed.head, self._operations.resolve)
            if parsed.memo:
                return returned(frame.call_id, parsed.memo(frame), self.objects, self._heads)
        head = parsed.head
        target = head.get("f")
        if target == "session.upload":
            self.files.begin(frame)
            return []
        if target == "session.download":
            return self.files.download(frame)
        written: List[Any] = []
        if "k" in head:
            result = self._run_by_name(frame, written)
        else:
            args = listed(head.get("a", ()))
            if args:
                args = [to_function(values.build(arg, buffers), self.objects, self._pool, written) for arg in args]
            result = encoded(self._operations.resolve(target)(*args), frame.get("encode"))
        return self._result(frame.call_id, result, written, head.get("keep") is True)

    def _run_by_name(self, frame: Frame, written: List[Any]) -> Any:
        target = frame.parsed.head.get("f")
        if type(target) is not list or len(target) != 2 or target[1] != "main":
            raise ProtocolError("only a module's main is run by names")
        named = to_function(frame.get("k"), self.objects, self._pool, written)
        return run_by_name(self._operations.module(target[0]), named, frame.get("outputs"))

    def _result(self, call_id: int, result: Any, written: List[Any], keep: bool) -> List[Buffer]:
        if keep:
            result = keep_arrays(result, self.objects)
        elif not written:
            return returned(call_id, result, self.objects, self._heads)
        fields = {"r": from_function(result, self.objects)}
        if written:
            fields["w"] = written
        return frames.encode(frames.RESULT, call_id, fields)


def listed(value: Any) -> Sequence[Any]:
    """The arguments of a call, which are a list. Raises `ProtocolError`."""
    if not isinstance(value, (list, tuple)):
        raise ProtocolError("the arguments of a call are a list")
    return value


def _memory() -> int:
    """Bytes one frame may claim: the memory of the machine. Mappings are filled only as bytes arrive."""
    try:
        return min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), frames.MAX_BODY)
    except (ValueError, OSError):
        return frames.MAX_BODY


def _window_bytes() -> int:
    """Bytes of arguments a client may have under way: a sixteenth of memory, at most 256 MiB."""
    return max(1 << 20, min(_memory() // 16, 256 << 20))
