"""A model host: the process of one deployed version, with many clients and one copy of its weights.

Its threads and their rules are those of `rpcsys.server.models.worker_pool`. Nothing in it waits for a client: what one does not take
stays in its line, and nothing more is read from it meanwhile. One that has more calls under way than it may is dropped.

When it is to leave (a new version, or the end), it stops reading, finishes the calls it has, and gives each connection back
at the end of a frame: the successor goes on with it, and its client never knows.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import time
from typing import Any, Dict, NoReturn, Optional, Set, Tuple

from rpcsys.errors import ProtocolError
from rpcsys.link import KEEPALIVE_S, keep_alive
from rpcsys.server.models.call_queue import Call, Desk
from rpcsys.server.models.calls import Calls
from rpcsys.server.models.line import Line
from rpcsys.server.models.worker_pool import READ, Crew, begin, function_of
from rpcsys.server.sandbox import messages
from rpcsys.server.session.faults import error_fields
from rpcsys.server.session.incoming import WINDOWS
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.memory import Pool

#: Between two reports of the load.
REPORT_S = 0.5
#: A client that says nothing after the handshake, or takes nothing that it was sent.
HELLO_S = 10.0
STALLED_S = 60.0
#: Calls a client may have under way.
WINDOW_CALLS = 64
#: A call that nobody waits for and that runs for so long makes the host a case for its successor.
STUCK_S = 5.0
#: Answers that wait for clients to take them, in windows of one client: a quarter of the memory, or a GiB.
MOST_UNSENT = 4
#: Between two looks at what is left to do when the host leaves.
LEAVE_S = 0.005
#: With nobody connected there is little to look after.
IDLE_S = 60.0
_WRITE = select.EPOLLOUT | select.EPOLLRDHUP
_GONE = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class Host(Crew):
    """The clients of a host, and its supervisor.

    ``hello``: what each client is greeted with; ``tether``: to the supervisor, not blocking; ``window_bytes``: what one
    client's frame may bring.
    """

    def __init__(
        self, calls: Calls, desk: Desk, tether: socket.socket, hello: Dict[str, Any], window_bytes: int
    ) -> None:
        super().__init__(calls, desk)
        self._tether = tether
        self._hello = frames.encode(frames.HELLO, 0, hello)
        self._name: str = hello["serve"]["name"]
        self._pool = Pool()
        self._window_bytes = window_bytes
        self._behind: Set[Line] = set()
        self._lines: Dict[int, Line] = {}
        self._epoll.register(tether.fileno(), select.EPOLLIN)
        self._leaving = False
        self._succeeded = False
        self._told: Tuple[int, ...] = ()
        self._stuck = False
        self._look_at = 0.0

    def run(self) -> NoReturn:
        """Serve until the supervisor wants no more; this thread keeps watch."""
        for _ in range(self._desk.workers + 1):
            begin(self._live)
        while True:
            self._keep_watch()

    # -------------------------------------------------------------- calls

    def _put(self, line: Line, frame: Frame) -> None:
        """A client sends a CALL."""
        if self._behind:
            self._shed()
        due = time.monotonic() + frame.deadline_ms / 1000 if frame.deadline_ms else math.inf
        with self._lock:
            if self._desk.of(line) >= WINDOWS * WINDOW_CALLS:
                raise ProtocolError(f"more calls were sent than may be under way: {WINDOW_CALLS}")
            try:
                taken = self._desk.offer(Call(line, frame, due))
            except KeyError:
                raise ProtocolError(f"call {frame.call_id} is under way already") from None
            self._next_look = min(self._next_look, due)
        if not taken:
            why = (
                f"{self._desk.places} calls wait for the module {self._name!r} already, which is all that it lets wait; "
                "call again in a moment"
            )
            self._refuse(line, frame.call_id, "Busy", why, fault="device", retryable=True)

    def _shed(self) -> None:
        """Part with clients that do not take their answers where these take more than `MOST_UNSENT` windows in all."""
        while sum(line.unsent for line in self._behind) > MOST_UNSENT * self._window_bytes:
            self._drop(max(self._behind, key=lambda line: line.unsent))

    def _stop(self, call: Call) -> None:
        """A call was given up: stop it if it runs and can be stopped, and have another thread for its own, which it keeps."""
        if call.abandoned_at is None:
            return
        for stop in call.on_stop:
            stop()
        try:
            begin(self._live)
        except RuntimeError:
            pass  # no more threads: calls wait until this one is done

    def _refuse(self, line: Line, call_id: int, kind: str, text: str, **more: Any) -> None:
        line.send(frames.encode(frames.ERROR, call_id, error_fields(kind, text, **more)))

    def _cancel(self, line: Line, call_id: int) -> None:
        with self._lock:
            call = self._desk.cancel(line, call_id, time.monotonic())
        if call is not None:
            self._stop(call)
            self._refuse(line, call_id, "Cancelled", "the call was cancelled")

    # -------------------------------------------------------------- clients, by the thread that leads

    def _attend(self, descriptor: int, events: int, alone: bool) -> Optional[Call]:
        """A descriptor is ready, ``alone`` if no other is. A call that may be run at once, past the desk."""
        line = self._lines.get(descriptor)
        if line is None:
            if descriptor == self._tether.fileno():
                self._obey()
            return None
        try:
            if events & select.EPOLLOUT:
                line.by = None if line.greeted else line.by  # it takes something
                line.flush()
            if events & select.EPOLLIN:
                found = line.receive(self._leaving)
                if alone and len(found) == 1 and self._may_run_at_once(line, found[0]):
                    return Call(line, found[0])
                for frame in found:
                    self._take(line, frame)
            elif events & _GONE:
                raise Ended("the connection was closed")
        except Ended:
            self._drop(line)
        except ProtocolError as error:
            self._refuse(line, 0, "ProtocolError", str(error), fault="network")
            self._drop(line)
        else:
            if line.watched != READ or line.backlog:
                self._rewatch(line)
        return None

    def _may_run_at_once(self, line: Line, frame: Frame) -> bool:
        """Whether a frame is a call of a quick function, and nothing else is to be done."""
        return (
            frame.kind == frames.CALL
            and line.greeted
            and not frame.deadline_ms
            and not self._leaving
            and not line.backlog
            and self._desk.idle
            and function_of(frame) in self._quick
        )

    def _take(self, line: Line, frame: Frame) -> None:
        kind = frame.kind
        if not line.greeted:
            if kind != frames.HELLO:
                raise ProtocolError("a session begins with HELLO")
            line.greeted, line.by = True, None
        elif kind == frames.CALL:
            self._put(line, frame)
        elif kind == frames.PING:
            line.send(frames.pack(frames.PONG, frame.call_id))
        elif kind == frames.CANCEL:
            self._cancel(line, frame.call_id)
        elif kind == frames.GOODBYE:
            raise Ended("it said goodbye")
        else:
            raise ProtocolError(
                f"a connection to a deployed module takes CALL, CANCEL and PING, not {frames.KINDS[kind]}"
            )

    def _rewatch(self, line: Line) -> None:
        """Wait for what the client may do now: send more, or take what waits for it."""
        with self._lock:
            if line.closed or line.descriptor not in self._lines:
                return
            self._behind.discard(line)
            if line.backlog:
                self._behind.add(line)
                wanted = _WRITE
                line.by = line.by or time.monotonic() + STALLED_S
            else:
                line.by = line.by if not line.greeted else None
                parting = self._leaving and not line.reader.missing
                wanted = select.EPOLLRDHUP if parting else READ
            if wanted != line.watched:
                line.watched = wanted
                self._epoll.modify(line.descriptor, wanted)

    def _drop(self, line: Line) -> None:
        """A client is gone, or has to go."""
        with self._lock:
            calls = self._desk.gone(line, time.monotonic())
            self._forget(line)
        for call in calls:
            self._stop(call)
        line.close()

    def _forget(self, line: Line) -> None:
        """Wait for nothing of a client any more; with the lock held, and before its descriptor is closed."""
        del self._lines[line.descriptor]
        self._behind.discard(line)
        self._epoll.unregister(line.descriptor)

    def _welcome(self, sock: socket.socket, order: Dict[str, Any]) -> None:
        """A client that the supervisor hands over; ``reply``: the answer to its greeting, if it had none yet."""
        line = Line(sock, str(order["client"]), self._pool, self._window_bytes)
        line.greeted = order["greeted"]
        if not line.greeted:
            line.by = time.monotonic() + HELLO_S
        self._lines[line.descriptor] = line
        line.watched = READ
        self._epoll.register(line.descriptor, READ)
        if order["reply"] is not None:
            line.send([order["reply"].encode("latin-1"), *self._hello])
            self._rewatch(line)

    # -------------------------------------------------------------- the supervisor

    def _obey(self) -> None:
        try:
            data, descriptor = messages.receive(self._tether)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        order = json.loads(data)
        self._next_look = 0.0
        if descriptor is not None:
            self._welcome(socket.socket(fileno=descriptor), order)
        elif "leave" in order:
            self._leaving, self._succeeded = True, order["leave"] == "successor"
            self._tell(leaving=True)  # whoever calls from now on is the successor's

    def _tell(self, descriptor: Optional[int] = None, **fields: Any) -> bool:
        """Whether the supervisor could be told now."""
        try:
            messages.tell(self._tether, descriptor, **fields)
        except BlockingIOError:
            return False
        except OSError:
            os._exit(0)  # it is gone, and kills this process next
        return True

    # -------------------------------------------------------------- time

    def _look(self, now: float) -> None:
        """What is due."""
        with self._lock:
            late = self._desk.overdue(now)
            stuck = any(now - (call.abandoned_at or now) >= STUCK_S for call in self._desk.abandoned)
        for call in late:
            self._stop(call)
            self._refuse(call.client, call.frame.call_id, "DeadlineExceeded", "the call was not done in its time")
        for line in [line for line in self._lines.values() if line.by is not None and now >= line.by]:
            self._drop(line)
        self._keep_alive(now)
        if stuck and not self._stuck:
            self._stuck = self._tell(stuck=True)
        self._report()
        if self._leaving:
            self._leave()
        with self._lock:
            pause = LEAVE_S if self._leaving else REPORT_S if self._lines or self._told[:2] != (0, 0) else IDLE_S
            self._next_look = min(now + pause, self._desk.deadline())

    def _keep_alive(self, now: float) -> None:
        """A client that takes nothing is not taken for dead before its time is over."""
        if now >= self._look_at:
            self._look_at = now + KEEPALIVE_S
            for line in list(self._lines.values()):
                keep_alive(line.socket)
                if (
                    line.watched == select.EPOLLRDHUP
                ):  # its end may lie behind what is not read: see the watcher of a session
                    line.send(frames.pack(frames.PONG, 0))

    def _report(self) -> None:
        desk = self._desk
        load = (desk.live - desk.waiting, desk.waiting, len(self._lines))
        if load != self._told and self._tell(load=load):
            self._told = load

    def _leave(self) -> None:
        """Part with each client that rests at the end of a frame, all its calls answered; with none left, exit."""
        for line in list(self._lines.values()):
            self._rewatch(line)
            with self._lock:
                busy = self._desk.of(line) or line.answering or line.backlog or line.reader.missing
            if not busy and self._parted(line):
                with self._lock:
                    self._forget(line)
                line.close(shutdown=not self._succeeded)
        if not self._lines and self._tell(outcome="closed"):
            os._exit(0)

    def _parted(self, line: Line) -> bool:
        """Give a client to the successor, or tell it that there is none; whether that could be done now."""
        if self._succeeded:
            return self._tell(line.descriptor, moved=line.peer, greeted=line.greeted)
        reason = f"the module {self._name!r} is not served here any more"
        return line.send(frames.encode(frames.GOODBYE, 0, {"reason": reason}))
