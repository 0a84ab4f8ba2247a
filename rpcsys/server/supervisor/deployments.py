"""What the supervisor does about deployed modules: the clients that want them, and those who deploy. Decisions only.

The disk says what is to be served (:class:`Catalogue`); the hosts (:mod:`rpcsys.server.supervisor.model_hosts`) are brought to it.

Who deploys has a process too, the deployer: it receives the file and makes a version of it, has it tried here (a host loads it,
and serves nobody yet), switches the disk over, and has it read again. Whatever dies in the middle, the disk decides.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.deployment_events import (
    Asked,
    BeDeployer,
    BeHost,
    Catalogue,
    Changed,
    Hand,
    Leaving,
    Load,
    Loaded,
    Moved,
    NotTaken,
    Reread,
    Stuck,
    TellChild,
    Try,
    TurnAway,
    Unloadable,
)
from rpcsys.server.supervisor.model_hosts import MAX_LISTED, Fleet, Host

WAIT_S = 30.0
"""How long a client waits for a host that is being started."""

TIDY_S = 2.0
"""What a deployer has to remove what it was sent, when its client is gone."""

MAX_VISITORS = 256
"""Clients that wait for hosts."""

MAX_DEPLOYERS = 8
"""Clients that deploy: each has a process."""

MAX_CLIENTS = 1000
"""Of one host: each costs it 64 kB and a descriptor, of which a process may have 1,024 in most places."""

HEARD_S = 5.0
"""How long a deployer waits for hosts to hear that they are to leave: one may be busy in native code."""

SHOWN = 20
"""Names in one message."""


@dataclass
class Deployer:
    """A client that deploys, and its process.

    ``changed``: its change is to be seen; ``heard_by``: it is, and hosts are to hear of it by then; ``until``: its client is gone, and it has so long to tidy up.
    """

    conn: int
    peer: str
    ready: bool = False
    changed: bool = False
    heard_by: Optional[float] = None
    until: Optional[float] = None


@dataclass
class Visitor:
    """A client that waits for a host."""

    conn: int
    peer: str
    name: str
    until: float
    fresh: bool = True
    greeted: bool = False


class Hosting(Fleet):
    """Hosts, and who wants them. Methods note what happened and return what to do; then comes :meth:`settle`."""

    def __init__(self, number: Callable[[], int]) -> None:
        super().__init__(number)
        self.deployers: Dict[int, Deployer] = {}
        self.visitors: List[Visitor] = []

    def handle(self, event: ev.Event) -> List[do.Action]:
        """Take in what hosts and deployers say, and what the disk does."""
        return _HANDLERS[type(event)](self, event)

    # -------------------------------------------------------------- clients

    def visit(self, now: float, conn: int, peer: str, name: str) -> List[do.Action]:
        """A client greets: it wants the module ``name``, or, with an empty name, to deploy."""
        if len(self.visitors) >= MAX_VISITORS:
            return [
                TurnAway(conn, "Busy", f"{MAX_VISITORS} clients wait for modules here; try again in a moment", True)
            ]
        if name:
            self.visitors.append(Visitor(conn, peer, name, now + WAIT_S))
            return []
        if len(self.deployers) >= MAX_DEPLOYERS:
            return [TurnAway(conn, "Busy", f"{MAX_DEPLOYERS} clients deploy here already; try again in a moment", True)]
        if not self.up:
            return [TurnAway(conn, "Busy", "the server is starting; try again in a moment", True)]
        child = self._number()
        self.deployers[child] = Deployer(conn, peer)
        return [do.Spawn(child, ChildKind.DEPLOYER)]

    def hung_up(self, now: float, conn: int) -> Optional[List[do.Action]]:
        """A connection's client is gone; None if it is none of those that wait here."""
        for visitor in self.visitors:
            if visitor.conn == conn:
                self.visitors.remove(visitor)
                return [do.Drop(conn)]
        for deployer in self.deployers.values():
            if deployer.conn == conn:
                deployer.until = now + TIDY_S
                return []
        return None

    def moved(self, event: Moved) -> List[do.Action]:
        """A connection comes back from a host; its successor goes on with it."""
        host = self.hosts.get(event.child)
        if host is None or not host.handed:
            return [do.Drop(event.conn)]
        host.handed -= 1
        until = event.now + WAIT_S
        self.visitors.append(Visitor(event.conn, event.peer, host.version.name, until, False, event.greeted))
        return []

    def not_taken(self, event: NotTaken) -> List[do.Action]:
        """A client waits for another host. That one is ended, if it is not dead already: its death is heard of next."""
        host = self.hosts.get(event.child)
        if host is None:
            return [do.Drop(event.conn)]
        until = event.now + WAIT_S
        self.visitors.append(Visitor(event.conn, event.peer, host.version.name, until, event.fresh, event.greeted))
        if host.state != "serving":
            return []
        host.state = "doomed"
        return [do.Kill(event.child)]

    # -------------------------------------------------------------- processes

    def zygote(self, up: bool) -> List[do.Action]:
        """The zygote is there, or dead, and every process below it."""
        self.up = up
        if up:
            return []
        deployers, self.deployers = self.deployers, {}
        self.hosts.clear()
        return [*(do.Drop(deployer.conn) for deployer in deployers.values()), Reread()]

    def ready(self, child: int) -> List[do.Action]:
        """A child waits for what it is to be."""
        host, deployer = self.hosts.get(child), self.deployers.get(child)
        if host is not None and host.state == "spawned":
            host.state = "loading"
            return [BeHost(child, host.version)]
        if deployer is not None and not deployer.ready:
            deployer.ready = True
            return [BeDeployer(child, deployer.conn, deployer.peer)]
        return []

    def dead(self, now: float, child: int, status: int) -> List[do.Action]:
        """A child is dead."""
        deployer = self.deployers.pop(child, None)
        if deployer is not None:
            return [do.Drop(deployer.conn), Reread()]
        host = self.hosts.get(child)
        if host is None:
            return []
        if host.state == "leaving":
            del self.hosts[child]
            return []
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return self._lost(now, child, f"its process ended {how}")

    # -------------------------------------------------------------- deploying

    def tries(self, event: Try) -> List[do.Action]:
        """Start a host that shows whether a version can be loaded."""
        if event.child not in self.deployers:
            return []
        return [self._spawn(Host(event.version, tried_by=event.child))]

    def changed(self, event: Changed) -> List[do.Action]:
        """The disk says something else now."""
        deployer = self.deployers.get(event.child)
        if deployer is None:
            return []
        deployer.changed = True
        return [Reread()]

    def asked(self, event: Asked) -> List[do.Action]:
        """Tell of each module its state, and of its host the calls that run, the calls that wait, and the clients."""
        if event.child not in self.deployers:
            return []
        states = {name: [self._state_of(name), *self.load(name)] for name in list(self.catalogue)[:MAX_LISTED]}
        return [TellChild(event.child, (("states", states),))]

    def read(self, event: Catalogue) -> List[do.Action]:
        """What the disk says."""
        actions: List[do.Action] = []
        before, self.catalogue = self.catalogue, {version.name: version for version in event.versions}
        for name in before.keys() | self.catalogue.keys():
            if before.get(name) != self.catalogue.get(name):
                self._pauses.pop(name, None)
                self._faults.pop(name, None)
        for child, host in list(self.hosts.items()):
            if host.tried_by is None:
                continue
            if self.catalogue.get(host.version.name) == host.version:
                host.tried_by = None
                actions.append(do.Log("info", f"serving {host.version.name} {host.version.version}, new"))
            elif host.tried_by not in self.deployers:
                del self.hosts[child]
                actions.append(do.Kill(child))
        for deployer in self.deployers.values():
            if deployer.changed:
                deployer.changed = False
                deployer.heard_by = event.now + HEARD_S
        return actions

    def leaving(self, event: Leaving) -> List[do.Action]:
        """A host has heard that it is to leave."""
        host = self.hosts.get(event.child)
        if host is not None:
            host.calls = False
        return []

    # -------------------------------------------------------------- what follows

    def stop(self) -> List[do.Action]:
        """The server is being stopped: hosts finish what they have, and take no more."""
        self.stopping = True
        waiting, self.visitors = self.visitors, []
        return [*(do.Drop(visitor.conn) for visitor in waiting), *map(do.Kill, self.deployers)]

    def end(self) -> List[do.Action]:
        """The time for that is over."""
        return [do.Kill(child) for child in self.hosts]

    def has(self, child: int) -> bool:
        """Whether a child is one of theirs."""
        return child in self.hosts or child in self.deployers

    @property
    def busy(self) -> bool:
        """Whether a process is still there."""
        return bool(self.hosts or self.deployers)

    def settle(self, now: float) -> List[do.Action]:
        """Bring hosts to what is to be served, and clients to hosts."""
        actions: List[do.Action] = []
        for child, host in list(self.hosts.items()):
            actions += self._perhaps_leave(child, host)
        for child, deployer in self.deployers.items():
            if deployer.until is not None and now >= deployer.until:
                deployer.until = None
                actions.append(do.Kill(child))
        actions += self._tell_seen(now)
        if self.stopping:
            return actions
        actions += self._start_missing(now)
        waiting, self.visitors = self.visitors, []
        for visitor in waiting:
            actions += self._see_to(now, visitor)
        return actions

    def _tell_seen(self, now: float) -> List[do.Action]:
        """Tell who deploys that it is done, once no call can reach an earlier version."""
        actions: List[do.Action] = []
        unheard = any(host.state == "leaving" and host.calls for host in self.hosts.values())
        for child, deployer in self.deployers.items():
            if deployer.heard_by is not None and (not unheard or now >= deployer.heard_by):
                deployer.heard_by = None
                actions.append(TellChild(child, (("seen", True),)))
        return actions

    def deadline(self) -> Optional[float]:
        """When :meth:`settle` has something to do by itself."""
        if self.stopping:
            return None
        times: List[Optional[float]] = [visitor.until for visitor in self.visitors]
        times += [time for each in self.deployers.values() for time in (each.until, each.heard_by)]
        times.append(self._next_start())
        return min((time for time in times if time is not None), default=None)

    def _see_to(self, now: float, visitor: Visitor) -> List[do.Action]:
        name = visitor.name
        child = self._serving(name)
        if name not in self.catalogue:
            return [self._turn_away(visitor, "ServerRefused", self._unknown(name))]
        if child is not None:
            host = self.hosts[child]
            if host.load[2] + host.given >= MAX_CLIENTS:
                text = (
                    f"the module {name!r} has {MAX_CLIENTS} clients here, which is all that it takes; try again later"
                )
                return [self._turn_away(visitor, "Busy", text)]
            host.given += 1
            host.handed += 1
            return [Hand(child, visitor.conn, visitor.peer, visitor.fresh, visitor.greeted)]
        if name in self._faults:
            text = f"the module {name!r} cannot be served now: {self._faults[name]}"
            return [self._turn_away(visitor, "Busy", text)]
        if now >= visitor.until:
            return [self._turn_away(visitor, "Busy", f"the module {name!r} is being started; try again in a moment")]
        self.visitors.append(visitor)
        return []

    def _turn_away(self, visitor: Visitor, kind: str, text: str) -> do.Action:
        return TurnAway(visitor.conn, kind, text, visitor.fresh)

    def _unknown(self, name: str) -> str:
        names = sorted(self.catalogue)
        if not names:
            return "nothing is deployed on this server; type: rpcsys deploy FILE --to HOST:PORT"
        near = difflib.get_close_matches(name, names, 3, 0.5) or names[:SHOWN]
        more = ", …" if len(names) > len(near) else ""
        return f"no module {name[:100]!r} is deployed on this server; it has {', '.join(near)}{more}"


_HANDLERS: Dict[type, Callable[[Hosting, Any], List[do.Action]]] = {
    Catalogue: Hosting.read,
    Loaded: Hosting.loaded,
    Unloadable: Hosting.unloadable,
    Load: Hosting.told_load,
    Stuck: Hosting.stuck,
    Leaving: Hosting.leaving,
    Moved: Hosting.moved,
    Try: Hosting.tries,
    NotTaken: Hosting.not_taken,
    Changed: Hosting.changed,
    Asked: Hosting.asked,
}
