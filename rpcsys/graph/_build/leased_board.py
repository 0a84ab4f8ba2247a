"""Boards that are leased for stages: one session each, to which the stages are sent; another one if it is lost.

Calls whose board is lost run again. They use another board of the same stages until a new board is leased. They run one
at a time, and each on `TRIES` boards at most. So a frame that crashes boards fails, and the frames that were under way
beside it do not. Frames that wait for a board at the same time share one wait.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from rpcsys import client
from rpcsys.errors import (
    ConnectError,
    RemoteFunctionError,
    RpcsysError,
    SessionClosed,
    SessionLost,
    SessionTimeout,
    UsageError,
    one_line,
)
from rpcsys.graph._build.session_device import check_devices, check_encoding, encoded_call
from rpcsys.graph._build.stage_library import StageLibrary
from rpcsys.graph._build.targets import Leased
from rpcsys.link.address import tracker_text

TRIES = 3  # boards that one frame may lose; after that the loss is the frame's error
_LOST = (SessionLost, SessionTimeout, SessionClosed)  # the board or its server died, or the lease ended
_ALIKE = ("wait_s", "encode", "deadline_s")  # fields of targets that stages of one board have in common
_RETRY_S = 0.25  # seconds between two requests while there is no tracker or no board

_log = logging.getLogger("rpcsys.pipeline")


class LeasedSession(NamedTuple):
    """A session with a board, and the function that calls each library there."""

    session: client.Session
    calls: Mapping[StageLibrary, Callable[..., Any]]


class LeasedBoards:
    """Boards that run the same stages and take over from each other, by their numbers."""

    def __init__(self, leased: Leased) -> None:
        self.leased = leased
        self.libraries: list[StageLibrary] = []  # what is sent to each board
        self.members: dict[int, LeasedBoard] = {}  # those in use
        self.rerun_lock = threading.Lock()  # held while a frame is run again
        self.given_up: tuple[float, RpcsysError] | None = None  # when the last wait for a board failed, and why

    def member(self, number: int) -> LeasedBoard:
        """The board with that number, for one more user of it (`LeasedBoard.leave`)."""
        board = self.members.get(number)
        if board is None:
            board = self.members[number] = LeasedBoard(self, number)
        board.users += 1
        return board


class SharedBoards:
    """The boards that stages with devices share: ``of`` has those of each stage.

    ``leased`` are the targets of these stages, by their names. Raises `UsageError` for stages of one board whose calls
    differ.
    """

    def __init__(self, leased: Mapping[str, Leased]) -> None:
        self.leased = leased
        self.of: dict[str, LeasedBoards] = {}
        found: dict[Hashable, tuple[str, LeasedBoards]] = {}
        for name, each in leased.items():
            first, boards = found.setdefault((_tracker(each), each.key, each.board), (name, LeasedBoards(each)))
            for field in _ALIKE:
                if getattr(each, field) != getattr(boards.leased, field):
                    text = f"{first!r} and {name!r} share a board of {each.key}, and have another {field} each"
                    raise UsageError(f"{text}: give both the same, or each a board= of its own")
            self.of[name] = boards


def _tracker(leased: Leased) -> Hashable:
    """The tracker of a target, equal for equal addresses."""
    given = leased.tracker
    return given if isinstance(given, str) or hasattr(given, "request") else tracker_text(given)


class LeasedBoard:
    """One board at a time: `lease` or the first call leases it, and the last user that leaves releases it.

    Several threads may call it.
    """

    def __init__(self, boards: LeasedBoards, number: int) -> None:
        self.boards, self.number = boards, number
        self.leased = boards.leased
        self.users = 0
        self._options = {"deadline_s": self.leased.deadline_s} if self.leased.deadline_s else {}
        self._current: LeasedSession | None = None
        self._lock = threading.Lock()  # guards the current session; held briefly
        self._lease_lock = threading.Lock()  # held while waiting for a board
        self._replacing: threading.Thread | None = None
        self._ended = threading.Event()

    @property
    def session(self) -> client.Session | None:
        """The session with the board that is leased now, if any."""
        current = self._current
        return current.session if current is not None else None

    def lease(self) -> None:
        """Lease the board and send it the stages, unless done. Raises as `Tracker.request` and `load_module` do."""
        self._own(time.monotonic())

    def leave(self) -> None:
        """One user less; the last one releases the board, and ends the calls under way on it."""
        self.users -= 1
        if self.users:
            return
        self._ended.set()
        self.boards.members.pop(self.number, None)
        with self._lock:
            current, self._current = self._current, None
            self.boards.given_up = None  # its traceback refers to this board
        if current is not None:
            current.session.close()

    def call(self, library: StageLibrary, *args: Any) -> Any:
        """Call a library's function there."""
        try:
            return self._any(time.monotonic()).calls[library](*args)
        except _LOST:
            since = time.monotonic()
        with self.boards.rerun_lock:
            for _ in range(TRIES - 2):
                current = self._any(since)
                with contextlib.suppress(*_LOST):
                    return current.calls[library](*args)
            return self._any(time.monotonic()).calls[library](*args)

    def _live(self) -> LeasedSession | None:
        current = self._current
        return current if current is not None and current.session.closed is None else None

    def _any(self, since: float) -> LeasedSession:
        """Return its own session or, while that is lost, another member's. ``since``: when the wait began."""
        own = self._live()
        if own is not None:
            return own
        for member in list(self.boards.members.values()):
            live = member._live()
            if live is not None:
                self._lease_in_background()
                return live
        return self._own(since)

    def _lease_in_background(self) -> None:
        """Start to lease a board in place of the lost one, without waiting for it."""
        with self._lock:
            if self._ended.is_set() or (self._replacing is not None and self._replacing.is_alive()):
                return
            self._replacing = threading.Thread(target=self._lease_again, name="lease", daemon=True)
            self._replacing.start()

    def _lease_again(self) -> None:
        try:
            self._own(time.monotonic())
        except RpcsysError as error:
            _log.warning("no other device of %s yet: %s", self.leased.key, one_line(error))

    def _own(self, since: float) -> LeasedSession:
        """Return its own session; lease a board if it has none or has lost it.

        Raises the error of another frame's wait that has ended after ``since``: this frame has waited, too.
        """
        with self._lease_lock:
            self._check_open()
            live = self._live()
            if live is not None:
                return live
            given_up = self.boards.given_up
            if given_up is not None and given_up[0] >= since:
                raise given_up[1]
            lost = self._current
            if lost is not None:
                lost.session.close()
            try:
                current = self._wait(again=lost is not None)
            except RpcsysError as error:
                self.boards.given_up = (time.monotonic(), error)
                raise
            with self._lock:
                if not self._ended.is_set():
                    self._current = current
                    return current
            current.session.close()
            self._check_open()
        raise AssertionError("a board that nobody uses is not open")

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise RemoteFunctionError("the module was closed; load it again")

    def _wait(self, again: bool) -> LeasedSession:
        """Wait for a board. ``again``: it had one before, so wait for a missing tracker or key, too."""
        deadline = time.monotonic() + self.leased.wait_s
        if again:
            waits = "its frames wait for another one, up to"
            _log.warning("the device of %s is lost; %s %g s", self.leased.key, waits, self.leased.wait_s)
        while True:
            try:
                return self._request(max(0.0, deadline - time.monotonic()), again)
            except (ConnectError, *_LOST):
                if not again or time.monotonic() + _RETRY_S > deadline:
                    raise
            self._ended.wait(_RETRY_S)
            self._check_open()

    def _request(self, wait_s: float, again: bool) -> LeasedSession:
        given = self.leased.tracker
        tracker = given if hasattr(given, "request") else client.connect_tracker(given or None)
        try:
            session = tracker.request(self.leased.key, wait_timeout=wait_s, wait_for_key=again)
        finally:
            if tracker is not given:
                tracker.close()
        try:
            return LeasedSession(session, {each: self._loaded(session, each) for each in self.boards.libraries})
        except BaseException:
            session.close()
            raise

    def _loaded(self, session: client.Session, library: StageLibrary) -> Callable[..., Any]:
        name = f"key:{self.leased.key}"
        check_encoding(session, self.leased.encode, name)
        check_devices(session, library.devices, name)
        module = session.load_module(library.path_for(session))
        return encoded_call(module, self.leased.encode, **self._options)
