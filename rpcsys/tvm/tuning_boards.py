"""Measures candidates on the boards of one key: a thread and a session for each board, as long as there are candidates.

Between two rounds sessions stay open, unless somebody waits for the boards, or they are idle for long.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rpcsys.aio.tracker import SingleRequest
from rpcsys.client import Tracker
from rpcsys.errors import ConnectError, NotSupported, RpcsysError, SessionClosed, WaitTimeout, one_line
from rpcsys.link.backoff import Backoff
from rpcsys.tvm.measured import KnownResults
from rpcsys.tvm.open_board import OpenBoard, TuningPlan
from rpcsys.tvm.tuning_state import Candidate, CandidateQueue

#: Seconds between two looks at the key's queue: for further boards, and for those who wait while sessions are idle.
LOOK_S = 1.0
UNKNOWN_S = 30.0  # the next look after one at a tracker that does not answer
#: Seconds after which an idle session is closed.
IDLE_S = 600.0
#: Seconds that a further board may take to be free, and to be leased: it was free a moment ago.
FURTHER_S = 2.0
#: Candidates whose object files are linked ahead, and threads that link.
LINKED_AHEAD = 8
LINKERS = min(4, os.cpu_count() or 1)
_PAUSE_S = (0.1, 2.0)
_CLOSE_S = 5.0  # until the threads of a closed runner have ended
_log = logging.getLogger("rpcsys.tuning")


class Boards:
    """The boards of a key, for candidates that are added at any time. ``measured``: what is known, and is kept."""

    def __init__(self, tracker: Tracker, plan: TuningPlan, measured: KnownResults) -> None:
        self.tracker = tracker
        self._plan = plan
        self._measured = measured
        self._lock = threading.Lock()
        self._queue = CandidateQueue()
        self._threads: set[_BoardThread] = set()
        self._idle: list[OpenBoard] = []
        self._next_look = 0.0
        self._known = False  # whether the key has had a board
        self._watcher: threading.Thread | None = None
        self._closing = threading.Event()
        self._linkers = ThreadPoolExecutor(LINKERS, "rpcsys-link")
        self.counts = {"measured": 0, "known": 0}

    @property
    def held(self) -> int:
        """The boards in use, idle or being opened."""
        with self._lock:
            return len(self._threads) + len(self._idle)

    def measure(self, wanted: list[Candidate]) -> None:
        """Have these measured; returns at once. Their outcomes are set by other threads."""
        with self._lock:
            refused = wanted if self._closing.is_set() else []
            for candidate in wanted if not refused else ():
                self._queue.add(candidate)
            self._next_look = 0.0
            if len(self._queue) and not self._threads:
                self._start(further=False)
        for candidate in refused:
            candidate.answer(error=runner_closed())

    def close(self) -> None:
        """Give the boards back. Candidates that wait fail. A second call does nothing."""
        self._closing.set()
        with self._lock:
            threads, idle, self._idle = list(self._threads), self._idle, []
        for thread in threads:
            thread.stop()
        for open_board in idle:
            open_board.session.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_S)
        with self._lock:
            waiting = self._queue.drain()
        for candidate in waiting:
            candidate.answer(error=runner_closed())
        self._linkers.shutdown(wait=False, cancel_futures=True)
        self._measured.close()  # before the tracker, which may keep what was measured
        self.tracker.close()

    # What an open board asks for (`CandidateSource`).

    def grow(self) -> None:
        """Use further boards, if candidates wait, and boards are idle, or free without anybody who waits for them."""
        with self._lock:
            room = (self._plan.boards or len(self._queue)) - len(self._threads)
            if room <= 0 or len(self._queue) < 2 or time.monotonic() < self._next_look or self._closing.is_set():
                return
            self._next_look = time.monotonic() + LOOK_S
        seen = self._seen()
        with self._lock:
            if seen is None:
                self._next_look = time.monotonic() + UNKNOWN_S
            free, waiting = seen or (0, True)
            count = min(room, len(self._queue) // 2, len(self._idle) + (0 if waiting else free))
            for _ in range(count):
                self._start(further=True)

    def take(self, *, fresh: bool) -> Candidate | None:
        """The next candidate for a session. The object files of those behind it are linked meanwhile."""
        with self._lock:
            taken = self._queue.take(fresh=fresh)
            ahead = self._queue.first(LINKED_AHEAD) if taken is not None else []
        for candidate in ahead:
            candidate.artefact.prepare(self._linkers)
        return taken

    def lost(self, under_way: list[Candidate], error: Exception) -> None:
        """A session ended by ``error``; it is the outcome of a candidate for which it is the second one."""
        with self._lock:
            failed = self._queue.lost(under_way)
        if failed is not None:
            failed.answer(error=error)

    def put_back(self, under_way: list[Candidate]) -> None:
        """These were not run, and wait again."""
        with self._lock:
            self._queue.put_back(under_way)

    def keep(self, candidate: Candidate, board: dict[str, Any], seconds: list[float]) -> None:
        """Keep a result."""
        self._measured.keep(candidate, board, seconds)
        with self._lock:
            self.counts["measured"] += 1

    # What a thread asks for.

    def opened(self, request: SingleRequest, *, further: bool) -> OpenBoard:
        """An idle session, or a new one. Raises `RpcsysError`."""
        others_wait = self._others_wait()
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            if idle is None and further:
                self._await_free()
            if idle is None:
                return self._leased(request, FURTHER_S if further else self._plan.wait_timeout_s)
            if not others_wait and idle.session.closed is None:
                return idle
            idle.session.close()

    def answer_known(self, board: dict[str, Any]) -> None:
        """Set the outcomes of those that wait and were measured before on such a board."""
        with self._lock:
            waiting = list(self._queue)
        known = self._measured.find(waiting, board)
        with self._lock:
            still = [candidate for candidate in self._queue if candidate in known]
            for candidate in still:
                self._queue.remove(candidate)
            self.counts["known"] += len(still)
        for candidate in still:
            candidate.answer(known[candidate])

    def others_measure(self) -> bool:
        """Whether candidates are measured on any board."""
        with self._lock:
            return any(not thread.waits for thread in self._threads)

    def waiting(self) -> bool:
        """Whether candidates wait."""
        with self._lock:
            return len(self._queue) > 0

    def ended(self, thread: _BoardThread, left: OpenBoard | None, error: Exception | None) -> None:
        """A thread ends, with an open session that is ``left``, or with the ``error`` for which it has none."""
        with self._lock:
            self._threads.discard(thread)
            closing = self._closing.is_set()
            if left is not None and not closing and left.session.closed is None:
                self._idle.append(left)
                left = None
                self._watch()
            unneeded = [] if len(self._queue) else [other for other in self._threads if other.waits]
            failed = self._queue.drain() if error is not None and not self._threads else []
            if len(self._queue) and not self._threads and not closing:
                self._start(further=False)  # some came, or came back, meanwhile
        if left is not None:
            left.session.close()
        for other in unneeded:
            other.stop()  # its request would take a board for nothing
        for candidate in failed:
            candidate.answer(error=runner_closed() if closing else error)

    def _start(self, *, further: bool) -> None:
        """Start a thread for another board. The caller has the lock."""
        thread = _BoardThread(self, further)
        self._threads.add(thread)
        thread.start()

    def _await_free(self) -> None:
        """Wait until a board is free for which nobody waits. Raises `WaitTimeout` after `FURTHER_S` seconds."""
        until = time.monotonic() + FURTHER_S
        while (seen := self._seen()) is None or not seen[0] or seen[1]:
            if time.monotonic() > until or self._closing.wait(_PAUSE_S[0]):
                raise WaitTimeout(f"no further board of {self._plan.key} is free")

    def _leased(self, request: SingleRequest, limit_s: float | None) -> OpenBoard:
        plan, backoff = self._plan, Backoff(*_PAUSE_S)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                session = request.made(plan.key, plan.priority, wait_timeout=left, wait_for_key=self._known)
                self._known = True
                return OpenBoard(session, plan)
            except ConnectError as error:
                # Before the first board it is the user's mistake; later the tracker or the board comes back.
                if not self._known or left == 0 or self._closing.is_set() or isinstance(error, NotSupported):
                    raise
                _log.warning("no board of %s: %s; trying again", plan.key, one_line(error))
                self._closing.wait(backoff.pause_within(_PAUSE_S[1] if left is None else left) or 0.0)

    def _others_wait(self) -> bool:
        """Whether somebody waits for the boards whose sessions are idle, and goes before this runner."""
        if not self._idle:
            return False
        seen = self._seen()
        return seen is not None and seen[1]

    def _seen(self) -> tuple[int, bool] | None:
        """The key's free boards, and whether somebody waits with this priority or a higher one; None: not known."""
        plan = self._plan
        try:
            try:
                why = self.tracker.why(plan.key)
                return why["free"], any(row["priority"] >= plan.priority for row in why["queue"])
            except NotSupported:  # TVM's tracker does not tell who waits
                counts = self.tracker.summary()["queue_info"].get(plan.key, {"free": 0, "pending": 0})
                return counts["free"], counts["pending"] > 0
        except RpcsysError:
            return None

    def _watch(self) -> None:
        """Have a thread watch the idle sessions. The caller has the lock."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch_idle, name="rpcsys-tuning-idle", daemon=True)
            self._watcher.start()

    def _watch_idle(self) -> None:
        idle = True
        while idle and not self._closing.wait(LOOK_S):
            since = time.monotonic() + IDLE_S if self._others_wait() else time.monotonic() - IDLE_S
            with self._lock:
                ended = [one for one in self._idle if one.used < since or one.session.closed is not None]
                self._idle = [one for one in self._idle if one not in ended]
                idle = bool(self._idle)
                if not idle:
                    self._watcher = None
            for one in ended:
                one.session.close()


class _BoardThread(threading.Thread):
    """Measures candidates on one board. ``further``: it is one that others can do without."""

    def __init__(self, boards: Boards, further: bool) -> None:
        super().__init__(name="rpcsys-tuning", daemon=True)
        self._boards = boards
        self._further = further
        self._request = SingleRequest(boards.tracker)
        self._open: OpenBoard | None = None
        self._stopped = False

    @property
    def waits(self) -> bool:
        """Whether it has no board."""
        return self._open is None

    def stop(self) -> None:
        """Have it end soon. For any thread."""
        self._stopped = True
        self._request.cancel()
        if self._open is not None:
            self._open.session.close()

    def run(self) -> None:
        error: Exception | None = None
        try:
            while not self._stopped:
                self._open = self._boards.opened(self._request, further=self._further)
                self._further = False
                self._boards.answer_known(self._open.board)
                alive = self._open.measure(self._boards)
                if alive and not self._boards.waiting():
                    break
                self._close()
                if not self._boards.waiting():
                    break
                self._further = self._boards.others_measure()
                self._request = SingleRequest(self._boards.tracker)
        except Exception as problem:  # noqa: BLE001 - the candidates' outcomes tell it
            self._close()
            error = problem
        left, self._open = self._open, None
        self._boards.ended(self, left, None if self._further or self._stopped else error)

    def _close(self) -> None:
        if self._open is not None:
            self._open.session.close()
            self._open = None


def runner_closed() -> Exception:
    """The error of candidates that come to a closed runner, or wait as it closes."""
    return SessionClosed("the runner is closed; make another one")
