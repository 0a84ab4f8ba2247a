"""The threads of a model host. One at a time is the leader: it polls all connections, reads, and fills the queue.

The others run calls or wait; there is one thread more than workers. One lock protects only the queue and the leader.
"""

from __future__ import annotations

import select
import threading
import time
from typing import Any, Callable, Optional

from rpcsys.module.module import running_call
from rpcsys.server.models.call_queue import Call, CallQueue
from rpcsys.server.models.connection import ClientConnection
from rpcsys.server.session.calls import Calls
from rpcsys.server.session.outgoing import exception_frame
from rpcsys.wire.frames import Buffer, Frame

QUICK_S = 300e-6  # a function is quick if its last call took no longer: the leader itself runs its calls
WATCH_S = 0.02  # a leader that runs a call for longer loses the lead
WATCHED_S = 1.0  # after so long without quick calls, the watcher sleeps
MAX_QUICK = 1024  # functions remembered as quick
READ = select.EPOLLIN | select.EPOLLRDHUP  # the events of a client that may send more


class WorkerPool:
    """The threads' leading, running and watching. `ModelHost` handles the frames and the clients.

    - A leader that finds a call to run hands on the lead and runs the call: no call changes threads. If no other work
      waits, the leader runs a quick call at once, without the queue, and keeps the lead. If that call is slow after
      all, the watcher adds it to the queue and takes the lead away.
    - The thread that takes a call off the queue answers it, once: a worker that ran it, or the leader that gives it up.
    """

    def __init__(self, calls: Calls, queue: CallQueue) -> None:
        self._calls = calls
        self._queue = queue
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._leader: Optional[int] = None  # a thread's identifier
        self._resting: list[Any] = []  # a held lock for each thread that waits
        self._quick: set[str] = set()  # functions whose last call was quick
        self._turn = 0  # counts the calls run at once
        self._at_once: Optional[Call] = None  # the one that runs now
        self._watching = False
        self._watch = threading.Lock()
        self._watch.acquire()
        self._next_due = 0.0

    def _attend(self, descriptor: int, events: int, alone: bool) -> Optional[Call]:
        """Handle a ready descriptor, ``alone`` if no other is ready. Return a call that may run without the queue."""
        raise NotImplementedError

    def _do_due(self, now: float) -> None:
        """Do the work that is due; to be called again at ``_next_due``."""
        raise NotImplementedError

    def _rewatch(self, connection: ClientConnection) -> None:
        """Watch for the client's next frame or, if data waits to be sent, for a writable socket."""
        raise NotImplementedError

    def _live(self) -> None:
        """Lead, run calls and wait, until a call was given up while it ran: another thread has replaced this one."""
        me = threading.get_ident()
        wanted = True
        while wanted:
            rest: Any = None
            with self._lock:
                call = self._queue.take()
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
        """Wake threads for the lead and for the queue's calls; with the lock held."""
        wanted = (self._leader is None) + min(self._queue.waiting, self._queue.free)
        while wanted > 0 and self._resting:
            self._resting.pop().release()
            wanted -= 1

    def _lead(self, me: int) -> bool:
        """Read for all clients until there is a call that may be slow; run it, and return as `_run` does."""
        now = time.monotonic()
        while True:
            ready = self._epoll.poll(max(0.0, self._next_due - now))
            for descriptor, events in ready:
                call = self._attend(descriptor, events, len(ready) == 1)
                if call is not None and not self._run_at_once(call, me):
                    return call.abandoned_at is None
            call = None  # frees the memory of its arrays for the next
            now = time.monotonic()
            if now >= self._next_due:
                self._do_due(now)
            if not self._queue.waiting:
                continue
            with self._lock:
                call = self._queue.take()
                if call is None:
                    continue
                self._leader = None
                self._wake()
            return self._run(call)

    def _run_at_once(self, call: Call, me: int) -> bool:
        """Run a quick call as the leader; False if it was slow, and another thread leads now."""
        with self._lock:
            self._at_once = call
            self._turn += 1
            if not self._watching:
                self._watching = True
                self._watch.release()
        pieces, quick = self._answered(call)
        with self._lock:
            self._at_once = None
            if call.state == "waiting":
                if not quick:
                    self._quick.discard(function_of(call.frame))
            elif not self._finished(call, quick):
                return False
        self._reply(call, pieces)
        return self._leader == me

    def _keep_watch(self) -> None:
        """While there are quick calls, take the lead from a thread whose call turns out slow."""
        self._watch.acquire()
        idle = 0.0
        while idle < WATCHED_S:
            turn = self._turn
            time.sleep(WATCH_S)
            with self._lock:
                idle = 0.0 if self._turn != turn or self._at_once else idle + WATCH_S
                if self._at_once is not None and self._turn == turn:
                    self._queue.adopt(self._at_once)
                    self._at_once = self._leader = None
                    self._wake()
                self._watching = idle < WATCHED_S

    def _run(self, call: Call) -> bool:
        """Run a call and answer it; False if it was given up meanwhile."""
        pieces, quick = self._answered(call)
        with self._lock:
            wanted = self._finished(call, quick)
        if wanted:
            self._reply(call, pieces)
        return wanted

    def _answered(self, call: Call) -> tuple[list[Buffer], bool]:
        """Run a call: the pieces of its answer, and whether it was quick."""
        started = time.perf_counter()
        running_call.stops = call.on_stop
        try:
            pieces = self._calls.answer(call.frame)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            pieces = exception_frame(call.frame.call_id, error)
        running_call.stops = None
        return pieces, time.perf_counter() - started <= QUICK_S

    def _finished(self, call: Call, quick: bool) -> bool:
        """Note that a call of the queue has run; return whether to answer it. With the lock held."""
        function = function_of(call.frame)
        if not quick:
            self._quick.discard(function)
        elif len(self._quick) < MAX_QUICK:
            self._quick.add(function)
        wanted = self._queue.finish(call)
        call.client.answering += wanted
        return wanted

    def _reply(self, call: Call, pieces: list[Buffer]) -> None:
        connection: ClientConnection = call.client
        connection.send(pieces)
        if call.state != "waiting":
            with self._lock:
                connection.answering -= 1
        if connection.watched != READ or connection.backlog:
            self._rewatch(connection)


def function_of(frame: Frame) -> str:
    """The name of the module's function that a frame calls; empty if there is none."""
    target = frame.parsed.head.get("f")
    return target[1] if type(target) is list and len(target) == 2 and type(target[1]) is str else ""


def begin(target: Callable[[], None]) -> None:
    """Start a thread."""
    threading.Thread(target=target, name="rpcsys-host", daemon=True).start()
