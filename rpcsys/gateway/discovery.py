"""Finds the deployed modules: at the tracker, or at servers. Each has a thread of its own, since asking blocks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rpcsys.client.deploying import Deployment
from rpcsys.client.tracker import Tracker, connect_tracker
from rpcsys.errors import RpcsysError, UnknownKey, one_line
from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.state import ServedRow
from rpcsys.link import credential
from rpcsys.link.address import address_text, tracker_text
from rpcsys.wire.pinned_keys import public_name

#: Seconds between lists; after `Discovery.hurry` the next one is made at once, but not sooner than `SOONEST_S`.
EVERY_S, SOONEST_S = 1.0, 0.05
#: Seconds until a server's connection is open.
OPEN_S = 5.0
log = logging.getLogger(__name__)


class ModuleSource(Protocol):
    """A tracker or a server, which is asked for its list again and again."""

    name: str

    def list(self) -> list[ServedRow]:
        """What is served now. Raises `RpcsysError`; the next call then connects again."""


class TrackerSource:
    """The modules of all servers of a tracker."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.name = f"the tracker at {tracker_text(address)}"
        self._address = address
        self._tracker: Tracker | None = None

    def list(self) -> list[ServedRow]:
        """As `ModuleSource`."""
        if self._tracker is None:
            self._tracker = connect_tracker(self._address)
        try:
            rows = self._tracker.resolve("")
        except UnknownKey:
            return []
        return [
            ServedRow(row["name"], row["version"], ReplicaPlace(row["host"], row["port"], row["key"])) for row in rows
        ]


class ServerSource:
    """The modules of one server. ``place``: with its standing key, if it has one."""

    def __init__(self, place: ReplicaPlace) -> None:
        self.name = f"the server at {address_text(place.host, place.port)}"
        self._place = place
        self._deployment: Deployment | None = None

    def list(self) -> list[ServedRow]:
        """As `ModuleSource`."""
        if self._deployment is None:
            self._deployment = Deployment((self._place.host, self._place.port), key=self._place.key, timeout=OPEN_S)
        try:
            rows = self._deployment.list()
        except RpcsysError:
            self._deployment.close()
            self._deployment = None
            raise
        return [ServedRow(row["name"], row["version"], self._place) for row in rows if row["state"] == "serving"]


def with_key(tracker: tuple[str, int], model: str, place: ReplicaPlace) -> ReplicaPlace:
    """A listed place, with what a client of ``model`` says there now: in a lab, a match key of the tracker's.

    Raises `UnknownKey`: the module is served there no more; `RpcsysError`: the tracker does not answer.
    """
    if credential.for_replicas(tracker) is None:
        return place
    with connect_tracker(tracker) as link:
        for each in link.places(model):
            if (each.host, each.port) == place[:2] and place.key in ("", public_name(each.key)):
                return place._replace(key=each.key)
    raise UnknownKey(f"the tracker has {model!r} at {address_text(place.host, place.port)} no more")


class Discovery:
    """Asks all sources, and calls ``report`` in the loop with all that they list. To be made in the event loop.

    A source that does not answer is thought to serve what it listed last.
    """

    def __init__(self, sources: Sequence[ModuleSource], report: Callable[[list[ServedRow]], None]) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._listed: dict[int, Sequence[ServedRow]] = {}
        self._closed = False
        self._wakers = [threading.Event() for _ in sources]
        for number, source in enumerate(sources):
            arguments = number, source, self._wakers[number]
            threading.Thread(target=self._ask, args=arguments, name="rpcsys-discovery", daemon=True).start()

    def hurry(self) -> None:
        """Ask at once: a name is unknown, or a connection was lost."""
        for waker in self._wakers:
            waker.set()

    def close(self) -> None:
        """Report nothing more."""
        self._closed = True
        self.hurry()

    def _take(self, number: int, rows: Sequence[ServedRow]) -> None:
        if not self._closed:
            self._listed[number] = rows
            self._report([row for each in self._listed.values() for row in each])

    # In a source's thread

    def _ask(self, number: int, source: ModuleSource, waker: threading.Event) -> None:
        problem = ""
        pause = threading.Event()
        while not self._closed:
            waker.clear()
            try:
                rows = source.list()
            except RpcsysError as error:
                if one_line(error) != problem:
                    problem = one_line(error)
                    log.warning("%s lists no modules, what is known goes on: %s", source.name, problem)
            else:
                if problem:
                    log.info("%s lists its modules again", source.name)
                problem = ""
                try:
                    self._loop.call_soon_threadsafe(self._take, number, rows)
                except RuntimeError:  # the loop is closed
                    return
            pause.wait(SOONEST_S)
            waker.wait(EVERY_S - SOONEST_S)
