"""What the supervisor does about deployed modules: their hosts, the clients that want them, those who deploy. Decisions only.

The disk says what is to be served (:class:`Catalogue`); this part brings the hosts to it::

    spawned ──ready──> loading ──loaded──> serving ──another version serves, or none is to──> leaving ──dead──> (gone)
                          └─ cannot be loaded, or died: again, after growing pauses

Who deploys has a process too, the deployer: it receives the file and makes a version of it, has it tried here (a host loads it,
and serves nobody yet), switches the disk over, and has it read again. Whatever dies in the middle, the disk decides.

Numbers of these children are below zero: the zygote knows one kind of child, and the board's are above.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from rpcsys.server import events as ev
from rpcsys.server.backoff import Backoff
from rpcsys.server.serving.events import (
    Asked,
    BeDeployer,
    BeHost,
    Catalogue,
    Changed,
    Hand,
    Load,
    Loaded,
    Moved,
    NotTaken,
    Reread,
    Stuck,
    TellChild,
    TellDeployed,
    Try,
    TurnAway,
    Unloadable,
)
from rpcsys.server.serving.store import Version

WAIT_S = 30.0
"""How long a client waits for a host that is being started."""

LASTED_S = 10.0
"""A host that served for so long does not fail at its start."""

LONGEST_S = 30.0
"""The longest pause before a host is started again."""

TIDY_S = 2.0
"""What a deployer has to remove what it was sent, when its client is gone."""

MAX_VISITORS = 256
"""Clients that wait for hosts."""

MAX_DEPLOYERS = 8
"""Clients that deploy: each has a process."""

MAX_CLIENTS = 1000
"""Of one host: each costs it 64 kB and a descriptor, of which a process may have 1,024 in most places."""

MAX_LISTED = 250
MAX_FAULT = 120
"""Modules in one answer to a deployer, and letters of what is wrong with one: a message has 64 kB."""

SHOWN = 20
"""Names in one message."""


# ------------------------------------------------------------------ what is known


@dataclass
class Host:
    """One process of a version.

    ``state``: as above, or ``doomed``; ``tried_by``: the deployer for whom it is only tried; ``since``: when it began to serve;
    ``stuck``: to be succeeded; ``load``: calls that run, calls that wait, clients; ``given``: clients not yet in its load.
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


@dataclass
class Deployer:
    """A client that deploys, and its process.

    ``changed``: it waits to hear that its change was seen; ``until``: its client is gone, and it has so long to tidy up.
    """

    conn: int
    peer: str
    ready: bool = False
    changed: bool = False
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


class Hosting:
    """Deployed modules by name, and their hosts. Methods note what happened and return what to do; then comes :meth:`settle`."""

    def __init__(self) -> None:
        self.catalogue: Dict[str, Version] = {}
        self.hosts: Dict[int, Host] = {}
        self.deployers: Dict[int, Deployer] = {}
        self.visitors: List[Visitor] = []
        self.up = False
        self.stopping = False
        self._pauses: Dict[str, Backoff] = {}
        self._faults: Dict[str, str] = {}
        self._last = 0

    def handle(self, event: ev.Event) -> List[ev.Action]:
        """Take in what hosts and deployers say, and what the disk does."""
        return _HANDLERS[type(event)](self, event)

    # -------------------------------------------------------------- clients

    def visit(self, now: float, conn: int, peer: str, name: str) -> List[ev.Action]:
        """A client greets: it wants the module ``name``, or, with an empty name, to deploy."""
        if len(self.visitors) >= MAX_VISITORS:
            return [
                TurnAway(
                    conn, "Busy", f"{MAX_VISITORS} clients wait for modules here; try again in a moment", True
                )
            ]
        if name:
            self.visitors.append(Visitor(conn, peer, name, now + WAIT_S))
            return []
        if len(self.deployers) >= MAX_DEPLOYERS:
            return [
                TurnAway(
                    conn, "Busy", f"{MAX_DEPLOYERS} clients deploy here already; try again in a moment", True
                )
            ]
        if not self.up:
            return [TurnAway(conn, "Busy", "the server is starting; try again in a moment", True)]
        child = self._spawn()
        self.deployers[child] = Deployer(conn, peer)
        return [ev.Spawn(child)]

    def hung_up(self, now: float, conn: int) -> Optional[List[ev.Action]]:
        """A connection's client is gone; None if it is none of those that wait here."""
        for visitor in self.visitors:
            if visitor.conn == conn:
                self.visitors.remove(visitor)
                return [ev.Drop(conn)]
        for deployer in self.deployers.values():
            if deployer.conn == conn:
                deployer.until = now + TIDY_S
                return []
        return None

    def moved(self, event: Moved) -> List[ev.Action]:
        """A connection comes back from a host; its successor goes on with it."""
        host = self.hosts.get(event.child)
        if host is None:
            return [ev.Drop(event.conn)]
        until = event.now + WAIT_S
        self.visitors.append(Visitor(event.conn, event.peer, host.version.name, until, False, event.greeted))
        return []

    def not_taken(self, event: NotTaken) -> List[ev.Action]:
        """A client waits for another host. That one is ended, if it is not dead already: its death is heard of next."""
        host = self.hosts.get(event.child)
        if host is None:
            return [ev.Drop(event.conn)]
        until = event.now + WAIT_S
        self.visitors.append(
            Visitor(event.conn, event.peer, host.version.name, until, event.fresh, event.greeted)
        )
        if host.state != "serving":
            return []
        host.state = "doomed"
        return [ev.Kill(event.child)]

    # -------------------------------------------------------------- processes

    def zygote(self, up: bool) -> List[ev.Action]:
        """The zygote is there, or dead, and every process below it."""
        self.up = up
        if up:
            return []
        deployers, self.deployers = self.deployers, {}
        self.hosts.clear()
        return [*(ev.Drop(deployer.conn) for deployer in deployers.values()), Reread()]

    def ready(self, child: int) -> List[ev.Action]:
        """A child waits for what it is to be."""
        host, deployer = self.hosts.get(child), self.deployers.get(child)
        if host is not None and host.state == "spawned":
            host.state = "loading"
            return [BeHost(child, host.version)]
        if deployer is not None and not deployer.ready:
            deployer.ready = True
            return [BeDeployer(child, deployer.conn, deployer.peer)]
        return []

    def loaded(self, event: Loaded) -> List[ev.Action]:
        """A host can serve."""
        host = self.hosts.get(event.child)
        if host is None or host.state != "loading":
            return []
        host.state, host.since = "serving", event.now
        host.kind, host.functions = event.kind, event.functions
        if host.tried_by is not None:
            return [TellChild(host.tried_by, (("tried", ""),))]
        self._faults.pop(host.version.name, None)
        return [ev.Log("info", f"serving {host.version.name} {host.version.version}")]

    def unloadable(self, event: Unloadable) -> List[ev.Action]:
        """A host cannot serve: it leaves by itself."""
        host = self.hosts.get(event.child)
        if host is None or host.state != "loading":
            return []
        return self._lost(event.now, event.child, event.why)

    def dead(self, now: float, child: int, status: int) -> List[ev.Action]:
        """A child is dead."""
        deployer = self.deployers.pop(child, None)
        if deployer is not None:
            return [ev.Drop(deployer.conn), Reread()]
        host = self.hosts.get(child)
        if host is None:
            return []
        if host.state == "leaving":
            del self.hosts[child]
            return []
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return self._lost(now, child, f"its process ended {how}")

    def _lost(self, now: float, child: int, why: str) -> List[ev.Action]:
        """A host serves no more, and was not told to leave."""
        host = self.hosts.pop(child)
        name, version = host.version.name, host.version.version
        if host.tried_by is not None:
            return [TellChild(host.tried_by, (("tried", why),))]
        pause = self._pauses.setdefault(name, Backoff(longest_s=LONGEST_S))
        if not host.since:
            self._faults[name] = why
        elif now - host.since >= LASTED_S:
            pause.worked()
        first = pause.failed(now)
        return [
            ev.Log(
                "warning" if first else "info", f"the host of {name} {version}: {why}; it is started again"
            )
        ]

    def told_load(self, event: Load) -> List[ev.Action]:
        """A host says what it has to do."""
        host = self.hosts.get(event.child)
        if host is not None:
            host.load, host.given = (event.running, event.waiting, event.clients), 0
        return []

    def stuck(self, event: Stuck) -> List[ev.Action]:
        """A host is to be succeeded by another of the same version."""
        host = self.hosts.get(event.child)
        if host is None or host.stuck:
            return []
        host.stuck = True
        name = host.version.name
        return [
            ev.Log("warning", f"a call of {name} that was given up does not end: its host is being replaced")
        ]

    # -------------------------------------------------------------- deploying

    def tries(self, event: Try) -> List[ev.Action]:
        """Start a host that shows whether a version can be loaded."""
        if event.child not in self.deployers:
            return []
        child = self._spawn()
        self.hosts[child] = Host(event.version, tried_by=event.child)
        return [ev.Spawn(child)]

    def changed(self, event: Changed) -> List[ev.Action]:
        """The disk says something else now."""
        deployer = self.deployers.get(event.child)
        if deployer is not None:
            deployer.changed = True
        return [Reread()]

    def asked(self, event: Asked) -> List[ev.Action]:
        """Tell of each module its state, and of its host the calls that run, the calls that wait, and the clients."""
        states = {
            name: [self._state_of(name), *self.load(name)] for name in list(self.catalogue)[:MAX_LISTED]
        }
        return [TellChild(event.child, (("states", states),))]

    def load(self, name: str) -> Tuple[int, int, int]:
        """Calls that run, calls that wait, and clients, of the host that serves ``name``."""
        child = self._serving(name)
        return (0, 0, 0) if child is None else self.hosts[child].load

    def announce(self, told: object) -> List[TellDeployed]:
        """Tell the tracker what has changed since it was ``told``; nothing if nothing has."""
        names = [] if self.stopping else sorted(self.catalogue)[:MAX_LISTED]
        rows = tuple(
            (name, self.catalogue[name].version, self._serving(name) is not None, *self.load(name))
            for name in names
        )
        return [] if rows == told else [TellDeployed(rows)]

    def _state_of(self, name: str) -> str:
        if self._serving(name) is not None:
            return "serving"
        fault = self._faults.get(name, "")
        return f"failing: {fault[:MAX_FAULT]}" if fault else "starting"

    def read(self, event: Catalogue) -> List[ev.Action]:
        """What the disk says."""
        actions: List[ev.Action] = []
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
                actions.append(ev.Log("info", f"serving {host.version.name} {host.version.version}, new"))
            elif host.tried_by not in self.deployers:
                del self.hosts[child]
                actions.append(ev.Kill(child))
        for child, deployer in self.deployers.items():
            if deployer.changed:
                deployer.changed = False
                actions.append(TellChild(child, (("seen", True),)))
        return actions

    # -------------------------------------------------------------- what follows

    def stop(self) -> List[ev.Action]:
        """The server is being stopped: hosts finish what they have, and take no more."""
        self.stopping = True
        waiting, self.visitors = self.visitors, []
        return [*(ev.Drop(visitor.conn) for visitor in waiting), *map(ev.Kill, self.deployers)]

    def end(self) -> List[ev.Action]:
        """The time for that is over."""
        return [ev.Kill(child) for child in self.hosts]

    @property
    def busy(self) -> bool:
        """Whether a process is still there."""
        return bool(self.hosts or self.deployers)

    def settle(self, now: float) -> List[ev.Action]:
        """Bring hosts to what is to be served, and clients to hosts."""
        actions: List[ev.Action] = []
        for child, host in list(self.hosts.items()):
            actions += self._perhaps_leave(child, host)
        for child, deployer in self.deployers.items():
            if deployer.until is not None and now >= deployer.until:
                deployer.until = None
                actions.append(ev.Kill(child))
        if self.stopping:
            return actions
        for name in self.catalogue:
            pause = self._pauses.get(name)
            if self.up and self._of(name) is None and (pause is None or pause.allows(now)):
                child = self._spawn()
                self.hosts[child] = Host(self.catalogue[name])
                actions.append(ev.Spawn(child))
        waiting, self.visitors = self.visitors, []
        for visitor in waiting:
            actions += self._see_to(now, visitor)
        return actions

    def deadline(self) -> Optional[float]:
        """When :meth:`settle` has something to do by itself."""
        if self.stopping:
            return None
        times = [visitor.until for visitor in self.visitors]
        times += [deployer.until for deployer in self.deployers.values() if deployer.until is not None]
        for name in self.catalogue:
            pause = self._pauses.get(name)
            if self.up and pause is not None and pause.until is not None and self._of(name) is None:
                times.append(pause.until)
        return min(times, default=None)

    def _perhaps_leave(self, child: int, host: Host) -> List[ev.Action]:
        """Have a host leave that is not wanted any more, as soon as its successor serves, if there is to be one."""
        if host.state == "leaving" or (host.tried_by is not None and not self.stopping):
            return []
        current = None if self.stopping else self.catalogue.get(host.version.name)
        if current == host.version and not host.stuck:
            return []
        if host.state != "serving":
            del self.hosts[child]
            return [ev.Kill(child)]
        if current is not None and self._serving(host.version.name) is None:
            return []
        host.state = "leaving"
        return [TellChild(child, (("leave", "" if current is None else "successor"),))]

    def _see_to(self, now: float, visitor: Visitor) -> List[ev.Action]:
        name = visitor.name
        child = self._serving(name)
        if name not in self.catalogue:
            return [self._turn_away(visitor, "ServerRefused", self._unknown(name))]
        if child is not None:
            host = self.hosts[child]
            if host.load[2] + host.given >= MAX_CLIENTS:
                text = f"the module {name!r} has {MAX_CLIENTS} clients here, which is all that it takes; try again later"
                return [self._turn_away(visitor, "Busy", text)]
            host.given += 1
            return [Hand(child, visitor.conn, visitor.peer, visitor.fresh, visitor.greeted)]
        if name in self._faults:
            text = f"the module {name!r} cannot be served now: {self._faults[name]}"
            return [self._turn_away(visitor, "Busy", text)]
        if now >= visitor.until:
            return [
                self._turn_away(
                    visitor, "Busy", f"the module {name!r} is being started; try again in a moment"
                )
            ]
        self.visitors.append(visitor)
        return []

    def _turn_away(self, visitor: Visitor, kind: str, text: str) -> ev.Action:
        return TurnAway(visitor.conn, kind, text, visitor.fresh)

    def _unknown(self, name: str) -> str:
        names = sorted(self.catalogue)
        if not names:
            return "nothing is deployed on this server; type: rpcsys deploy FILE --to HOST:PORT"
        near = difflib.get_close_matches(name, names, 3, 0.5) or names[:SHOWN]
        more = ", …" if len(names) > len(near) else ""
        return f"no module {name[:100]!r} is deployed on this server; it has {', '.join(near)}{more}"

    def _of(self, name: str) -> Optional[int]:
        """The host, in whatever state, that serves the current version or will."""
        current = self.catalogue[name]
        for child, host in self.hosts.items():
            if (
                host.version == current
                and host.tried_by is None
                and not host.stuck
                and host.state != "leaving"
            ):
                return child
        return None

    def _serving(self, name: str) -> Optional[int]:
        child = self._of(name) if name in self.catalogue else None
        return child if child is not None and self.hosts[child].state == "serving" else None

    def _spawn(self) -> int:
        self._last -= 1
        return self._last


_HANDLERS: Dict[type, Callable[[Hosting, Any], List[ev.Action]]] = {
    Catalogue: Hosting.read,
    Loaded: Hosting.loaded,
    Unloadable: Hosting.unloadable,
    Load: Hosting.told_load,
    Stuck: Hosting.stuck,
    Moved: Hosting.moved,
    Try: Hosting.tries,
    NotTaken: Hosting.not_taken,
    Changed: Hosting.changed,
    Asked: Hosting.asked,
}
