"""A connection that is opened when it is needed, and opened anew when it was lost.

The rules of this file:

- Nothing connects before somebody asks. A server that never was there is an error at once: it may be a wrong address.
- One that was there is looked for, with growing pauses, as long as the caller may wait. One caller looks for all.
- Who does not want to wait has a thread look for it, which gives up when nobody has asked for a while.
- A connection that is given up is closed only if it is lost: others may have calls under way on it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Collection, Dict, NamedTuple, Optional, Sequence

from rpcsys.errors import (
    ConnectError,
    NotSupported,
    RemoteError,
    RpcsysError,
    SessionClosed,
    SessionError,
    TrackerError,
    one_line,
)
from rpcsys.link.backoff import RETRY_S, Backoff, jitter

#: What a server that starts, moves or is restarted answers, if anything; one that is none of ours says so for ever.
_FOR_NOW = (ConnectError, TrackerError, SessionError)
#: How long who does not want to wait waits for a first try: a server that is there has answered by then.
FIRST_TRY_S = 1.0
#: So long is a server looked for that nobody asks for any more.
IDLE_S = 60.0
#: A busy server is avoided for so long, where there are others.
AVOID_S = 1.0
_log = logging.getLogger("rpcsys.remote")


class OpenConnection(NamedTuple):
    """What can be called, where it is, what to close in the end, and whether there are ``others``: more servers."""

    call: Callable[..., Any]
    where: str
    held: Sequence[Any]
    others: bool = False

    def close(self) -> None:
        for one in self.held:
            one.close()


#: Given the seconds it may take and the addresses to avoid, opens one. Raises `RpcsysError`.
Opener = Callable[[float, Collection[str]], OpenConnection]


class ReconnectingConnection:
    """At most one connection, for any number of threads.

    Attributes
    ----------
    current : the connection; None while there is none
    opened : how many have been opened
    problem : what went wrong the last time one was to be opened
    """

    def __init__(self, open: Opener, wait_s: float) -> None:
        self._open = open
        self._wait_s = wait_s
        self.current: Optional[OpenConnection] = None
        self.opened = 0
        self._opening = threading.Lock()
        self._avoided: Dict[str, float] = {}
        self.problem: Optional[RpcsysError] = None
        self._gave_up_at = -1.0
        self._closing = threading.Event()
        self._search_lock = threading.Lock()
        self._search: Optional[threading.Thread] = None
        self._search_began = self._asked = 0.0
        self._tried = threading.Event()  # whether the search has been through one try

    def get(self) -> OpenConnection:
        """The connection, opened if need be. Raises `RpcsysError` where that cannot be."""
        current = self.current
        if current is not None:
            return current
        limit = time.monotonic() + self._wait_s
        return self._found(lambda: limit if self.opened else 0.0, _is_for_now)

    def at_once(self) -> Optional[OpenConnection]:
        """The connection if it is there, or is within a second of being looked for; it is looked for on."""
        current = self.current
        if current is not None:
            return current
        with self._search_lock:
            self._asked = time.monotonic()
            if self._search is None and not self._closing.is_set():
                self._tried.clear()
                self._search_began = self._asked
                self._search = threading.Thread(target=self._look_on, name="rpcsys looks", daemon=True)
                self._search.start()
        self._tried.wait(max(0.0, self._search_began + FIRST_TRY_S - time.monotonic()))
        return self.current

    def lost(self, connection: OpenConnection) -> None:
        """It is of no use any more."""
        if self.current is connection:  # else another thread has opened a new one
            self.current = None
        connection.close()

    def crowded(self, connection: OpenConnection) -> None:
        """It takes no more calls now: the next to ask gets one to another server, if there is one."""
        if connection.others:
            self._avoided[connection.where] = time.monotonic() + AVOID_S
            if self.current is connection:
                self.current = None

    def pause(self, seconds: float) -> None:
        """Wait so long, or until `close`."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Close the connection and look for none any more."""
        self._closing.set()
        current, self.current = self.current, None
        if current is not None:
            current.close()

    # -------------------------------------------------------------- opening

    def _found(self, limit: Callable[[], float], passing: Callable[[RpcsysError], bool]) -> OpenConnection:
        """The connection, looked for until ``limit()`` as long as what goes wrong is ``passing``."""
        began = time.monotonic()
        with self._opening:
            if self.current is None and self.problem is not None and self._gave_up_at >= began:
                raise self.problem  # another caller looked meanwhile
            backoff = Backoff(*RETRY_S)
            while self.current is None:
                try:
                    return self._opened(limit())
                except RpcsysError as error:
                    self.problem = error
                    left = limit() - time.monotonic()
                    pause = backoff.pause_within(left, jitter()) if passing(error) else None
                    if pause is None or self._closing.is_set():
                        self._gave_up_at = time.monotonic()
                        raise
                    _log.debug("%s; trying again", one_line(error))
                finally:
                    self._tried.set()
                self.pause(pause)
            return self.current

    def _opened(self, limit: float) -> OpenConnection:
        self._check_open()
        connection = self._open(self._seconds(limit), self._to_avoid())
        self.opened += 1
        self.current = connection
        if self._closing.is_set():
            self.close()
            self._check_open()
        return connection

    def _seconds(self, limit: float) -> float:
        left = limit - time.monotonic()
        return max(1.0, min(left, self._wait_s)) if left > 0 else self._wait_s

    def _to_avoid(self) -> Collection[str]:
        now = time.monotonic()
        self._avoided = {where: until for where, until in self._avoided.items() if until > now}
        return self._avoided

    def _look_on(self) -> None:
        """Look for a server until it is there or nobody asks any more, whatever goes wrong."""
        try:
            self._found(lambda: self._asked + IDLE_S, lambda error: True)
        except RpcsysError as error:
            if not self._closing.is_set():
                _log.info("nobody asks for it any more: %s", one_line(error))
        finally:
            with self._search_lock:
                self._search = None
            self._tried.set()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise SessionClosed("the module was closed; load it anew")


def _is_for_now(error: RpcsysError) -> bool:
    return (isinstance(error, _FOR_NOW) and not isinstance(error, NotSupported)) or _retryable(error)


def _retryable(error: RpcsysError) -> bool:
    return isinstance(error, RemoteError) and error.retryable
