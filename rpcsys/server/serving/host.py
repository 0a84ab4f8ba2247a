"""A model host: the process of one deployed version, with many clients and one copy of its weights.

The rules of this file:

- One thread at a time leads: it waits for all connections together, reads, and puts calls on the desk. The others run
  calls or rest. There is one thread more than there are workers, so somebody can always lead.
- Who leads and finds a call to run hands the lead on and runs it: no call changes threads, which would cost it two
  switches. A call that is known to be quick is run without even that; a watcher takes the lead away from a thread that
  was wrong about it.
- The desk, and who leads, are changed under one lock, which nobody holds while reading, running or sending.
- Whoever takes a call off the desk answers it, once: the worker that ran it, or the leader that gives it up.
- Nothing waits for a client. What one does not take stays in its line, and nothing more is read from it meanwhile.

When it is to leave (a new version, or the end), it stops reading, finishes the calls it has, and gives each connection back
at the end of a frame: the successor goes on with it, and its client never knows.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Set, Tuple

from rpcsys.errors import ProtocolError
from rpcsys.module import surroundings
from rpcsys.server import messages
from rpcsys.server.faults import error_fields
from rpcsys.server.serving.calls import Calls
from rpcsys.server.serving.desk import Call, Desk
from rpcsys.server.serving.line import Line
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.frames import Frame
from rpcsys.wire.memory import Pool

#: Calls of a function that took no longer the last time are run by the thread that leads.
QUICK_S = 300e-6
#: A call that was taken for quick and is not done by then costs the thread that runs it the lead.
WATCH_S = 0.02
#: Without quick calls for so long, the watcher sleeps.
WATCHED_S = 1.0
#: Between two reports of the load.
REPORT_S = 0.5
#: A client that says nothing after the handshake, or takes nothing that it was sent.
HELLO_S = 10.0
STALLED_S = 60.0
#: Calls a client may have under way; what it sends beyond stays with the system, and then with it.
WINDOW_CALLS = 64
#: A call that nobody waits for and that runs for so long makes the host a case for its successor.
STUCK_S = 5.0
#: Between two looks at what is left to do when the host leaves.
LEAVE_S = 0.005
#: With nobody connected there is little to look after.
IDLE_S = 60.0
#: Functions that are remembered as quick.
MAX_QUICK = 1024
_READ = select.EPOLLIN | select.EPOLLRDHUP
_WRITE = select.EPOLLOUT | select.EPOLLRDHUP
_GONE = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class Host:
    """The threads of a host and its clients.

    ``hello``: what each client is greeted with; ``tether``: to the supervisor, not blocking; ``window_bytes``: what one
    client's frame may bring.
    """

    def __init__(
        self, calls: Calls, desk: Desk, tether: socket.socket, hello: Dict[str, Any], window_bytes: int
    ) -> None:
        self._calls = calls
        self._desk = desk
        self._tether = tether
        self._hello = frames.encode(frames.HELLO, 0, hello)
        self._name: str = hello["serve"]["name"]
        self._pool = Pool()
        self._window_bytes = window_bytes
        self._lines: Dict[int, Line] = {}
        self._epoll = select.epoll()
        self._epoll.register(tether.fileno(), select.EPOLLIN)
        self._lock = threading.Lock()
        self._leader: Optional[int] = None
        self._resting: List[Any] = []
        self._quick: Set[str] = set()
        self._turn = 0
        self._at_once: Optional[int] = None
        self._watching = False
        self._watch = threading.Lock()
        self._watch.acquire()
        self._leaving = False
        self._succeeded = False
        self._next_look = 0.0
        self._told: Tuple[int, ...] = ()
        self._stuck = False

    def run(self) -> NoReturn:
        """Serve until the supervisor wants no more; this thread keeps watch."""
        for _ in range(self._desk.workers + 1):
            _begin(self._live)
        while True:
            self._keep_watch()

    # -------------------------------------------------------------- threads

    def _live(self) -> None:
        """Lead, run calls and rest, until a call has run that was given up: another thread is there in its place."""
        me = threading.get_ident()
        wanted = True
        while wanted:
            rest: Any = None
            with self._lock:
                call = self._desk.take()
                if call is not None:
                    self._wake()
                elif self._leader is None:
                    self._leader = me
                else:
                    rest = threading.Lock()
                    rest.acquire()
                    self._resting.append(rest)
            if call is not None:
                wanted = self._run(call)
                call = None
            elif rest is not None:
                rest.acquire()
            else:
                wanted = self._lead(me)

    def _wake(self) -> None:
        """Wake whom the lead and the desk have something for; with the lock held."""
        desk = self._desk
        wanted = (self._leader is None) + min(desk.waiting, desk.free)
        while wanted > 0 and self._resting:
            self._resting.pop().release()
            wanted -= 1

    def _lead(self, me: int) -> bool:
        """Read for everybody until there is a call that may last; that is run last, by this thread. As `_run`."""
        now = time.monotonic()
        while True:
            for descriptor, events in self._epoll.poll(max(0.0, self._next_look - now)):
                self._attend(descriptor, events)
            now = time.monotonic()
            if now >= self._next_look:
                self._look(now)
            with self._lock:
                call = self._desk.take()
                if call is None:
                    continue
                if self._desk.waiting or _function(call) not in self._quick:
                    self._leader = None
                    self._wake()
                else:
                    self._at_once = me
                    self._turn += 1
                    if not self._watching:
                        self._watching = True
                        self._watch.release()
            at_once = self._at_once == me
            wanted = self._run(call)
            call = None  # what its arrays lie in is there for the next
            with self._lock:
                if at_once:
                    self._at_once = None if self._at_once == me else self._at_once
                    self._turn += 1
                if self._leader != me:
                    return wanted

    def _keep_watch(self) -> None:
        """While there are quick calls, take the lead from a thread whose call is none."""
        self._watch.acquire()
        idle = 0.0
        while idle < WATCHED_S:
            turn = self._turn
            time.sleep(WATCH_S)
            with self._lock:
                idle = 0.0 if self._turn != turn or self._at_once else idle + WATCH_S
                if self._at_once and self._turn == turn:
                    self._at_once = self._leader = None
                    self._wake()
                self._watching = idle < WATCHED_S

    # -------------------------------------------------------------- calls

    def _run(self, call: Call) -> bool:
        """Run a call and answer it; False if it was given up meanwhile."""
        line: Line = call.client
        started = time.perf_counter()
        surroundings.thread.stops = call.on_stop
        pieces = self._calls.answer(call.frame)
        surroundings.thread.stops = None
        quick = time.perf_counter() - started <= QUICK_S
        function = _function(call)
        with self._lock:
            wanted = self._desk.finish(call)
            line.answering += wanted
            if not quick:
                self._quick.discard(function)
            elif len(self._quick) < MAX_QUICK:
                self._quick.add(function)
        if wanted:
            line.send(pieces)
            with self._lock:
                line.answering -= 1
            if line.watched != _READ or line.backlog:
                self._rewatch(line)
        return wanted

    def _put(self, line: Line, frame: Frame) -> None:
        """A client sends a CALL."""
        due = time.monotonic() + frame.deadline_ms / 1000 if frame.deadline_ms else math.inf
        with self._lock:
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

    def _stop(self, call: Call) -> None:
        """A call was given up: stop it if it runs and can be stopped, and have another thread for its own, which it keeps."""
        if call.abandoned_at is None:
            return
        for stop in call.on_stop:
            stop()
        try:
            _begin(self._live)
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

    def _attend(self, descriptor: int, events: int) -> None:
        line = self._lines.get(descriptor)
        if line is None:
            if descriptor == self._tether.fileno():
                self._obey()
            return
        try:
            if events & select.EPOLLOUT:
                line.flush()
            if events & select.EPOLLIN:
                for frame in line.receive(self._leaving):
                    self._take(line, frame)
            elif events & _GONE:
                raise Ended("the connection was closed")
        except Ended:
            self._drop(line)
        except ProtocolError as error:
            self._refuse(line, 0, "ProtocolError", str(error), fault="network")
            self._drop(line)
        else:
            if line.watched != _READ or line.backlog or self._desk.of(line) >= WINDOW_CALLS:
                self._rewatch(line)

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
            if line.backlog:
                wanted = _WRITE
                line.by = line.by or time.monotonic() + STALLED_S
            else:
                line.by = line.by if not line.greeted else None
                full = self._desk.of(line) >= WINDOW_CALLS or (self._leaving and not line.reader.missing)
                wanted = select.EPOLLRDHUP if full else _READ
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
        self._epoll.unregister(line.descriptor)

    def _welcome(self, sock: socket.socket, order: Dict[str, Any]) -> None:
        """A client that the supervisor hands over; ``reply``: the answer to its greeting, if it had none yet."""
        line = Line(sock, str(order["client"]), self._pool, self._window_bytes)
        line.greeted = order["greeted"]
        if not line.greeted:
            line.by = time.monotonic() + HELLO_S
        self._lines[line.descriptor] = line
        line.watched = _READ
        self._epoll.register(line.descriptor, _READ)
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
            self._refuse(
                call.client, call.frame.call_id, "DeadlineExceeded", "the call was not done in its time"
            )
        for line in [line for line in self._lines.values() if line.by is not None and now >= line.by]:
            self._drop(line)
        if stuck and not self._stuck:
            self._stuck = self._tell(stuck=True)
        self._report()
        if self._leaving:
            self._leave()
        with self._lock:
            pause = (
                LEAVE_S if self._leaving else REPORT_S if self._lines or self._told[:2] != (0, 0) else IDLE_S
            )
            self._next_look = min(now + pause, self._desk.deadline())

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


def _function(call: Call) -> str:
    """The name of the function that a call is for, if it is one."""
    target = call.frame.plan.head.get("f")
    return target[1] if type(target) is list and len(target) == 2 and type(target[1]) is str else ""


def _begin(target: Callable[[], None]) -> None:
    threading.Thread(target=target, name="rpcsys-host", daemon=True).start()
