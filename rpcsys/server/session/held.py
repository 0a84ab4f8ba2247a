"""The session of a hold: its process runs no calls, and forks an attached session for each connection that attaches.

All of them share its namespaces, limits, user and folder, and end with it. The supervisor passes the connections on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from dataclasses import dataclass, replace
from typing import Any, Callable, NoReturn

from rpcsys.link.tcp import KEEPALIVE_S, drain_and_close, keep_alive
from rpcsys.server.sandbox import messages, processes
from rpcsys.server.sandbox.messages import Job
from rpcsys.server.session.exec_calls import MAX_PROGRAMS
from rpcsys.server.session.outgoing import error_frame
from rpcsys.server.session.program_groups import ProgramGroups
from rpcsys.stream import DONT_WAIT, Stream
from rpcsys.wire import frames, pinned_keys

MAX_ATTACHED = 64  # sessions at once: each is a process
GRACE_GONE_S = 0.4  # time for an attached session to end by itself after its client hung up
FULL = f"{MAX_ATTACHED} sessions are attached to this hold already; end one, and try again"
ONLY_ATTACH = "this session is a hold: it makes no calls; attach to it (RPCSYS_LEASE), and call there"


@dataclass
class AttachedSession:
    """A process and a copy of its client's connection, which shows the client's end; ``kill_at`` (monotonic) then.

    ``groups``: of the programs that it runs.
    """

    sock: socket.socket
    groups: ProgramGroups
    kill_at: float | None = None


class HeldSession:
    """Serves the holder's ``stream``, and the connections that come through ``control``.

    ``serve`` serves one of these, as `rpcsys.server.session.session.serve` does.
    """

    def __init__(self, stream: Stream, control: socket.socket, job: Job, serve: Callable[..., str]) -> None:
        self._stream = stream
        self._control = control
        self._job = replace(job, limit_s=None)  # the supervisor holds the limit, for all at once
        self._serve = serve
        self._attached: dict[int, AttachedSession] = {}  # by PID
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)

    def run(self) -> str:
        """Serve until the holder says GOODBYE; the outcome. Raises `Ended` and `ProtocolError`."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while not self._released():  # first: what came with HELLO is read already
            ready = self._wait()
            if self._woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._end_abandoned(ready)  # before a descriptor that is closed below is another connection's
            self._collect()
            if self._control.fileno() in ready and not self._take():
                return "lost"  # the supervisor is gone
        return "closed"

    def _wait(self) -> set[int]:
        poll = select.poll()
        for source in (self._woken, self._control, self._stream):
            poll.register(source, select.POLLIN)
        for attached in self._attached.values():
            if attached.kill_at is None:
                poll.register(attached.sock, select.POLLRDHUP)
        due = [each.kill_at - time.monotonic() for each in self._attached.values() if each.kill_at is not None]
        timeout = max(0.0, min([KEEPALIVE_S, *due])) * 1000 if self._attached else None
        return {found for found, _ in poll.poll(timeout)}

    def _released(self) -> bool:
        """Answer the holder's frames; whether it ends the hold."""
        while (frame := self._stream.receive(DONT_WAIT)) is not None:
            if frame.kind == frames.GOODBYE:
                return True
            if frame.kind == frames.PING:
                self._stream.send(frames.pack(frames.PONG, frame.call_id))
            elif frame.kind == frames.CALL:
                self._stream.send(error_frame(frame.call_id, "RemoteFunctionError", ONLY_ATTACH))
        return False

    # Attached sessions

    def _take(self) -> bool:
        """Take a message of the supervisor; False if it is gone."""
        data, descriptor = messages.receive(self._control)
        if not data:
            return False
        message: dict[str, Any] = json.loads(data)
        if "attach" in message and descriptor is not None:
            sock = socket.socket(fileno=descriptor)
            self._attach(sock, replace(self._job, peer=message["attach"], reply=message["reply"].encode("latin-1")))
        return True

    def _attach(self, sock: socket.socket, job: Job) -> None:
        if len(self._attached) >= MAX_ATTACHED:
            self._say(sock, "Busy", FULL, job.reply)
            return
        parent, groups = os.getpid(), ProgramGroups(MAX_PROGRAMS)
        try:
            pid = os.fork()
        except OSError as error:  # the limit of processes, or of memory
            self._say(sock, "Busy", f"the board has no process for another session ({error.strerror})", job.reply)
            return
        if not pid:
            self._become_session(sock, job, parent, groups)
        self._attached[pid] = AttachedSession(sock, groups)

    def _become_session(self, sock: socket.socket, job: Job, parent: int, groups: ProgramGroups) -> NoReturn:
        """In the fork: have nothing of the hold's own, serve one client, and exit."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            processes.die_with_parent(parent)
            os.setsid()
            for own in (self._control, self._woken, self._wake, *(each.sock for each in self._attached.values())):
                own.close()
            self._stream.close()
            sock.setblocking(True)
            self._serve(sock, job, _report_nothing, groups=groups)
            status = 0
        except BaseException:  # noqa: BLE001 - any exception is printed and ends this process
            traceback.print_exc()
        finally:
            processes.exit_at_once(status)

    def _collect(self) -> None:
        """Reap what has ended, and kill the programs of attached sessions. Tell a client why its session crashed."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                attached = self._attached.pop(found[0], None)
                if attached is not None:
                    attached.groups.kill()
                if attached is not None and os.WIFSIGNALED(found[1]) and attached.kill_at is None:
                    how = f"its process was ended by {_named(os.WTERMSIG(found[1]))}"
                    why = f"the session is over: {how}, probably through the code that it ran; the hold goes on"
                    self._say(attached.sock, "SessionLost", why)
                elif attached is not None:
                    drain_and_close(attached.sock)

    def _say(self, sock: socket.socket, kind: str, text: str, greeting: bytes = b"") -> None:
        """Send a client why it has no session any more, and close its connection."""
        pinned = pinned_keys.parse(self._job.matchkey) if self._job.seed else None
        if pinned is None:
            said = b"".join(error_frame(0, kind, text, retryable=kind == "Busy"))
        else:
            from rpcsys.wire import last_words  # in a lab only

            said = last_words.encode(pinned, kind, text)
        drain_and_close(sock, greeting + said)

    def _end_abandoned(self, ready: set[int]) -> None:
        """Kill the sessions whose clients have hung up and that do not end by themselves."""
        now = time.monotonic()
        for pid, attached in self._attached.items():
            keep_alive(attached.sock)
            if attached.kill_at is None and attached.sock.fileno() in ready:
                attached.kill_at = now + GRACE_GONE_S
            elif attached.kill_at is not None and now >= attached.kill_at:
                attached.kill_at = now + GRACE_GONE_S
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _named(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def _report_nothing(fields: dict[str, Any]) -> None:
    """Take what a session reports to its supervisor, which knows the hold alone."""
