"""The user's access to a tracker: its queues and leases, and devices on request."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Literal,
    Mapping,
    Optional,
    Tuple,
    TypeVar,
    Union,
    overload,
)

from rpcsys import errors
from rpcsys.client import answers, spans
from rpcsys.client.waiting import REPLY_S, OnQueued, Wanted, give_back, wait
from rpcsys.link.address import Addresses, parse_tracker, tracker_defaults, tracker_text
from rpcsys.link.link import Closeable, Link
from rpcsys.link.targets import open_link, shared
from rpcsys.wire import tracker as wire
from rpcsys.wire.checks import Check
from rpcsys.wire.labels import of_request

if TYPE_CHECKING:
    from rpcsys.client import rows
    from rpcsys.client.deploying import Deployment
    from rpcsys.client.module_places import ModulePlaceKey
    from rpcsys.client.session import ServedModule, Session

place: Any
try:
    from rpcsys.client import place
except ImportError:  # not in the device tier: no person waits at a board
    place = None

Address = Union[None, str, Tuple[str, int]]
Found = TypeVar("Found")

#: Attempts of a request: a leased device that does not answer is released, and another one requested.
_TRIES = 3
#: Servers of a module that are tried, the least busy first: each may take the whole timeout.
PLACES = 8
_log = logging.getLogger("rpcsys.tracker")


def connect_tracker(address: Address = None, *, user: Optional[str] = None, timeout: float = 5.0) -> Tracker:
    """Connect to a tracker: ``"host:port"``, ``(host, port)``, or None for the address in the environment.

    ``"host:port,host:port"`` are a tracker's replicas: whichever leads is used, also when another one leads later.
    The queue shows ``user`` to others (default: the login name). Works with TVM's tracker, too.
    Raises `TrackerUnreachable` when no tracker answers within ``timeout`` seconds, `ConfigError` without an address.
    """
    tracker = Tracker(_parsed(address), user or _login_name(), timeout)
    tracker._exchange(lambda link: None)  # a wrong address fails here, not at the first request
    return tracker


def _require_pinned(lease: Dict[str, Any]) -> None:
    """Raises `NoTls`: the session of a lease in a lab would not be encrypted."""
    from rpcsys.wire import pinned_keys  # in a lab alone

    found = pinned_keys.parse(lease["matchkey"])
    if found is None or not found.secret:
        server = lease.get("server") or lease["host"]
        raise errors.NoTls(
            f"the server {server} encrypts nothing, and the lab's rules do not let it: nothing was sent. Its keeper "
            "starts it with --lab FILE (rpcsys board secure does that)"
        )


def _parsed(address: Address) -> Tuple[str, int]:
    if address is None:
        return tracker_defaults()
    if isinstance(address, (str, int)):
        return parse_tracker(str(address), 9190)
    if isinstance(address, Addresses):
        return address
    try:
        host, port = address
        return str(host), int(port)
    except (TypeError, ValueError):
        raise errors.ConfigError(f"{address!r} is no address: write 'HOST:PORT' or ('HOST', PORT)") from None


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as in many containers
        return "unknown"


class Tracker(Closeable):
    """A tracker. May be used by several threads; a context manager."""

    def __init__(self, address: Tuple[str, int], user: str, timeout: float) -> None:
        self.address = address
        self.user = user
        self._timeout = timeout
        self._idle: List[Link] = []
        self._target = shared(address)

    def __repr__(self) -> str:
        return f"<tracker {tracker_text(self.address)}>"

    def summary(self) -> rows.TrackerSummary:
        """The queues: ``queue_info`` (free and pending by key) and ``server_info``, as TVM's; with our
        tracker also ``servers`` and ``leases``.
        """
        from rpcsys.client import listings  # not in the device tier

        return self._exchange(listings.summary)

    def text_summary(self) -> str:
        """The queues as a table for people, with TVM's headings."""
        from rpcsys.client import listings  # not in the device tier

        return listings.text_summary(self.summary())

    def replicas(self) -> rows.Replicas:
        """The tracker's replicas and who leads; no rows for a tracker that has none."""
        from rpcsys.client import listings  # not in the device tier

        return self._exchange(listings.replicas)

    def history(
        self,
        *,
        key: Optional[str] = None,
        user: Optional[str] = None,
        server: Optional[str] = None,
        since: Optional[float] = None,
        until: Optional[float] = None,
        limit: Optional[int] = 100,
    ) -> List[rows.PastLease]:
        """Ended leases, the last to end first, at most ``limit`` (None: all).

        ``since`` and ``until`` (seconds since 1970) bound their ends. Raises `TrackerError` where the tracker keeps no
        history.
        """
        from rpcsys.client import listings  # not in the device tier

        wanted: Dict[str, Any] = {"key": key, "user": user, "server": server, "since": since, "until": until}
        return self._exchange(lambda link: _shown("past leases", listings.leases(link, limit=limit, **wanted)))

    def usage(
        self, *, key: Optional[str] = None, user: Optional[str] = None, since: Optional[float] = None
    ) -> List[rows.UsageRow]:
        """Totals of leases by user and key, the most device time first.

        They are counted from the beginning of the hour of ``since`` (seconds since 1970). Raises `TrackerError` where
        the tracker keeps no history.
        """
        from rpcsys.client import listings  # not in the device tier

        return self._exchange(lambda link: _shown("usage", listings.usage(link, key=key, user=user, since=since)))

    def find_results(self, identities: Iterable[str]) -> Dict[str, List[float]]:
        """The results of an auto-tuner's measurements that the tracker keeps, in seconds, by identity (a SHA-256).

        Raises `NotSupported` where it keeps none.
        """
        from rpcsys.client import results  # not in the device tier

        return self._exchange(lambda link: results.find(link, identities), of_ours="results")

    def keep_results(self, kept: Mapping[str, List[float]]) -> None:
        """Keep results at the tracker for all; arguments and errors as for `find_results`."""
        from rpcsys.client import results  # not in the device tier

        self._exchange(lambda link: results.keep(link, kept), of_ours="results")

    @overload
    def request(  # type: ignore[overload-overlap]  # 1 is an int, too; the first match counts
        self,
        key: Optional[str] = ...,
        priority: float = ...,
        session_timeout: Optional[float] = ...,
        wait_timeout: Optional[float] = ...,
        *,
        labels: Optional[Mapping[str, str]] = ...,
        count: Literal[1] = ...,
        wait_for_key: bool = ...,
        on_queued: Optional[OnQueued] = ...,
    ) -> Session: ...

    @overload
    def request(
        self,
        key: Optional[str] = ...,
        priority: float = ...,
        session_timeout: Optional[float] = ...,
        wait_timeout: Optional[float] = ...,
        *,
        labels: Optional[Mapping[str, str]] = ...,
        count: int,
        wait_for_key: bool = ...,
        on_queued: Optional[OnQueued] = ...,
    ) -> Tuple[Session, ...]: ...

    def request(
        self,
        key: Optional[str] = None,
        priority: float = 1,
        session_timeout: Optional[float] = None,
        wait_timeout: Optional[float] = None,
        *,
        labels: Optional[Mapping[str, str]] = None,
        count: int = 1,
        wait_for_key: bool = False,
        on_queued: Optional[OnQueued] = None,
    ) -> Union[Session, Tuple[Session, ...]]:
        """Lease a device of ``key`` and open a session with it; waits for one to be free.

        ``labels``: those that the device must have (``{"arch": "aarch64", "cores": ">=4"}``, ``{"name": "board7"}`` for
        one board), with a key or without. ``count`` above 1 leases so many together or none, and returns as many
        sessions. ``priority``: higher goes first. ``session_timeout`` (seconds): the device then ends the session.
        ``wait_timeout`` (seconds): how long to wait (None: without limit; Ctrl-C leaves the queue at once).
        ``wait_for_key``: wait also for a key that no server has yet. ``on_queued`` is called each time the place in the
        queue changes, with position, ahead, eta_s (seconds from low to high, None for unknown), holders; ``str()``
        makes a sentence of it. Without ``on_queued``, a terminal or notebook shows that sentence after 2 s. A request
        for a device that this process holds logs a warning at once. Where RPCSYS_LEASE names a hold of such a device,
        the session attaches to that, and nothing is leased.

        Raises `UnknownKey`, `WaitTimeout`, `TrackerLost`, `UsageError` (labels of another form), `NotSupported`
        (labels or a count of TVM's tracker), and what `connect` raises.
        """
        wanted = Wanted(key, of_request(labels), count, priority, session_timeout or None, wait_for_key)
        if count == 1 and os.environ.get("RPCSYS_LEASE"):
            from rpcsys.client import attaching

            attached = attaching.to_hold(key, wanted.labels, wanted.session_timeout)
            if attached is not None:
                return attached
        deadline = None if wait_timeout is None else time.monotonic() + wait_timeout
        # The link stays open until the sessions are open: the tracker notices at once if this process dies meanwhile.
        recorder, link = spans.recorder(), self._take()
        try:
            with recorder.span("lease", {"rpcsys.key": key or "", "rpcsys.count": count, "rpcsys.user": self.user}):
                for attempt in range(_TRIES):
                    with self._watcher(on_queued) as watcher, recorder.span("queue", {"rpcsys.key": key or ""}):
                        link, leases = wait(link, wanted, deadline, watcher, self._open)
                    sessions = self._open_sessions(link, wanted, leases, last=attempt == _TRIES - 1)
                    if sessions is not None:
                        break
        except BaseException:
            link.close()  # which ends the leases
            raise
        self._idle.append(link)
        assert sessions is not None, "the last try raises"
        return sessions[0] if count == 1 else sessions

    def _watcher(self, on_queued: Optional[OnQueued]) -> Any:
        """A context whose value takes the events of a request."""
        return place.PlaceWatcher(on_queued, self.user) if place else contextlib.nullcontext(on_queued)

    def _open_sessions(
        self, link: Link, wanted: Wanted, leases: List[Dict[str, Any]], *, last: bool
    ) -> Optional[Tuple[Session, ...]]:
        """A session for each lease. None if a device does not answer: the leases are then released."""
        sessions: List[Session] = []
        for lease in leases:
            try:
                if link.credential is not None and lease.get("plain") is not True:
                    _require_pinned(lease)
                sessions.append(self._open_session(lease, wanted.session_timeout))
            except BaseException as error:
                for session in sessions:
                    session.close()
                if not isinstance(error, (errors.ServerRefused, errors.ServerUnreachable)):
                    raise
                problem = errors.one_line(error, 200).partition("; ")[0]  # without advice for those who dial themselves
                give_back(link, leases, lease, problem)
                if last:
                    raise
                _log.warning("a device of %s did not answer, asking for a device again: %s", lease["key"], problem)
                return None
        for session in sessions if place else ():
            place.hold(session)
        return tuple(sessions)

    def _open_session(self, lease: Dict[str, Any], limit_s: Optional[float]) -> Session:
        from rpcsys.client.connection import open_session  # here, because queries need no numpy

        address = (lease["host"], lease["port"])
        return open_session(address, lease["matchkey"], session_timeout=limit_s, lease=lease)

    def resolve(self, name: str = "") -> List[rows.ModulePlace]:
        """The servers of the deployed module ``name`` ("": of each), the least busy first. No lease, no queue.

        Raises `UnknownKey` where no server has it, `NotSupported` (TVM's tracker).
        """
        places: List[rows.ModulePlace] = self._ask("resolve", answers.MODULES, "modules", name=name)
        return places

    def serve(self, name: str, *, timeout: float = 60.0) -> ServedModule:
        """Connect to the deployed module ``name`` on its least busy server, or else on the next one.

        Tries `PLACES` servers at most. Raises `UnknownKey`, or the last one's error: `Busy`, or one of `connect`.
        """
        from rpcsys.client.connection import connect

        problem: Exception = errors.UnknownKey(f"the tracker knows no place of {name!r}")
        for place in self.places(name)[:PLACES]:
            try:
                return connect(*place, serve=name, timeout=timeout)
            except (errors.ConnectError, errors.Busy) as error:
                problem = error
        raise problem

    def places(self, name: str) -> List[ModulePlaceKey]:
        """Where to connect to the deployed module ``name`` now, the least busy server first; errors as `resolve`.

        In a lab, each has what is to be said there, which is good for some minutes.
        """
        from rpcsys.client import module_places

        return self._exchange(lambda link: module_places.serving(link, name), of_ours="resolve")

    def deployment(self, server: str, *, timeout: float = 60.0) -> Deployment:
        """Open a connection for deploying on ``server``, by its name.

        Raises `UnknownKey`: there is no such server; `Forbidden`: the lab's rules do not let you; and as `Deployment`.
        """
        from rpcsys.client import module_places
        from rpcsys.client.deploying import Deployment

        host, port, key = self._exchange(lambda link: module_places.deploying(link, server), of_ours="admission")
        return Deployment((host, port), key=key, timeout=timeout)

    def leases(self) -> List[rows.LeaseRow]:
        """The current leases; none of TVM's tracker."""
        return _shown("leases", self.summary().get("leases", []))

    def why(self, key: str) -> rows.WhyAnswer:
        """Why a request for ``key`` waits: ``reasons`` (sentences), servers, holders, queue. Raises `UnknownKey`."""
        from rpcsys.client import listings  # not in the device tier

        answer: rows.WhyAnswer = self._ask("why", listings.WHY, "why", key=key)
        return answer

    def renew(self, lease: Union[Session, str], session_timeout: Optional[float] = None) -> Optional[float]:
        """Have a lease end ``session_timeout`` seconds from now (None: as late as its key allows).

        Returns the new limit in seconds since the session began, None for no limit. ``lease`` is a session from this
        tracker, or the lease's name. Raises `TrackerError` if the lease or its session has ended, or is another user's.
        """
        ended = None if isinstance(lease, str) else lease.closed
        if ended is not None:  # its server reports that only when it has cleaned up
            raise errors.TrackerError(
                f"the lease has ended with its session ({errors.one_line(ended)}): request a device"
            )
        name = lease if isinstance(lease, str) else str(lease.lease.get("lease", ""))
        fields = {"lease": name, "session_timeout": session_timeout}
        limit: Optional[float] = self._ask("renew", answers.LIMIT, "limit_s", **fields)
        return limit

    def end_lease(self, lease: str, reason: str = "") -> None:
        """End a lease of any user, by its name. Raises `TrackerError` if there is none, or it cannot be ended."""
        self._ask("end", None, "", lease=lease, reason=reason)

    def drain(self, server: str) -> bool:
        """Grant no more leases on a server; its sessions go on. False: it was drained already.

        Raises `TrackerError` for an unknown name.
        """
        return self._ask("drain", answers.CHANGED, "changed", server=server) is not False

    def enable(self, server: str) -> bool:
        """Undo a drain, or the setting aside of a server. False: it was neither.

        Raises `TrackerError` for an unknown name.
        """
        return self._ask("enable", answers.CHANGED, "changed", server=server) is not False

    def _ask(self, op: str, check: Optional[Check], field: str, **fields: Any) -> Any:
        """The checked ``field`` of the tracker's answer; None without a ``check``."""

        def exchange(link: Link) -> Any:
            answer = link.ask(op, timeout=REPLY_S, **fields)
            return None if check is None else answers.from_tracker(check, answer.get(field), field)

        return self._exchange(exchange, of_ours=op)

    def close(self) -> None:
        """Close the idle connections. Sessions go on."""
        with contextlib.suppress(IndexError):  # none is left
            while True:
                self._idle.pop().close()
        if not isinstance(self._target, tuple):
            self._target.close()

    def _exchange(self, exchange: Callable[[Link], Found], of_ours: str = "") -> Found:
        """The result of an exchange on an idle connection that still works, or a new one; kept unless an error occurs.

        A tracker with replicas that is lost meanwhile is asked again, where another one leads. ``of_ours``: what a
        tracker of TVM's does not have. Raises `NotSupported`: it is one.
        """
        link = self._take()
        for again in (link.follows, False):
            try:
                if of_ours and not link.ours:
                    raise errors.NotSupported(
                        "the tracker at {}:{} is TVM's: it has no {}".format(*self.address, of_ours)
                    )
                found = exchange(link)
                break
            except BaseException as error:
                link.close()
                if not (again and isinstance(error, errors.TrackerLost)):
                    raise
            link = self._open(max(self._timeout, REPLY_S))
        self._idle.append(link)
        return found

    def _open(self, timeout: float) -> Link:
        return open_link(self._target, timeout=timeout, user=self.user)

    def _take(self) -> Link:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._open(self._timeout)
            try:
                link.command([wire.PING], timeout=self._timeout)
                return link
            except (errors.ConnectError, errors.ProtocolError, errors.TrackerLost):
                link.close()


def _shown(title: str, rows: Iterable[Found]) -> List[Found]:
    """A list that a notebook shows as a table."""
    from rpcsys.client.shown import ShownRows  # not in the device tier

    return ShownRows(title, rows)
