"""The address of a remote function, and the connection to it: opened at the first use, and again after a loss.

A failure of the first attempt is an error at once: the address may be wrong. After a success, attempts are repeated
with backoff, as long as the caller may wait; one caller tries for all.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

from rpcsys import errors
from rpcsys.client.capabilities import check_encodings
from rpcsys.client.connection import connect
from rpcsys.client.module_places import ModulePlaceKey
from rpcsys.client.tracker import PLACES, connect_tracker
from rpcsys.errors import RpcsysError, one_line
from rpcsys.link.address import parse_address, parse_tracker
from rpcsys.link.backoff import RETRY_S, Backoff, jitter

#: Seconds that a call waits for a server to be free, or back, by default.
WAIT_S = 60.0
#: Errors of a server that starts, moves or restarts. They may pass.
_FOR_NOW = (errors.ConnectError, errors.TrackerError, errors.SessionError)
#: These do not: the server is not ours, or its lab does not let us.
_FOR_EVER = (errors.NotSupported, errors.Unauthorized, errors.Forbidden)
#: Seconds that `at_once` waits for the first attempt: a running server has answered by then.
FIRST_TRY_S = 1.0
#: Seconds that the search goes on after the last `at_once`.
IDLE_S = 60.0
#: Seconds to connect to a server of a URL, where there is another URL.
TRY_S = 5.0
#: Seconds that a busy server is avoided, where there are others.
AVOID_S = 1.0
Specs = Sequence[Dict[str, Any]]  # tensors by name, as a module has them
_log = logging.getLogger("rpcsys.remote")


class Endpoint(NamedTuple):
    """Where a function is, and how it is called."""

    function: str  # its name on the server, or in the deployed module
    key: str = ""  # of the servers that have it; a deployed module's tracker needs none
    tracker: str = ""  # ``host:port`` of the tracker that knows them, or of its replicas, with commas; or
    address: str = ""  # ``host:port`` of the server itself
    wait_s: float = WAIT_S  # seconds to wait for one to be free, or back
    serve: str = ""  # the name of the deployed module; "" for a function of a session
    deadline_s: float = 0.0  # seconds a call may take there; 0 for any number
    repeatable: bool = True  # whether a call may be repeated when it is unknown if it ran
    url: str = ""  # of a model on an inference server, or several; nothing else then says where

    def complaint(self) -> str:
        """The error in these fields, empty for none."""
        if self.url:
            return self._complaint_of_url()
        if not self.function:
            return "a remote function has a name"
        if bool(self.tracker) == bool(self.address):
            return "a remote function is found by a tracker or by an address: give one of the two"
        if self.tracker and not (self.key or self.serve):
            return "a tracker finds a remote function by a key, or by what a deployed module is called: give one"
        try:
            parse_tracker(self.tracker) if self.tracker else parse_address(self.address)
        except errors.UsageError as error:
            return str(error)
        return self._complaint_of_times()

    def _complaint_of_url(self) -> str:
        from rpcsys.client.inference import urls  # for those who call one

        if self.function or self.serve or self.key or self.tracker or self.address:
            return "a URL says all: leave out function, serve, key, tracker and address"
        try:
            urls.parse_urls(self.url)
        except errors.UsageError as error:
            return str(error)
        return self._complaint_of_times()

    def _complaint_of_times(self) -> str:
        if not 0 < self.wait_s < float("inf"):
            return "wait_s is a number of seconds above 0"
        if not 0 <= self.deadline_s < float("inf"):
            return "deadline_s is a number of seconds, or 0"
        return ""

    def __str__(self) -> str:
        if self.url:
            return self.url
        what = f"{self.serve}.{self.function}" if self.serve else self.function
        return f"{what} at {self.address or f'a server of the tracker {self.tracker}'}"


class OpenConnection(NamedTuple):
    """A function, the server that has it, the objects to close, and whether there are ``others``: more servers."""

    call: Callable[..., Any]
    where: str
    held: Sequence[Any]
    others: bool = False

    def close(self) -> None:
        for one in self.held:
            one.close()


#: Opens one, given the seconds that it may take and the addresses to avoid. Raises `RpcsysError`.
Opener = Callable[[float, Collection[str]], OpenConnection]


class ReconnectingConnection:
    """At most one connection, for any number of threads. The first `get` or `at_once` opens it. ``what``: for logs."""

    def __init__(self, open: Opener, wait_s: float, what: str = "a function") -> None:
        self._open = open
        self._wait_s = wait_s
        self._what = what
        self.current: Optional[OpenConnection] = None  # None while there is none
        self.opened = 0  # how many have been opened
        self.problem: Optional[RpcsysError] = None  # the error of the last attempt that failed
        self._opening = threading.Lock()
        self._avoided: Dict[str, float] = {}
        self._gave_up_at = -1.0
        self._closing = threading.Event()
        self._search_lock = threading.Lock()
        self._search: Optional[threading.Thread] = None
        self._search_began = self._asked = 0.0
        self._tried = threading.Event()  # whether the search has made its first attempt

    def get(self) -> OpenConnection:
        """The connection, opened if necessary. Raises `RpcsysError` where this fails.

        A wait is logged: at the first failure, or after `FIRST_TRY_S` in which nothing answers.
        """
        if self.current is not None:
            return self.current
        limit = time.monotonic() + self._wait_s
        waits = threading.Timer(FIRST_TRY_S, self._waits)
        waits.daemon = True

        def passing(error: RpcsysError) -> bool:
            again = _is_for_now(error) and limit > time.monotonic() and self.opened > 0
            if again and not waits.finished.is_set():
                waits.cancel()
                self._waits(one_line(error))
            return again

        try:
            return self._found(lambda: limit if self.opened else 0.0, passing, waits.start)
        finally:
            waits.cancel()

    def _waits(self, why: str = "nothing answers yet") -> None:
        _log.warning("%s: a call waits for the server, up to %g s: %s", self._what, self._wait_s, why)

    def at_once(self) -> Optional[OpenConnection]:
        """The connection if it is open, or opens within `FIRST_TRY_S`; else None, and the search goes on."""
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
        """Close a connection that has failed."""
        if self.current is connection:  # else another thread has opened a new one
            self.current = None
        connection.close()

    def crowded(self, connection: OpenConnection) -> None:
        """Avoid the server, which is busy: the next `get` connects to another one, if there is one."""
        if connection.others:
            self._avoided[connection.where] = time.monotonic() + AVOID_S
            if self.current is connection:
                self.current = None

    def pause(self, seconds: float) -> None:
        """Wait for ``seconds``, or until `close`."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Close the connection and end the search."""
        self._closing.set()
        current, self.current = self.current, None
        if current is not None:
            current.close()

    def _found(
        self, limit: Callable[[], float], passing: Callable[[RpcsysError], bool], begin: Callable[[], None]
    ) -> OpenConnection:
        """The connection: after ``begin``, attempts until ``limit()`` while their errors are ``passing``."""
        began = time.monotonic()
        with self._opening:
            if self.current is None and self.problem is not None and self._gave_up_at >= began:
                raise self.problem  # another caller has tried meanwhile
            backoff = Backoff(*RETRY_S)
            if self.current is None:
                begin()
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
        now = time.monotonic()
        seconds = max(1.0, min(limit - now, self._wait_s)) if limit > now else self._wait_s
        self._avoided = {where: until for where, until in self._avoided.items() if until > now}
        connection = self._open(seconds, self._avoided)
        self.opened += 1
        self.current = connection
        if self._closing.is_set():
            self.close()
            self._check_open()
        return connection

    def _look_on(self) -> None:
        """Search for a server until it answers, or until `IDLE_S` after the last `at_once`, despite any error."""
        try:
            self._found(lambda: self._asked + IDLE_S, lambda error: True, lambda: None)
        except RpcsysError as error:
            if not self._closing.is_set():
                _log.info("nobody asks for it any more: %s", one_line(error))
        finally:
            with self._search_lock:
                self._search = None
            self._tried.set()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise errors.SessionClosed("the module was closed; load it anew")


def _is_for_now(error: RpcsysError) -> bool:
    if isinstance(error, errors.RemoteError):
        return error.retryable
    return isinstance(error, _FOR_NOW) and not isinstance(error, _FOR_EVER)


# ------------------------------------------------------------------ connecting


def open_at(
    endpoint: Endpoint, returned: Mapping[str, str], hows: Collection[str], seconds: float, avoid: Collection[str]
) -> OpenConnection:
    """Connect to a server of the function, within about ``seconds``. Servers at the addresses ``avoid`` come last.

    ``returned``: the encodings of results, by their indexes; ``hows``: all encodings that the server must have.
    Raises `RpcsysError`.
    """
    if endpoint.serve:
        return _served(endpoint, returned, hows, seconds, avoid)
    held: List[Any] = []
    try:
        if endpoint.address:
            session = connect(endpoint.address, key=endpoint.key, timeout=seconds)
        else:
            held.append(connect_tracker(endpoint.tracker))
            session = held[0].request(endpoint.key, wait_timeout=seconds)
        held.insert(0, session)
        check_encodings(session.info, hows, session.address)
        function = session.get_function(endpoint.function)
    except BaseException:
        for one in held:
            one.close()
        raise
    return OpenConnection(function.encoding(returned) if returned else function, "{}:{}".format(*session.address), held)


def _served(
    endpoint: Endpoint, returned: Mapping[str, str], hows: Collection[str], seconds: float, avoid: Collection[str]
) -> OpenConnection:
    """Connect to a server that has the module deployed: the least busy one, where a tracker knows several."""
    if endpoint.address:
        places = [ModulePlaceKey(*parse_address(endpoint.address), endpoint.key)]
    else:
        with connect_tracker(endpoint.tracker) as tracker:
            places = tracker.places(endpoint.serve)
    if not places:
        raise errors.UnknownKey(f"the tracker at {endpoint.tracker} knows no place of {endpoint.serve!r}")
    places.sort(key=lambda place: place.where in avoid)
    del places[PLACES:]
    several = len(places) > 1
    while True:
        place = places.pop(0)
        try:
            served = connect(*place, serve=endpoint.serve, timeout=seconds)
            break
        except (errors.ConnectError, errors.Busy):
            if not places:
                raise
    try:
        check_encodings(served.info, hows, (place.host, place.port))
        function = served[endpoint.function]
    except BaseException:
        served.close()
        raise
    return OpenConnection(function.encoding(returned) if returned else function, place.where, [served], several)


def open_url(
    endpoint: Endpoint, inputs: Specs, outputs: Specs, seconds: float, avoid: Collection[str]
) -> OpenConnection:
    """Connect to an inference server of the model, as `open_at`: one URL after the other, until a server answers."""
    from rpcsys.client import inference
    from rpcsys.client.inference import urls

    left = sorted(urls.parse_urls(endpoint.url), key=lambda url: url.text in avoid)
    several = len(left) > 1
    while True:
        url = left.pop(0)
        try:
            model = inference.InferenceModel(url, inputs, outputs, min(seconds, TRY_S) if left else seconds)
        except (errors.ConnectError, errors.SessionError, errors.Busy):
            if not left:
                raise
        else:
            return OpenConnection(model.call, url.text, [model], several)
