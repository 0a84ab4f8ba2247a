"""Where a remote function is, and how to connect to it: a session, or a deployed module."""

from __future__ import annotations

from typing import Any, Collection, List, Mapping, NamedTuple

from rpcsys.client.capabilities import check_encodings
from rpcsys.client.connection import connect
from rpcsys.client.reconnect import OpenConnection
from rpcsys.client.remote import RemoteFunction
from rpcsys.client.tracker import PLACES, connect_tracker
from rpcsys.errors import Busy, ConnectError, UnknownKey, UsageError
from rpcsys.link import parse_address

#: Seconds that a call waits for a server to be free, or back, unless told otherwise.
WAIT_S = 60.0


class Endpoint(NamedTuple):
    """Where a function is, and how it is called.

    Attributes
    ----------
    function : its name on the server, or in the deployed module
    serve : the name of the deployed module; "" for a function of a session
    key : of the servers that have it; a deployed module's tracker needs none
    tracker : ``host:port`` of the tracker that knows them; or
    address : ``host:port`` of the server itself
    wait_s : seconds to wait for one to be free, or back
    deadline_s : seconds a call may take there; 0 for any number
    repeatable : whether a call may be made again when nobody knows if it ran
    """

    function: str
    key: str = ""
    tracker: str = ""
    address: str = ""
    wait_s: float = WAIT_S
    serve: str = ""
    deadline_s: float = 0.0
    repeatable: bool = True

    def complaint(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if not self.function:
            return "a remote function has a name"
        if bool(self.tracker) == bool(self.address):
            return "a remote function is found by a tracker or by an address: give one of the two"
        if self.tracker and not (self.key or self.serve):
            return "a tracker finds a remote function by a key, or by what a deployed module is called: give one"
        if not 0 < self.wait_s < float("inf"):
            return "wait_s is a number of seconds above 0"
        if not 0 <= self.deadline_s < float("inf"):
            return "deadline_s is a number of seconds, or 0"
        try:
            parse_address(self.tracker or self.address)
        except UsageError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        what = f"{self.serve}.{self.function}" if self.serve else self.function
        return f"{what} at {self.address or f'a server of the tracker {self.tracker}'}"


def open_at(
    endpoint: Endpoint, returned: Mapping[str, str], hows: Collection[str], seconds: float, avoid: Collection[str]
) -> OpenConnection:
    """Connect to where the function is, within about ``seconds`` and rather not at one of the addresses ``avoid``.

    ``returned``: how results are to be encoded, by their positions; ``hows``: all encodings the server has to know.
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
    return OpenConnection(_returning(function, returned), "{}:{}".format(*session.address), held)


def _served(
    endpoint: Endpoint, returned: Mapping[str, str], hows: Collection[str], seconds: float, avoid: Collection[str]
) -> OpenConnection:
    """Connect to a server that has the module deployed: the least busy one, where a tracker knows several."""
    if endpoint.address:
        rows = [(*parse_address(endpoint.address), endpoint.key)]
    else:
        with connect_tracker(endpoint.tracker) as tracker:
            rows = [(row["host"], row["port"], row["key"]) for row in tracker.resolve(endpoint.serve)]
    if not rows:
        raise UnknownKey(f"the tracker at {endpoint.tracker} knows no place of {endpoint.serve!r}")
    rows.sort(key=lambda row: _where(*row) in avoid)
    del rows[PLACES:]
    several = len(rows) > 1
    while True:
        host, port, key = rows.pop(0)
        try:
            served = connect(host, port, key, serve=endpoint.serve, timeout=seconds)
            break
        except (ConnectError, Busy):
            if not rows:
                raise
    try:
        check_encodings(served.info, hows, (host, port))
        function = served[endpoint.function]
    except BaseException:
        served.close()
        raise
    return OpenConnection(_returning(function, returned), _where(host, port, key), [served], several)


def _where(host: str, port: int, key: str) -> str:
    """What tells servers apart: behind a proxy they have one address."""
    return f"{host}:{port} {key}".rstrip()


def _returning(function: RemoteFunction, returned: Mapping[str, str]) -> RemoteFunction:
    return function.encoding(returned) if returned else function
