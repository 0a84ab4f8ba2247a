"""The tracker, as a user sees it: what is free, who waits, and a device on request."""

from __future__ import annotations

import contextlib
import getpass
import logging
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

from rpcsys.client import history
from rpcsys.client.opening import open_session
from rpcsys.client.session import Session
from rpcsys.client.summary import text_summary
from rpcsys.errors import (
    ConnectError,
    ProtocolError,
    ServerRefused,
    ServerUnreachable,
    TrackerLost,
    WaitTimeout,
)
from rpcsys.link import Link, parse_address, tracker_defaults
from rpcsys.wire import tracker as wire

Address = Union[None, str, Tuple[str, int]]
OnQueued = Callable[[Dict[str, Any]], None]

#: A device that was handed out and does not answer is given back; this many others are tried.
_TRIES = 3
_REPLY_S = 10.0
_log = logging.getLogger("rpcsys.tracker")


def connect_tracker(address: Address = None, *, user: Optional[str] = None, timeout: float = 5.0) -> Tracker:
    """Connect to a tracker: ``"host:port"``, ``(host, port)``, or None for the environment's.

    ``user`` is shown to others in the queue (default: the login name). Works with TVM's tracker too.
    Raises `TrackerUnreachable` when nothing that is a tracker answers within ``timeout`` seconds.
    """
    if address is None:
        address = tracker_defaults()
    elif isinstance(address, str):
        address = parse_address(address, 9190)
    tracker = Tracker((address[0], int(address[1])), user or _login_name(), timeout)
    with tracker._link():
        pass  # an address that is wrong is said here, not at the first request
    return tracker


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in many containers
        return "unknown"


class Tracker:
    """A tracker. May be used by several threads; a context manager."""

    def __init__(self, address: Tuple[str, int], user: str, timeout: float) -> None:
        self.address = address
        self.user = user
        self._timeout = timeout
        self._idle: List[Link] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return "<tracker {}:{}>".format(*self.address)

    def summary(self) -> Dict[str, Any]:
        """The queue: ``queue_info`` (free and pending by key) and ``server_info``, as TVM's; with our
        tracker also ``servers`` and ``leases``.
        """
        with self._link() as link:
            if link.ours:
                summary: Dict[str, Any] = link.ask("summary", timeout=_REPLY_S)["summary"]
                return summary
            reply = link.command([wire.SUMMARY], timeout=_REPLY_S)
            if (
                not isinstance(reply, list)
                or len(reply) != 2
                or reply[0] != 0
                or not isinstance(reply[1], dict)
            ):
                raise ProtocolError(f"the tracker's summary makes no sense: {reply!r}"[:200])
            return reply[1]

    def text_summary(self) -> str:
        """The queue as a table for people, with TVM's headings."""
        return text_summary(self.summary())

    def history(
        self,
        *,
        key: Optional[str] = None,
        user: Optional[str] = None,
        server: Optional[str] = None,
        since: Optional[float] = None,
        until: Optional[float] = None,
        limit: Optional[int] = 100,
    ) -> List[Dict[str, Any]]:
        """Leases that are over, the last to end first, at most ``limit`` (None: all).

        ``since`` and ``until`` (seconds since 1970) are about their ends. Each has lease, epoch, key, server, user,
        address, how, since, begun, ended (seconds since 1970), held_s, limit_s, waited_s, priority, outcome, reason,
        fault and cleaned. Raises `TrackerError` where the tracker keeps no history.
        """
        with self._link() as link:
            wanted = {"key": key, "user": user, "server": server}
            return list(history.leases(link, **wanted, since=since, until=until, limit=limit))

    def usage(
        self, *, key: Optional[str] = None, user: Optional[str] = None, since: Optional[float] = None
    ) -> List[Dict[str, Any]]:
        """What leases add up to by user and key, the most device time first.

        Each has user, key, leases, held_s, waited_s and faults (leases that ended by the server's own fault), counted
        from the beginning of the hour of ``since`` (seconds since 1970). Raises `TrackerError` where the tracker
        keeps no history.
        """
        with self._link() as link:
            return history.usage(link, key=key, user=user, since=since)

    def request(
        self,
        key: str,
        priority: int = 1,
        session_timeout: Optional[float] = None,
        wait_timeout: Optional[float] = None,
        *,
        wait_for_key: bool = False,
        on_queued: Optional[OnQueued] = None,
    ) -> Session:
        """Lease a device of ``key`` and open a session with it; waits for one to be free.

        ``priority``: higher goes first. ``session_timeout`` (seconds): the device ends the session
        then. ``wait_timeout`` (seconds): how long to wait (None: as long as it takes; leaving with
        Ctrl-C leaves the queue at once). ``wait_for_key``: wait also for a key that nobody serves yet.
        ``on_queued`` is called with position, ahead and eta_s each time the place in the queue changes.

        Raises `UnknownKey`, `WaitTimeout`, `TrackerLost`, and what `connect` raises.
        """
        deadline = None if wait_timeout is None else time.monotonic() + wait_timeout
        for attempt in range(_TRIES):
            # The link stays open until the session is: the tracker sees at once if this process dies in between.
            with self._link() as link:
                lease = self._lease(link, key, priority, session_timeout, deadline, wait_for_key, on_queued)
                try:
                    return open_session(
                        (lease["host"], lease["port"]),
                        lease["matchkey"],
                        session_timeout=session_timeout,
                        lease=lease,
                    )
                except (ServerRefused, ServerUnreachable) as error:
                    if attempt == _TRIES - 1:
                        raise  # which closes the link, and so ends the lease
                    _log.warning("a device of %s did not answer, trying another: %s", key, error)
                    if link.ours:
                        link.ask("release", timeout=_REPLY_S, lease=lease["lease"])
        raise AssertionError("the loop returns or raises")

    def _lease(
        self,
        link: Link,
        key: str,
        priority: int,
        session_timeout: Optional[float],
        deadline: Optional[float],
        wait_for_key: bool,
        on_queued: Optional[OnQueued],
    ) -> Dict[str, Any]:
        wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            if not link.ours:
                return _lease_of_tvm(link, key, priority, wait_s)
            final = link.ask(
                "request",
                timeout=None if wait_s is None else wait_s + _REPLY_S,
                on_event=on_queued,
                key=key,
                priority=priority,
                session_timeout=session_timeout,
                wait_timeout=wait_s,
                wait_for_key=wait_for_key,
            )
            lease: Dict[str, Any] = final["leases"][0]
            return lease
        except BaseException:
            link.close()  # leaves the queue at once, whatever interrupted us
            raise

    def close(self) -> None:
        """Close the idle connections. Sessions go on."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _link(self) -> Iterator[Link]:
        """A connection for one exchange: an idle one that still lives, or a new one. Kept afterwards if all went well."""
        link = self._take()
        try:
            yield link
        except BaseException:
            link.close()
            raise
        with self._lock:
            self._idle.append(link)

    def _take(self) -> Link:
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return Link.open(self.address, timeout=self._timeout, user=self.user)
            try:
                link.command([wire.PING], timeout=self._timeout)
                return link
            except (ConnectError, ProtocolError, TrackerLost):
                link.close()


def _lease_of_tvm(link: Link, key: str, priority: int, wait_s: Optional[float]) -> Dict[str, Any]:
    """A device from TVM's tracker. It keeps the place of whoever leaves, so nothing is retried here."""
    try:
        reply = link.command([wire.REQUEST, key, "", priority], timeout=wait_s)
    except TimeoutError:
        raise WaitTimeout(f"no device of {key!r} became free in {wait_s or 0:g} s") from None
    try:
        code, (host, port, match_key) = reply
        if code != 0:
            raise ValueError
        return {"key": key, "host": str(host), "port": int(port), "matchkey": str(match_key)}
    except (TypeError, ValueError):
        raise ProtocolError(f"the tracker's answer to a request makes no sense: {reply!r}"[:200]) from None
