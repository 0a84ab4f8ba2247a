"""The hosts of deployed modules: which there are, which are wanted, what they do. Decisions only. A host is::

spawned ──ready──> loading ──loaded──> serving ──another version serves, or none is to──> leaving ──dead──> (gone)
                      └─ cannot be loaded, or died: again, after growing pauses
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from rpcsys.link.backoff import Backoff
from rpcsys.server.models.store import Version
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor.deployment_events import Load, Loaded, Stuck, TellChild, TellDeployed, Unloadable

LASTED_S = 10.0
"""A host that served for so long does not fail at its start."""

RESTART_S = (0.1, 30.0)
"""First and longest pause before a host is started again."""

MAX_LISTED = 250
MAX_FAULT = 120
"""Modules in one answer to a deployer, and letters of what is wrong with one: a message has 64 kB."""


@dataclass
class Host:
    """One process of a version.

    ``state``: as above, or ``doomed``; ``tried_by``: the deployer for whom it is only tried; ``since``: when it began to serve;
    ``stuck``: to be succeeded; ``calls``: it may begin some still; ``load``: calls that run, calls that wait, clients; ``given``: clients not yet in its load;
    ``handed``: clients in all, but for those it gave back.
    """

    version: Version
    state: str = "spawned"
    tried_by: Optional[int] = None
    since: float = 0.0
    stuck: bool = False
    kind: str = ""
    functions: Tuple[str, ...] = ()
    load: Tuple[int, int, int] = (0, 0, 0)
    given: int = 0
    handed: int = 0
    calls: bool = True


class Fleet:
    """Hosts by number, and the ``catalogue`` of what they are to serve by name; ``up``: whether processes can be made; ``number``: gives one for a new child."""

    def __init__(self, number: Callable[[], int]) -> None:
        self.catalogue: Dict[str, Version] = {}
        self.hosts: Dict[int, Host] = {}
        self.up = False
        self.stopping = False
        self._pauses: Dict[str, Backoff] = {}
        self._faults: Dict[str, str] = {}
        self._number = number

    # -------------------------------------------------------------- what they say

    def loaded(self, event: Loaded) -> List[do.Action]:
        """A host can serve."""
        host = self.hosts.get(event.child)
        if host is None or host.state != "loading":
            return []
        host.state, host.since = "serving", event.now
        host.kind, host.functions = event.kind, event.functions
        if host.tried_by is not None:
            return [TellChild(host.tried_by, (("tried", ""),))]
        self._faults.pop(host.version.name, None)
        return [do.Log("info", f"serving {host.version.name} {host.version.version}")]

    def unloadable(self, event: Unloadable) -> List[do.Action]:
        """A host cannot serve: it leaves by itself."""
        host = self.hosts.get(event.child)
        if host is None or host.state != "loading":
            return []
        return self._lost(event.now, event.child, event.why)

    def _lost(self, now: float, child: int, why: str) -> List[do.Action]:
        """A host serves no more, and was not told to leave."""
        host = self.hosts.pop(child)
        name, version = host.version.name, host.version.version
        if host.tried_by is not None:
            return [TellChild(host.tried_by, (("tried", why),))]
        pause = self._pauses.setdefault(name, Backoff(*RESTART_S))
        if not host.since:
            self._faults[name] = why
        elif now - host.since >= LASTED_S:
            pause.worked()
        first = pause.failed(now)
        return [do.Log("warning" if first else "info", f"the host of {name} {version}: {why}; it is started again")]

    def told_load(self, event: Load) -> List[do.Action]:
        """A host says what it has to do."""
        host = self.hosts.get(event.child)
        if host is not None:
            host.load, host.given = (event.running, event.waiting, event.clients), 0
        return []

    def stuck(self, event: Stuck) -> List[do.Action]:
        """A host is to be succeeded by another of the same version."""
        host = self.hosts.get(event.child)
        if host is None or host.stuck:
            return []
        host.stuck = True
        name = host.version.name
        return [do.Log("warning", f"a call of {name} that was given up does not end: its host is being replaced")]

    # -------------------------------------------------------------- what is told of them

    def load(self, name: str) -> Tuple[int, int, int]:
        """Calls that run, calls that wait, and clients, of the host that serves ``name``."""
        child = self._serving(name)
        return (0, 0, 0) if child is None else self.hosts[child].load

    def announce(self, told: object) -> List[TellDeployed]:
        """Tell the tracker what has changed since it was ``told``; nothing if nothing has."""
        names = [] if self.stopping else sorted(self.catalogue)[:MAX_LISTED]
        rows = tuple(
            (name, self.catalogue[name].version, self._serving(name) is not None, *self.load(name)) for name in names
        )
        return [] if rows == told else [TellDeployed(rows)]

    def _state_of(self, name: str) -> str:
        if self._serving(name) is not None:
            return "serving"
        fault = self._faults.get(name, "")
        return f"failing: {fault[:MAX_FAULT]}" if fault else "starting"

    # -------------------------------------------------------------- what is wanted

    def _start_missing(self, now: float) -> List[do.Action]:
        """A host for each module that has none, unless it is too early to try again."""
        actions: List[do.Action] = []
        for name in self.catalogue:
            pause = self._pauses.get(name)
            if self.up and self._of(name) is None and (pause is None or pause.allows(now)):
                actions.append(self._spawn(Host(self.catalogue[name])))
        return actions

    def _next_start(self) -> Optional[float]:
        """When :meth:`_start_missing` has something to do by itself."""
        if not self.up:
            return None
        pauses = [self._pauses[name].until for name in self.catalogue.keys() & self._pauses if self._of(name) is None]
        return min((until for until in pauses if until is not None), default=None)

    def _perhaps_leave(self, child: int, host: Host) -> List[do.Action]:
        """Have a host leave that is not wanted any more, as soon as its successor serves, if there is to be one."""
        if host.state == "leaving" or (host.tried_by is not None and not self.stopping):
            return []
        current = None if self.stopping else self.catalogue.get(host.version.name)
        if current == host.version and not host.stuck:
            return []
        if host.state != "serving":
            del self.hosts[child]
            return [do.Kill(child)]
        if current is not None and self._serving(host.version.name) is None:
            return []
        host.state = "leaving"
        return [TellChild(child, (("leave", "" if current is None else "successor"),))]

    def _of(self, name: str) -> Optional[int]:
        """The host, in whatever state, that serves the current version or will."""
        current = self.catalogue[name]
        for child, host in self.hosts.items():
            if host.version == current and host.tried_by is None and not host.stuck and host.state != "leaving":
                return child
        return None

    def _serving(self, name: str) -> Optional[int]:
        child = self._of(name) if name in self.catalogue else None
        return child if child is not None and self.hosts[child].state == "serving" else None

    def _spawn(self, host: Host) -> do.Action:
        child = self._number()
        self.hosts[child] = host
        return do.Spawn(child, ChildKind.HOST)
