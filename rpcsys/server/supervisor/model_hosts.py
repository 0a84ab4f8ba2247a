"""The model hosts: which run, which should run, and the state of each. Decisions only."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rpcsys.link.backoff import Backoff
from rpcsys.server.models.store import Version
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.process_table import ProcessTable, ZygoteState
from rpcsys.server.supervisor.records import ServerRecords, earliest

LASTED_S = 10.0  # a host that served this long resets its backoff
RESTART_S = (0.1, 30.0)  # first and longest pause before a host is started again
#: Modules in one answer to a deployer, and characters of each fault: a message has at most 64 kB.
MAX_LISTED = 250
MAX_FAULT = 120


HostState = Enum("HostState", "SPAWNED LOADING SERVING LEAVING DOOMED")  # between two events


class HostEvent(str, Enum):
    """What happens to a model host."""

    READY = "its process waits for its version"
    LOADED = "its module is in memory"
    LEAVE = "it is to leave"
    DEAF = "it did not take a client"


SPAWNED, LOADING, SERVING, LEAVING, DOOMED = HostState
READY, LOADED, LEAVE, DEAF = HostEvent

TRANSITIONS = {
    SPAWNED: {READY: LOADING},
    LOADING: {LOADED: SERVING},
    SERVING: {LEAVE: LEAVING, DEAF: DOOMED},
    LEAVING: {},
    DOOMED: {},
}


@dataclass
class HostProcess:
    """One process of a version."""

    version: Version
    tried_by: int | None = None  # the deployer that tests this version; None for a host that serves
    state: HostState = SPAWNED
    since: float = 0.0  # when it began to serve
    stuck: bool = False  # a call hangs: a successor is to replace it
    load: tuple[int, int, int] = (0, 0, 0)  # running calls, waiting calls, clients
    given: int = 0  # clients handed over since its last load report
    handed: int = 0  # clients handed over, less those it returned
    calls: bool = True  # it may still start calls

    def move(self, event: HostEvent) -> None:
        self.state = TRANSITIONS[self.state][event]


class ModelHosts:
    """Hosts ``by_child``; ``catalogue``: the versions to serve, by name; ``faults``: why a module is not served."""

    def __init__(self, records: ServerRecords, processes: ProcessTable) -> None:
        self.records = records
        self.processes = processes
        self.catalogue: dict[str, Version] = {}
        self.by_child: dict[int, HostProcess] = {}
        self.faults: dict[str, str] = {}
        self._pauses: dict[str, Backoff] = {}

    # Messages of hosts

    def loaded(self, event: ev.Loaded) -> list[do.Action]:
        host = self.by_child.get(event.child)
        if host is None or host.state is not LOADING:
            return []
        host.move(LOADED)
        host.since = event.now
        if host.tried_by is not None:
            return [do.SendToChild(host.tried_by, "tried", "")]
        self.faults.pop(host.version.name, None)
        return [do.Log("info", f"serving {host.version.name} {host.version.version}")]

    def unloadable(self, event: ev.Unloadable) -> list[do.Action]:
        host = self.by_child.get(event.child)
        return [] if host is None or host.state is not LOADING else self._lost(event.child, event.why)

    def dead(self, child: int, status: int) -> list[do.Action]:
        host = self.by_child.get(child)
        if host is None or host.state is LEAVING:
            self.by_child.pop(child, None)
            return []
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return self._lost(child, f"its process ended {how}")

    def _lost(self, child: int, why: str) -> list[do.Action]:
        """Handle the end of a host that was not to leave: report it, and start another after a pause."""
        host = self.by_child.pop(child)
        name, version = host.version.name, host.version.version
        if host.tried_by is not None:
            return [do.SendToChild(host.tried_by, "tried", why)]
        pause = self._pauses.setdefault(name, Backoff(*RESTART_S))
        if not host.since:
            self.faults[name] = why
        elif self.records.now - host.since >= LASTED_S:
            pause.worked()
        level = "warning" if pause.failed(self.records.now) else "info"
        return [do.Log(level, f"the host of {name} {version}: {why}; it is started again")]

    def load(self, event: ev.Load) -> list[do.Action]:
        host = self.by_child.get(event.child)
        if host is not None:
            host.load, host.given = (event.running, event.waiting, event.clients), 0
        return []

    def stuck(self, event: ev.Stuck) -> list[do.Action]:
        host = self.by_child.get(event.child)
        if host is None or host.stuck:
            return []
        host.stuck = True
        name = host.version.name
        return [do.Log("warning", f"a call of {name} that was given up does not end: its host is being replaced")]

    def leaving(self, event: ev.Leaving) -> list[do.Action]:
        host = self.by_child.get(event.child)
        if host is not None:
            host.calls = False
        return []

    # Reports about hosts

    def load_of(self, name: str) -> tuple[int, int, int]:
        """Running calls, waiting calls and clients of the host that serves ``name``."""
        child = self.serving(name)
        return (0, 0, 0) if child is None else self.by_child[child].load

    def table(self) -> tuple[tuple[str, str, bool, int, int, int], ...]:
        """Each module for the tracker: name, version, whether it is served, and its load."""
        names = [] if self.records.stopping else sorted(self.catalogue)[:MAX_LISTED]
        return tuple(
            (name, self.catalogue[name].version, self.serving(name) is not None, *self.load_of(name)) for name in names
        )

    def states(self) -> dict[str, list[Any]]:
        """Each module's state and load for a deployer, by name."""
        return {name: [self._state_of(name), *self.load_of(name)] for name in list(self.catalogue)[:MAX_LISTED]}

    def _state_of(self, name: str) -> str:
        if self.serving(name) is not None:
            return "serving"
        fault = self.faults.get(name, "")
        return f"failing: {fault[:MAX_FAULT]}" if fault else "starting"

    # Bringing hosts in line with the catalogue

    def read(self, versions: tuple[Version, ...], is_deployer: Container[int]) -> list[do.Action]:
        """Replace the catalogue. A tested host in it begins to serve; one whose deployer has ended is killed."""
        before, self.catalogue = self.catalogue, {version.name: version for version in versions}
        for name in before.keys() | self.catalogue.keys():
            if before.get(name) != self.catalogue.get(name):
                self._pauses.pop(name, None)
                self.faults.pop(name, None)
        actions: list[do.Action] = []
        for child, host in list(self.by_child.items()):
            if host.tried_by is None:
                continue
            if self.catalogue.get(host.version.name) == host.version:
                host.tried_by = None
                actions.append(do.Log("info", f"serving {host.version.name} {host.version.version}, new"))
            elif host.tried_by not in is_deployer:
                del self.by_child[child]
                actions.append(do.Kill(child))
        return actions

    def spawn(self, version: Version, tried_by: int | None = None) -> do.Action:
        spawned = self.processes.spawn(ChildKind.HOST)
        self.by_child[spawned.child] = HostProcess(version, tried_by)
        return spawned

    def start_missing(self) -> list[do.Action]:
        """Start a host for each module without one, unless its pause lasts."""
        now = self.records.now
        wanted = [name for name in self._missing() if name not in self._pauses or self._pauses[name].allows(now)]
        return [self.spawn(self.catalogue[name]) for name in wanted]

    def _missing(self) -> list[str]:
        can_spawn = self.processes.zygote is ZygoteState.UP
        return [name for name in self.catalogue if can_spawn and self._of(name) is None]

    def next_start(self) -> float | None:
        """The end of the first pause after which :meth:`start_missing` starts a host."""
        return earliest(self._pauses[name].until for name in self._missing() if name in self._pauses)

    def leave(self) -> list[do.Action]:
        """Have each outdated or stuck host leave: at once, or once its successor serves if it has one."""
        return [action for child, host in list(self.by_child.items()) for action in self._perhaps_leave(child, host)]

    def _perhaps_leave(self, child: int, host: HostProcess) -> list[do.Action]:
        stopping, name = self.records.stopping, host.version.name
        if host.state is LEAVING or (host.tried_by is not None and not stopping):
            return []
        current = None if stopping else self.catalogue.get(name)
        if current == host.version and not host.stuck:
            return []
        if host.state is not SERVING:
            del self.by_child[child]
            return [do.Kill(child)]
        if current is not None and self.serving(name) is None:
            return []
        host.move(LEAVE)
        return [do.SendToChild(child, "leave", "" if current is None else "successor")]

    def _of(self, name: str) -> int | None:
        """The host that serves the current version of a module, or will serve it; None for no host."""
        for child, host in self.by_child.items():
            fit = host.tried_by is None and not host.stuck and host.state is not LEAVING
            if fit and host.version == self.catalogue.get(name):
                return child
        return None

    def serving(self, name: str) -> int | None:
        child = self._of(name)
        return child if child is not None and self.by_child[child].state is SERVING else None
